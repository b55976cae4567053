//! Tests of the commands of `block_store`.

use std::net::SocketAddr;
use std::path::Path;

use bytes::Bytes;
use support::programs::*;
use support::{LIMIT, in_time, run as run_future};
use tokio::net::TcpStream;
use tokio_doca::rdma::RdmaState;
use tokio_doca::{BufPool, Device, Mmap, Rdma, WorkQ};
use zerocopy::IntoBytes;

use super::chaos::{Pair, listens};
use super::client::Client;
use super::layout::{Ask, Verb};
use crate::hostile::handshakes::{ghost, nobodies};

const STARTS: &str = "start what a program starts itself";

fn on_primary(pair: &Pair, words: &[&str]) -> (i32, Vec<u8>, String) {
    let mut command = example("block_store");
    command.arg(words[0]).arg(pair.addrs[0].to_string());
    // The command ends at its own time limit, and may write more than a pipe holds.
    let ended = command.args(&words[1..]).output().unwrap();
    let error = text(&ended.stderr).to_owned();
    (ended.status.code().unwrap(), ended.stdout, error)
}

fn reads(pair: &Pair, bytes: &[u8]) {
    let read = on_primary(pair, &["read", &bytes.len().to_string()]);
    assert!(read == (0, bytes.to_vec(), String::new()), "{}", read.2);
}

fn writes(pair: &Pair, file: &Path) {
    let written = on_primary(pair, &["write", file.to_str().unwrap()]);
    assert_eq!((written.0, &*written.2), (0, ""));
}

#[test]
fn a_file_is_read_as_it_was_written_whichever_side_was_killed_since() {
    if is_emulated(STARTS) {
        return;
    }
    let (folder, mut pair) = (Folder::new(), Pair::start());
    let (one, first) = folder.file("one", 1_000_000);
    let (other, second) = folder.file("other", 700_001);
    writes(&pair, &one);
    reads(&pair, &first);
    pair.kill_primary();
    reads(&pair, &first);
    // Writes without a replica.
    pair.kill_replica();
    writes(&pair, &other);
    reads(&pair, &second);
    pair.start_replica();
    pair.kill_primary();
    reads(&pair, &second);
}

/// The memory of the killed replica may be gone before its connection ends.
#[test]
fn writes_and_reads_go_on_when_the_replica_is_killed_between_two_writes() {
    if is_emulated(STARTS) {
        return;
    }
    let (folder, mut pair) = (Folder::new(), Pair::start());
    for round in 0..8 {
        let (before, _) = folder.file(&format!("before{round}"), 60_000);
        let (after, written) = folder.file(&format!("after{round}"), 60_000 + round);
        writes(&pair, &before);
        pair.kill_replica();
        writes(&pair, &after);
        reads(&pair, &written);
        pair.start_replica();
    }
}

/// More such clients come than the primary has places for.
#[test]
fn clients_that_connect_to_nobody_take_no_place() {
    if is_emulated(STARTS) {
        return;
    }
    let (folder, pair) = (Folder::new(), Pair::start());
    for blob in nobodies().iter().cycle().take(100) {
        assert_eq!(ghost(pair.addrs[0], b"", blob).unwrap(), 0);
    }
    let (file, written) = folder.file("one", 1000);
    writes(&pair, &file);
    reads(&pair, &written);
}

/// Requests block 0, and posts no receive for the answer.
async fn asks(addr: SocketAddr, device: &Device, workq: &WorkQ, pool: &BufPool) -> Rdma {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let rdma = Rdma::builder(device).attach(workq).unwrap();
    rdma.handshake_connect(&mut stream).await.unwrap();
    let request = pool.alloc().await;
    let ask = Ask::new(Verb::Get, 0, 7, 1);
    request.extend_from_slice(ask.as_bytes()).unwrap();
    rdma.send(&request).await.unwrap();
    rdma
}

/// The answers to these clients wait for 2 s, but a put of the block does not wait for them.
#[test]
fn clients_that_take_no_answer_keep_no_block_from_being_written() {
    const CLIENTS: usize = 20;
    if is_emulated(STARTS) {
        return;
    }
    let (folder, pair) = (Folder::new(), Pair::start());
    let (file, written) = folder.file("one", 60_000);
    writes(&pair, &file);
    run_future(async {
        let device = Device::open_default().unwrap();
        let workq = WorkQ::builder().build().unwrap();
        let memory = Mmap::builder().device(&device).alloc(64 * CLIENTS).unwrap();
        let pool = BufPool::builder(&memory).element_size(64).build().unwrap();
        let addr = pair.addrs[0];
        let mut client = Client::new(addr, &device, &workq, LIMIT).unwrap();
        for version in 2.. {
            let clients = (0..CLIENTS).map(|_| asks(addr, &device, &workq, &pool));
            let clients = futures::future::join_all(clients).await;
            let put = client.put(0, &Bytes::from(written.clone())).await;
            assert_eq!(put.unwrap(), version);
            let waits = |rdma: &Rdma| rdma.state() == RdmaState::Connected;
            // On a loaded machine these clients may have ended before the block was written.
            if clients.iter().all(waits) {
                break;
            }
            assert!(version < 20, "the block is written once a client has ended");
        }
    });
    reads(&pair, &written);
}

#[test]
fn a_client_that_asks_for_nothing_loses_its_place() {
    if is_emulated(STARTS) {
        return;
    }
    let mut command = example("block_store");
    command.args(["serve", "127.0.0.1:0", "--idle", "100"]);
    let server = Running::start(command);
    let addr = listens(&server);
    run_future(async {
        let device = Device::open_default().unwrap();
        let workq = WorkQ::builder().build().unwrap();
        let rdma = Rdma::builder(&device).attach(&workq).unwrap();
        let mut stream = TcpStream::connect(addr).await.unwrap();
        rdma.handshake_connect(&mut stream).await.unwrap();
        let mut watch = rdma.watch();
        let ends = watch.wait_for(|state| state != RdmaState::Connected);
        in_time("the idle client is hung up on", ends).await;
    });
}

#[test]
fn wrong_arguments_are_named_in_one_line() {
    if is_emulated(STARTS) {
        return;
    }
    let pair = Pair::start();
    for (words, part) in [
        (&["read", "1"][..], "block 0 was never written"),
        (&["read", "some"], "invalid digit"),
        (&["write", "/nowhere"], "No such file"),
        (&["read", "1", "--fast", "x"], "there is no flag --fast"),
        (&["read", "1", "--blocks", "0"], "there are 1 to 1048576"),
        (&["erase", "1"], "what? replica, serve, write or read"),
    ] {
        let (code, out, error) = on_primary(&pair, words);
        assert_eq!((code, &out[..]), (1, &b""[..]), "{words:?}: {error}");
        let lines = error.lines().count();
        assert!(error.contains(part) && lines == 1, "{words:?}: {error}");
    }
    let (folder, mut other) = (Folder::new(), example("block_store"));
    let (large, _) = folder.file("large", 65 * 65_536);
    let (code, _, error) = on_primary(&pair, &["write", large.to_str().unwrap()]);
    assert!(
        code == 1 && error.contains("there are 64 blocks"),
        "{error}"
    );
    // Another primary, and one with another block count, must wait.
    let there = pair.addrs[1].to_string();
    other.args([
        "serve",
        "127.0.0.1:0",
        "--blocks",
        "64",
        "--replica",
        &there,
    ]);
    let other = Running::start(other);
    assert!(other.line().contains("another primary is connected"));
}
