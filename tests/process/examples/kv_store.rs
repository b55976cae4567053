//! Tests of `kv_store`: its commands, a server that is killed, and clients that send anything.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::device::adapter;
use support::programs::*;
use support::{block_until, run as run_future};
use tokio_doca::error::ErrorKind;
use tokio_doca::mem::{Access, BufInventory, RemoteMmap};
use tokio_doca::{Device, Mmap, Rdma, WorkQ};

use crate::hostile::handshakes::{ghost, nobodies};
use crate::kv_store::service::{Service, on_device};

impl Service {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = example("kv_store");
        command
            .arg(words[0])
            .arg(&self.address)
            .args(&words[1..])
            .args(on_device());
        command
    }

    /// Runs a command. Returns its output and its exit status.
    fn says(&self, words: &[&str]) -> (String, i32) {
        let output = run(&mut self.command(words));
        assert_eq!(text(&output.stderr), "", "{words:?}");
        (
            text(&output.stdout).to_owned(),
            output.status.code().unwrap(),
        )
    }

    #[track_caller]
    fn does(&self, words: &[&str], out: &str) {
        assert_eq!(self.says(words), (out.to_owned(), 0), "{words:?}");
    }

    fn meet(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(support::LIMIT)).unwrap();
        stream
    }
}

fn failed(output: &Output) -> String {
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), ""));
    text(&output.stderr).to_owned()
}

const STARTS: &str = "start what a program starts itself";

#[test]
fn values_are_put_read_and_deleted_and_outlive_their_server() {
    if is_emulated(STARTS) {
        return;
    }
    let mut service = Service::start(&[]);
    assert_eq!(service.says(&["get", "colour"]), (String::new(), 3));
    service.does(&["put", "colour", "green"], "");
    service.does(&["get", "colour"], "green");
    service.does(&["put", "colour", "blue"], "");
    service.does(&["put", "empty", ""], "");
    service.kill_server();
    service.does(&["get", "colour"], "blue");
    service.does(&["get", "empty"], "");
    service.does(&["delete", "colour"], "");
    assert_eq!(service.says(&["delete", "colour"]), (String::new(), 3));
    service.kill_server();
    assert_eq!(service.says(&["get", "colour"]), (String::new(), 3));
    service.does(&["get", "empty"], "");
}

#[test]
fn a_server_ends_with_its_keeper() {
    if is_emulated(STARTS) {
        return;
    }
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let mut service = Service::start(&[]);
        service.does(&["put", "colour", "green"], "");
        let keeper = Pid::from_raw(service.keeper.child.id() as i32);
        kill(keeper, signal).unwrap();
        service.keeper.child.wait().unwrap();
        block_until("nobody listens there any more", || {
            TcpListener::bind(&service.address).is_ok()
        });
    }
}

/// Another program listens at the port, so that the next servers end with an error.
#[test]
fn values_outlive_servers_that_end_with_an_error() {
    if is_emulated(STARTS) {
        return;
    }
    let mut service = Service::start_with(&[], Stdio::piped());
    service.does(&["put", "colour", "green"], "");
    let keeper = Pid::from_raw(service.keeper.child.id() as i32);
    kill(keeper, Signal::SIGSTOP).unwrap();
    kill(service.server, Signal::SIGKILL).unwrap();
    // The port is free once the server is gone.
    let other = loop {
        match TcpListener::bind(&service.address) {
            Ok(other) => break other,
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse),
        }
    };
    kill(keeper, Signal::SIGCONT).unwrap();
    let mut said = BufReader::new(service.keeper.child.stderr.take().unwrap()).lines();
    let mut failed = said.by_ref().map(Result::unwrap);
    failed.find(|line| line.contains("exit status: 1")).unwrap();
    drop(other);
    service.wait();
    service.does(&["get", "colour"], "green");
}

#[test]
fn a_load_says_how_fast_gets_were_in_each_mode_and_by_tcp() {
    if is_emulated(STARTS) {
        return;
    }
    let service = Service::start(&[]);
    let load = ["load", "--clients", "3", "--keys", "20", "--seconds", "0"];
    for (flag, name) in [
        ("--busy", "busy"),
        ("--hybrid", "hybrid"),
        ("--threads=", "event"),
        ("--tcp", "tcp"),
    ] {
        let flag = if flag == "--threads=" {
            &["--threads", "1"][..]
        } else {
            &[flag]
        };
        for puts in ["0", "20"] {
            let (out, code) = service.says(&[&load, flag, &["--puts", puts]].concat());
            assert_eq!(code, 0, "{out}");
            assert!(out.starts_with(&format!("{name}: 3 clients")), "{out}");
            let parts = [
                " gets/s, p50 ",
                " us, p99 ",
                " puts/s; CPU per get: clients ",
            ];
            assert!(parts.iter().all(|part| out.contains(part)), "{out}");
        }
    }
}

