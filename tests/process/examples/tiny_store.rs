//! Tests of `tiny_store`, the service that the guide builds: its processes are killed and find each
//! other again.

use std::fs::{self, File};
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::programs::*;
use support::{block_until, in_time};
use tokio::io::AsyncReadExt;
use tokio_doca::stream::RdmaConnector;
use tokio_doca::{Device, WorkQ};

use crate::hostile::bystander::{Attack, is_served_beside};
use crate::hostile::messengers::{SILENT, say_nothing};

fn store(words: &[&str]) -> Command {
    let mut command = example("tiny_store");
    command.args(words);
    command
}

/// Returns an address that is free at the moment, for a process that is restarted at it.
fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

/// Starts a process, and writes its errors to a file.
fn start(words: &[&str], log: &Path) -> Running {
    start_by(store(words), words[1], log)
}

fn start_by(mut command: Command, addr: &str, log: &Path) -> Running {
    let running = {
        command.stderr(File::create(log).unwrap());
        Running::start(command)
    };
    assert_eq!(running.line(), format!("listening on {addr}"));
    running
}

fn says(log: &Path, text: &str) -> bool {
    fs::read_to_string(log).unwrap().contains(text)
}

fn put(addr: &str, block: &str, data: &str) {
    let mut client = store(&["put", addr, block])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = client.stdin.take().unwrap();
    input.write_all(data.as_bytes()).unwrap();
    drop(input);
    assert!(client.wait().unwrap().success());
}

#[track_caller]
fn has(addr: &str, block: &str, data: &str) {
    let output = run(&mut store(&["get", addr, block]));
    assert_eq!((text(&output.stdout), text(&output.stderr)), (data, ""));
}

#[test]
fn blocks_survive_each_process_in_turn() {
    if is_emulated("start what a program starts itself") {
        return;
    }
    let folder = Folder::new();
    let (log, unread) = (folder.path("primary"), folder.path("replica"));
    let (addr, replica_addr) = (&*free_address(), &*free_address());
    let mut replica = start(&["replica", replica_addr], &unread);
    let serve = ["serve", addr, replica_addr];
    let mut primary = start(&serve, &log);
    put(addr, "5", "hello");
    put(addr, "5", "hello again");
    has(addr, "5", "hello again");

    // The primary continues alone, and brings the next replica up to date.
    replica.kill();
    put(addr, "6", "written without a replica");
    let mut replica = start(&["replica", replica_addr], &unread);
    block_until("the replica is whole", || {
        says(&log, "the replica is whole")
    });
    primary.kill();
    let mut primary = start(&serve, &log);
    has(addr, "5", "hello again");
    has(addr, "6", "written without a replica");

    // The same again, with the data that the second primary has read from the replica.
    put(addr, "7", "by the second primary");
    primary.kill();
    let _primary = start(&serve, &log);
    has(addr, "6", "written without a replica");
    has(addr, "7", "by the second primary");
    replica.kill();
    has(addr, "7", "by the second primary");
}

/// The strangers outnumber the replica's descriptors. A primary keeps its replica as long as it
/// lives, so each visit is by a new primary.
#[test]
fn silent_strangers_keep_no_primary_out() {
    if is_emulated("start what a program starts itself") {
        return;
    }
    let folder = Folder::new();
    let (log, unread) = (folder.path("primary"), folder.path("replica"));
    let (addr, replica_addr) = (&*free_address(), &*free_address());
    let replica = limited("-n 64", &store(&["replica", replica_addr]));
    let _replica = start_by(replica, replica_addr, &unread);
    let mut visit = async || start(&["serve", addr, replica_addr], &log).kill();
    support::run(async {
        let replica: SocketAddr = replica_addr.parse().unwrap();
        let silent = async move |attack: &Attack| {
            say_nothing(|| TcpStream::connect(replica), b"", attack).await;
        };
        is_served_beside("silence", SILENT, &mut visit, silent).await;
    });
}

#[test]
fn a_client_that_asks_for_nothing_loses_its_place() {
    if is_emulated("start what a program starts itself") {
        return;
    }
    let folder = Folder::new();
    let (addr, log) = (&*free_address(), folder.path("log"));
    let mut server = store(&["serve", addr]);
    server.env("IDLE_MS", "100");
    let _server = start_by(server, addr, &log);
    support::run(async {
        let device = Device::open_default().unwrap();
        let workq = WorkQ::builder().build().unwrap();
        let connector = RdmaConnector::new(&device, &workq).unwrap();
        let addr: SocketAddr = addr.parse().unwrap();
        let mut stream = connector.connect(addr).await.unwrap();
        let read = in_time("the idle client is hung up on", stream.read(&mut [0])).await;
        assert_eq!(read.unwrap_or(0), 0);
    });
    block_until("it is said why", || says(&log, "no request in time"));
}

#[test]
fn a_server_that_is_interrupted_ends_in_order() {
    let addr = &*free_address();
    let folder = Folder::new();
    let mut server = start(&["serve", addr], &folder.path("log"));
    put(addr, "0", "hello");
    let pid = Pid::from_raw(server.child.id() as i32);
    kill(pid, Signal::SIGINT).unwrap();
    assert!(server.child.wait().unwrap().success());
}

#[test]
fn what_is_wrong_is_said_in_a_sentence() {
    let (addr, nobody) = (&*free_address(), &*free_address());
    let folder = Folder::new();
    let _server = start(&["serve", addr], &folder.path("log"));
    for (words, says) in [
        (&["get", addr, "1024"][..], "there are 1024 blocks"),
        (&["get", addr, "many"], "invalid digit found in string"),
        (&["get", "nowhere", "1"], "invalid socket address syntax"),
        (&["serve", addr, nobody], "the replica"),
        (&["serve"], "tiny_store replica ADDR"),
    ] {
        let output = run(&mut store(words));
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), ""));
        let said = text(&output.stderr);
        assert!(said.contains(says), "{words:?}: {said}");
    }
    let mut client = store(&["put", addr, "5"]);
    client.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut client = client.spawn().unwrap();
    let mut input = client.stdin.take().unwrap();
    // The program may end before it has read everything.
    _ = input.write_all(&[b'x'; 4097]);
    drop(input);
    let output = client.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("a block has 4096 bytes"), "{said}");
}
