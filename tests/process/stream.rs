//! Streams between two processes, one of which is killed.

use std::io::ErrorKind;
use std::net::SocketAddr;

use support::device::under_test;
use support::peer::{Peer, hear, role, say};
use support::stream::{Net, bytes, small};
use support::{test_name, *};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_doca::{Mode, WorkQ};

const LEN: usize = 700;

/// The other process writes to a stream, and stays until it is killed.
fn write() {
    let addr: SocketAddr = hear().unwrap().parse().unwrap();
    run(async {
        let (device, workq) = (under_test(false), WorkQ::builder().build().unwrap());
        let connector = small().connector(&device, &workq).unwrap();
        let mut stream = connector.connect(addr).await.unwrap();
        stream.write_all(&bytes(0..LEN)).await.unwrap();
        say("written");
        assert_eq!(stream.read_u8().await.unwrap(), 7);
        say("answered");
        hear();
    });
}

#[test]
fn a_peer_that_is_killed_resets_its_stream() {
    if role().is_some() {
        return write();
    }
    let mut peer = Peer::start(
        test_name!(a_peer_that_is_killed_resets_its_stream),
        "writer",
    );
    run(async {
        let net = Net::new(&under_test(false), Mode::EventDriven, small()).await;
        peer.say(&net.addr.to_string());
        let mut stream = net
            .listener
            .accept()
            .await
            .unwrap()
            .accept(b"")
            .await
            .unwrap();
        assert_eq!(peer.hear(), "written");
        stream.write_u8(7).await.unwrap();
        let mut came = vec![0; LEN];
        stream.read_exact(&mut came).await.unwrap();
        assert_eq!(came, bytes(0..LEN));
        assert_eq!(peer.hear(), "answered");
        peer.kill();
        let read = in_time("the end", stream.read(&mut came)).await;
        assert_eq!(read.unwrap_err().kind(), ErrorKind::ConnectionReset);
    });
}
