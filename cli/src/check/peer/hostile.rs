//! Tests with servers that have the token, but violate the protocol.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_doca::mem::Access;
use tokio_doca::stream::RdmaStream;
use tokio_doca::{Device, Mmap, WorkQ};

use super::data::{give, take};
use super::rows::Rows;
use super::serve::echo;
use super::{Caller, SMALL, lent};
use crate::about::Peer;
use crate::check::row::{Row, State};
use crate::transfer::{CHECK, Session, Step, Token, meet, verdict};

/// Runs a check against a server that proves the token and then does `play`.
async fn against(about: &[u8], play: impl AsyncFn(&mut RdmaStream, &Session)) -> (Vec<Row>, Peer) {
    let device = Device::open("pf0").unwrap();
    let workq = WorkQ::builder().build().unwrap();
    let token = Token::of("a token of this test");
    let at = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let listener = lent::options(1).or_tcp(true).bind(&device, &workq, at);
    let listener = listener.await.unwrap();
    let addr = listener.tcp_addr().unwrap();
    let serve = async {
        let incoming = listener.accept().await.unwrap();
        let met = meet(&CHECK, &token, incoming, about).await;
        let (mut stream, session) = met.unwrap();
        play(&mut stream, &session).await;
    };
    let host = addr.to_string();
    let caller = Caller {
        device: &device,
        workq: &workq,
        token: &token,
        host: &host,
    };
    let (mut rows, mut peer) = (Rows::new(), None);
    let check = caller.check(addr.into(), &mut rows, &mut peer);
    let (checked, ()) = tokio::join!(check, serve);
    checked.unwrap();
    let (rows, checks) = rows.finish();
    assert_eq!(rows.len(), checks);
    (rows, peer.unwrap())
}

/// Returns the names of the failed checks, and why they failed.
fn failed(rows: &[Row]) -> Vec<(&str, &str)> {
    let failed = rows.iter().filter(|row| row.state == State::Failed);
    failed
        .map(|row| (&*row.check, row.why.as_deref().unwrap()))
        .collect()
}

/// Plays the server's part up to its answer about the client's bytes.
async fn until_the_answer(stream: &mut RdmaStream, session: &Session, answer: &[u8]) {
    echo(stream).await.unwrap();
    take(stream).await.unwrap();
    session.hear(stream, Step::Sum).await.unwrap();
    session.say(stream, Step::Answer, answer).await.unwrap();
}

/// Plays the server's part up to the message about its lent memory.
async fn until_the_memory(stream: &mut RdmaStream, session: &Session, blob: &[u8]) {
    until_the_answer(stream, session, &verdict(None)).await;
    let sum = give(stream).await.unwrap();
    session.say(stream, Step::Sum, &sum).await.unwrap();
    let memory = [&[0], blob].concat();
    session.say(stream, Step::Memory, &memory).await.unwrap();
}

#[tokio::test]
async fn other_bytes_back_end_the_checks() {
    let (rows, peer) = against(b"a\x1b[2J", async |stream, _| {
        stream.read_exact(&mut [0; SMALL]).await.unwrap();
        stream.write_all(&[0; SMALL]).await.unwrap();
    })
    .await;
    let why = "the peer sent other bytes back";
    assert_eq!(failed(&rows), [("round_trips", why)]);
    assert_eq!(peer.about, "a?[2J");
}

#[tokio::test]
async fn wrong_sums_fail_their_checks_and_a_forged_blob_the_rest() {
    let (rows, _) = against(b"", async |stream, session| {
        let answer = verdict(Some("no\x1b[2J"));
        until_the_answer(stream, session, &answer).await;
        give(stream).await.unwrap();
        session.say(stream, Step::Sum, &[0; 32]).await.unwrap();
        let blob = [&[0], &[0x5a; 1024][..]].concat();
        session.say(stream, Step::Memory, &blob).await.unwrap();
    })
    .await;
    let failed = failed(&rows);
    let [there, back, (check, why)] = failed[..] else {
        panic!("{failed:?}");
    };
    assert_eq!(there, ("bytes_to_the_peer", "no?[2J"));
    let differs = "the SHA-256 of the bytes differs here";
    assert_eq!(back, ("bytes_from_the_peer", differs));
    assert_eq!(check, "memory_of_the_peer");
    assert!(why.contains("blob"), "{why}");
}

#[tokio::test]
async fn memory_of_another_size_is_not_touched() {
    let device = Device::open("pf0").unwrap();
    let access = Access::LOCAL_READ_WRITE | Access::RDMA_WRITE;
    let small = Mmap::builder().device(&device).access(access);
    let small = small.alloc(64).unwrap();
    let blob = small.export_rdma(&device).unwrap();
    let (rows, _) = against(b"", async |stream, session| {
        until_the_memory(stream, session, &blob).await;
    })
    .await;
    let why = format!("the peer lends {} bytes, not 4096", small.len());
    assert_eq!(failed(&rows), [("memory_of_the_peer", &*why)]);
}

#[tokio::test]
async fn what_the_memory_does_not_permit_fails() {
    let device = Device::open("pf0").unwrap();
    let access = Access::LOCAL_READ_WRITE | Access::RDMA_READ;
    let unwritable = Mmap::builder().device(&device).access(access);
    let unwritable = unwritable.alloc(lent::LENT).unwrap();
    let blob = unwritable.export_rdma(&device).unwrap();
    let (rows, _) = against(b"", async |stream, session| {
        until_the_memory(stream, session, &blob).await;
    })
    .await;
    let failed = failed(&rows);
    assert_eq!((failed.len(), failed[0].0), (1, "one-sided_write"));
}

#[tokio::test]
async fn a_message_of_another_step_ends_the_checks() {
    let (rows, _) = against(b"", async |stream, session| {
        echo(stream).await.unwrap();
        take(stream).await.unwrap();
        session.hear(stream, Step::Sum).await.unwrap();
        session.say(stream, Step::Ended, &[]).await.unwrap();
    })
    .await;
    let why = "the peer broke the protocol";
    assert_eq!(failed(&rows), [("bytes_to_the_peer", why)]);
}