#[test]
fn wrong_arguments_and_values_are_named_in_one_line() {
    if is_emulated(STARTS) {
        return;
    }
    let service = Service::start(&["--memory", "8388608"]);
    let (long, key) = ("x".repeat(65_537), "k".repeat(257));
    for (words, part) in [
        (&["put", "key"][..], "what?"),
        (&["fetch", "key"], "what?"),
        (&["get", "key", "--fast"], "there is no flag \"--fast\""),
        (&["get", "key", "--patience"], "--patience needs a value"),
        (
            &["load", "--patience", "5"],
            "\"load\" does not take --patience",
        ),
        (
            &["get", "key", "--clients", "5"],
            "\"get\" does not take --clients",
        ),
        (&["load", "--clients", "0"], "--clients 0: at least 1"),
        (
            &["get", "key", "--patience", "soon"],
            "--patience: invalid digit",
        ),
        (
            &["put", "key", &long],
            "a key has 1 to 256 bytes, and a value 65536",
        ),
        (&["put", &key, "value"], "a key has 1 to 256 bytes"),
    ] {
        let error = failed(&run(&mut service.command(words)));
        assert!(
            error.contains(part) && error.lines().count() == 1,
            "{words:?}: {error}"
        );
    }
    let load = ["load", "--value", "60000", "--keys", "1000"];
    let error = failed(&run(&mut service.command(&load)));
    assert!(error.contains("full: the log takes "), "{error}");
    let mut command = example("kv_store");
    command.args(["serve", "127.0.0.1:0", "--memory", "100000"]);
    let error = failed(&run(&mut command));
    assert!(error.contains("it takes 8388608 or more"), "{error}");
    let mut command = example("kv_store");
    command.args(["get", "127.0.0.1:1", "key", "--patience", "50"]);
    let error = failed(&run(&mut command));
    assert!(error.contains("not done within 50ms"), "{error}");
    let help = run(example("kv_store").arg("-h"));
    assert!(help.status.success() && text(&help.stdout).contains("kv_store serve ADDRESS"));
}

/// Beyond the limit of file sizes the kernel would send SIGXFSZ.
#[test]
fn a_keeper_names_the_limit_of_files_and_dies_of_no_signal() {
    if is_emulated(STARTS) {
        return;
    }
    let mut command = example("kv_store");
    command.args(["serve", "127.0.0.1:0"]);
    let error = failed(&run(&mut limited("-f 1024", &command)));
    assert!(
        error.contains("ulimit -f") && error.lines().count() == 1,
        "{error}"
    );
}

/// The server refuses such clients or disconnects them, and serves the others.
#[test]
fn clients_that_say_something_else_harm_nobody() {
    if is_emulated(STARTS) {
        return;
    }
    let service = Service::start(&[]);
    service.does(&["put", "colour", "green"], "");
    let frame = |bytes: &[u8]| [&(bytes.len() as u32).to_be_bytes(), bytes].concat();
    // A key that is longer than the request, and a key of no bytes.
    let mut longer = [0; 16];
    (longer[0], longer[2]) = (2, 200);
    let mut none = [0; 16];
    none[0] = 1;
    let (huge, unknown) = ([0xff; 4], frame(&[9; 64]));
    for bytes in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"Rwhatever this is, it is no blob of an endpoint",
        b"R\0\0\0\0",
        &[b"T", &huge[..]].concat(),
        &[b"T", &unknown[..]].concat(),
        &[b"T", &frame(&longer)[..]].concat(),
        &[b"T", &frame(&none)[..]].concat(),
        &[b"T", &frame(&[])[..]].concat(),
    ] {
        let mut stream = service.meet();
        stream.write_all(bytes).unwrap();
        // The server may have disconnected by now.
        _ = stream.shutdown(Shutdown::Write);
        // The server sends only its half of a handshake, and disconnects.
        let mut said = Vec::new();
        let ended = stream.read_to_end(&mut said);
        assert!(ended.is_err() || said.len() < 2048, "{bytes:?}: {said:?}");
    }
    let silent = service.meet();
    service.does(&["get", "colour"], "green");
    drop(silent);
    let server = service.server;
    kill(server, None).expect("it is the same server");
}

/// More such clients come than the server has places for.
#[test]
fn clients_that_connect_to_nobody_take_no_place() {
    if is_emulated(STARTS) || adapter().is_some() {
        return;
    }
    let service = Service::start(&[]);
    service.does(&["put", "colour", "green"], "");
    let addr = service.address.parse().unwrap();
    for blob in nobodies().iter().cycle().take(100) {
        assert_eq!(ghost(addr, b"R", blob).unwrap(), 0);
    }
    service.does(&["get", "colour"], "green");
}

#[test]
fn a_client_cannot_write_the_memory() {
    if is_emulated(STARTS) {
        return;
    }
    let service = Service::start(&[]);
    service.does(&["put", "colour", "green"], "");
    let device = match adapter() {
        Some(name) => Device::open(&name).unwrap(),
        None => Device::open_default().unwrap(),
    };
    run_future(async {
        let workq = WorkQ::builder().build().unwrap();
        let rdma = Rdma::builder(&device).attach(&workq).unwrap();
        let mut stream = service.meet();
        stream.write_all(b"R").unwrap();
        stream.set_nonblocking(true).unwrap();
        let mut stream = tokio::net::TcpStream::from_std(stream).unwrap();
        rdma.handshake_connect(&mut stream).await.unwrap();
        use tokio::io::AsyncReadExt;
        let mut blob = vec![0; stream.read_u32_le().await.unwrap() as usize];
        stream.read_exact(&mut blob).await.unwrap();
        let memory = RemoteMmap::from_export(&device, &blob).await.unwrap();
        assert_eq!(memory.access(), Access::RDMA_READ);
        let mmap = Mmap::builder().device(&device).alloc(64).unwrap();
        let zeroes = BufInventory::with_capacity(1)
            .buf_filled(&mmap, ..)
            .unwrap();
        let refused = rdma.write(&zeroes, &memory.buf(..64).unwrap()).await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::NotPermitted);
    });
    service.does(&["get", "colour"], "green");
}
