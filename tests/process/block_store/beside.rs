//! Tests that an honest client is served beside hostile clients of the primary and strangers at the
//! replica.

use std::net::TcpStream;

use bytes::Bytes;
use support::programs::is_emulated;
use support::{LIMIT, run};
use tokio_doca::{Device, WorkQ};
use zerocopy::IntoBytes;

use super::chaos::Pair;
use super::client::Client;
use super::layout::{Ask, Verb};
use crate::hostile::bystander::{Attack, is_served_beside};
use crate::hostile::messengers::{
    CLIENTS, SILENT, flood, haunt, say_nothing, take_no_answer, talk_nonsense,
};

/// The limit of the replica's descriptors, and the number of strangers that stay connected, which
/// is larger.
const DESCRIPTORS: u32 = 24;
const STRANGERS: usize = 40;

#[test]
fn hostile_clients_hold_up_no_honest_one() {
    if is_emulated("start what a program starts itself") {
        return;
    }
    let mut pair = Pair::start_with(DESCRIPTORS);
    let [primary, replica] = pair.addrs;
    run(async {
        let (device, workq) = (Device::open_default().unwrap(), WorkQ::builder().build());
        let client = Client::new(primary, &device, &workq.unwrap(), LIMIT);
        let (mut client, data) = (client.unwrap(), Bytes::from(vec![7; 60_000]));
        let mut visit = async || {
            let version = client.put(0, &data).await.unwrap();
            let read = client.get(0).await.unwrap().expect("it was written");
            assert!(read == (version, data.to_vec()));
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        };
        let ask = Ask::new(Verb::Get, 0, 7, 1);
        let ghosts = async move |attack: &Attack| haunt(primary, b"", attack).await;
        is_served_beside("ghosts", 10, &mut visit, ghosts).await;
        let asks = async move |attack: &Attack| {
            take_no_answer(primary, b"", ask.as_bytes(), attack).await;
        };
        is_served_beside("no receives", CLIENTS, &mut visit, asks).await;
        let talk = async move |attack: &Attack| {
            talk_nonsense(
                primary,
                b"",
                Ask::new(Verb::Get, 0, 7, 1).as_bytes(),
                attack,
            )
            .await;
        };
        is_served_beside("nonsense", 10, &mut visit, talk).await;
        let come = async move |attack: &Attack| flood(replica, STRANGERS, attack).await;
        is_served_beside("a flood", STRANGERS, &mut visit, come).await;
    });
    // The replica accepts another primary.
    pair.kill_primary();
}

#[test]
fn silent_clients_keep_no_honest_one_out() {
    if is_emulated("start what a program starts itself") {
        return;
    }
    let pair = Pair::start();
    let [primary, _] = pair.addrs;
    run(async {
        let device = Device::open_default().unwrap();
        let workq = WorkQ::builder().build().unwrap();
        let data = Bytes::from_static(b"value");
        let mut visit = async || {
            let mut client = Client::new(primary, &device, &workq, LIMIT).unwrap();
            client.put(0, &data).await.unwrap();
        };
        for (name, first) in [("no word", &b""[..]), ("no blob", &[0, 0])] {
            let silent = async move |attack: &Attack| {
                say_nothing(|| TcpStream::connect(primary), first, attack).await;
            };
            is_served_beside(name, SILENT, &mut visit, silent).await;
        }
    });
}
