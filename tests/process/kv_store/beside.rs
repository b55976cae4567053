//! Tests that an honest client is served beside hostile clients of the store.

use std::net::{SocketAddr, TcpStream};

use support::device::adapter;
use support::programs::is_emulated;
use support::{LIMIT, run};
use tokio_doca::{Device, WorkQ};

use super::client::Client;
use super::service::Service;
use crate::hostile::bystander::{Attack, is_served_beside};
use crate::hostile::messengers::{
    CLIENTS, SILENT, haunt, say_nothing, take_no_answer, talk_nonsense,
};

/// The byte that a client sends before the handshake, and a get of an absent key.
const FIRST: &[u8] = b"R";
const ASK: &[u8] = b"\x03\0\x04\0\x07\0\0\0\x01\0\0\0\0\0\0\0none";

#[test]
fn hostile_clients_hold_up_no_honest_one() {
    if is_emulated("start what a program starts itself") || adapter().is_some() {
        return;
    }
    let service = Service::start(&[]);
    let addr = service.address.parse().unwrap();
    run(async {
        let (device, workq) = (Device::open_default().unwrap(), WorkQ::builder().build());
        let client = Client::new(&service.address, &device, &workq.unwrap(), LIMIT);
        let mut client = client.unwrap();
        let mut visit = async || {
            let version = client.put(b"honest", b"value").await.unwrap();
            let value = client.get(b"honest").await.unwrap().expect("it was put");
            assert_eq!((value.version, &*value.data), (version, &b"value"[..]));
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        };
        let ghosts = async move |attack: &Attack| haunt(addr, FIRST, attack).await;
        is_served_beside("ghosts", 10, &mut visit, ghosts).await;
        let ask = async move |attack: &Attack| take_no_answer(addr, FIRST, ASK, attack).await;
        is_served_beside("no receives", CLIENTS, &mut visit, ask).await;
        let talk = async move |attack: &Attack| talk_nonsense(addr, FIRST, ASK, attack).await;
        is_served_beside("nonsense", 10, &mut visit, talk).await;
    });
    let server = service.server;
    nix::sys::signal::kill(server, None).expect("it is the same server");
}

#[test]
fn silent_clients_keep_no_honest_one_out() {
    if is_emulated("start what a program starts itself") || adapter().is_some() {
        return;
    }
    let service = Service::start(&[]);
    let addr: SocketAddr = service.address.parse().unwrap();
    run(async {
        let device = Device::open_default().unwrap();
        let workq = WorkQ::builder().build().unwrap();
        let mut visit = async || {
            let mut client = Client::new(&service.address, &device, &workq, LIMIT).unwrap();
            client.put(b"honest", b"value").await.unwrap();
        };
        let greetings: [(&str, &'static [u8]); 4] = [
            ("no word", b""),
            ("no blob", FIRST),
            ("no request", b"T"),
            ("half a request", b"T\x10\0\0\0"),
        ];
        for (name, first) in greetings {
            let silent = async move |attack: &Attack| {
                say_nothing(|| TcpStream::connect(addr), first, attack).await;
            };
            is_served_beside(name, SILENT, &mut visit, silent).await;
        }
    });
}
