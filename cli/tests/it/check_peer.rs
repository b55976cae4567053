//! Tests `tokio-doca check --peer` and `tokio-doca check serve`.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use serde_json::Value;

use crate::support::{Folder, Ran, Server, TOKEN, demand_tokens, interrupted};

fn serve(folder: &Folder, args: &[&str]) -> Server {
    Server::new(folder, &[&["check", "serve"], args].concat())
}

/// Runs a check over TCP: the software device cannot connect without its folder.
fn by_tcp(folder: &Folder, addr: &str, args: &[&str]) -> Ran {
    let mut command = folder.command(["check", "--peer", addr]);
    command.env("TOKIO_DOCA_SOFT_SOCKET", folder.path("nowhere"));
    Ran::of(command.args(args).output().unwrap())
}

/// Returns the state of each row, as `subject: check: state`.
fn states(report: &Value) -> Vec<String> {
    let rows = report["rows"].as_array().unwrap();
    let text = |row: &Value, name: &str| row[name].as_str().unwrap().to_owned();
    rows.iter()
        .map(|row| ["subject", "check", "state"].map(|name| text(row, name)))
        .map(|row| row.join(": "))
        .collect()
}

#[test]
fn two_processes_pass_all_that_the_software_device_has() {
    let folder = Folder::new();
    let mut server = serve(&folder, &["pf1"]);
    let line = server.line();
    assert!(line.starts_with("not by rdma_cm: rdma_cm "), "{line}");
    let ran = folder.run(["check", "--peer", &server.addr]);
    assert_eq!(ran.err, "");
    let text = ran.done();
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    for part in [
        "RDMA, by the exchange\n",
        "  passed         connects: by RDMA, from 127.0.0.1:",
        "  not supported  path: device pf0 has no network",
        "  passed         round trips: 100 of 64 bytes, smallest ",
        "  passed         bytes to the peer: 16777216 bytes, ",
        "  passed         bytes from the peer: 16777216 bytes, ",
        "  passed         memory of the peer: 4096 bytes ",
        "  passed         one-sided write: 4096 bytes ",
        "  passed         one-sided read: 4096 bytes, which are those written ",
        "  passed         atomics: fetch and add, compare and swap ",
        "  passed         end: heard by both sides ",
        "\nRDMA, by rdma_cm\n  not supported  connects: rdma_cm connects adapters only",
        "\n11 checks in ",
        ": 9 passed, 2 not supported, 0 failed\n",
        &format!("\npeer         {}\n", server.addr),
        "\nits device   pf1 (soft), ",
    ] {
        assert!(text.contains(part), "{part:?} is missing: {text}");
    }
    let line = server.line();
    assert!(line.starts_with("checked with 127.0.0.1:"), "{line}");
    assert!(line.ends_with(" by RDMA\n"), "{line}");
    server.stop().done();
}

#[test]
fn json_has_a_row_for_each_check_of_a_peer() {
    let folder = Folder::new();
    let server = serve(&folder, &[]);
    let ran = folder.run(["check", "pf1", "--peer", &server.addr, "--json"]);
    let report: Value = serde_json::from_str(&ran.done()).unwrap();
    assert_eq!(
        states(&report),
        [
            "rdma: connects: passed",
            "rdma: path: not_supported",
            "rdma: round_trips: passed",
            "rdma: bytes_to_the_peer: passed",
            "rdma: bytes_from_the_peer: passed",
            "rdma: memory_of_the_peer: passed",
            "rdma: one-sided_write: passed",
            "rdma: one-sided_read: passed",
            "rdma: atomics: passed",
            "rdma: end: passed",
            "rdma_cm: connects: not_supported",
        ]
    );
    let summary = &report["summary"];
    for (name, count) in [
        ("checks", 11),
        ("passed", 9),
        ("not_supported", 2),
        ("failed", 0),
        ("not_run", 0),
    ] {
        assert_eq!(summary[name], count, "{name}");
    }
    assert_eq!(report["device"], "pf1");
    assert_eq!(report["peer"]["address"], server.addr);
}

#[test]
fn tcp_is_checked_where_there_is_no_rdma_and_the_report_says_why() {
    let folder = Folder::new();
    let mut server = serve(&folder, &[]);
    server.line();
    let ran = by_tcp(&folder, &server.addr, &["--json"]);
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    ran.refused(
        1,
        &["a check failed: rdma: connects: ", "nowhere is no folder"],
    );
    assert_eq!(
        states(&report),
        [
            "tcp: connects: passed",
            "tcp: round_trips: passed",
            "tcp: bytes_to_the_peer: passed",
            "tcp: bytes_from_the_peer: passed",
            "tcp: end: passed",
            "rdma: connects: failed",
            "rdma_cm: connects: not_supported",
        ]
    );
    assert!(server.line().ends_with(" by TCP\n"));
}

#[test]
fn both_sides_must_have_the_same_token() {
    let folder = Folder::new();
    let server = serve(&folder, &["--token", TOKEN]);
    let check = |more: &[&str]| folder.run([&["check", "--peer", &server.addr], more].concat());
    let cannot = format!("cannot check with {}: ", server.addr);
    check(&[]).refused(1, &[&cannot, "this server demands a token"]);
    let other = ["--token", "another token of sixteen"];
    check(&other).refused(
        1,
        &[
            &cannot,
            "its token is another one: give both sides the same",
        ],
    );
    check(&["--token", TOKEN]).done();
    server.stop_after_another_token();
    demand_tokens(&folder, &["check"]);
}

#[test]
fn a_command_of_another_kind_is_refused() {
    let folder = Folder::new();
    folder.write("a", "bytes");
    let server = serve(&folder, &[]);
    let ran = folder.run(["send", "a", &server.addr]);
    ran.refused(1, &["this server speaks with tokio-doca check --peer"]);
    std::fs::create_dir(folder.path("out")).unwrap();
    let receiver = Server::new(&folder, &["serve", "--out", "out"]);
    let ran = folder.run(["check", "--peer", &receiver.addr]);
    ran.refused(1, &["this receiver speaks with tokio-doca send"]);
}

/// Starts a listener that calls `meet` with each connection, and returns its address.
fn odd_listener(mut meet: impl FnMut(TcpStream) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    thread::spawn(move || listener.incoming().for_each(|peer| meet(peer.unwrap())));
    addr
}

#[test]
fn what_is_no_server_is_told_in_one_sentence() {
    let folder = Folder::new();
    let mut kept = Vec::new();
    for (addr, part) in [
        ("127.0.0.1:1".to_owned(), "no service listens"),
        (odd_listener(drop), ""),
        (
            odd_listener(|mut peer| {
                let _ = peer.write_all(&[0xff; 4096]);
            }),
            "",
        ),
        (odd_listener(move |peer| kept.push(peer)), "within 5s"),
    ] {
        let ran = folder.run(["check", "--peer", &addr]);
        assert_eq!(ran.out, "");
        ran.refused(1, &[&format!("cannot check with {addr}: "), part]);
    }
}

/// Forwards one connection to the server, until the client has sent `most` bytes. Then cuts the
/// connection, or stays silent to both sides.
struct Proxy {
    addr: String,
    thread: JoinHandle<()>,
}

fn proxy(server: &Server, most: u64, cuts: bool) -> Proxy {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let to = server.addr.clone();
    let thread = thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        let server = TcpStream::connect(to).unwrap();
        let [mut from, mut back] = [&server, &client].map(|it| it.try_clone().unwrap());
        let is_silent = Arc::new(AtomicBool::new(false));
        let silent = Arc::clone(&is_silent);
        let answers = thread::spawn(move || {
            let mut bytes = [0; 1 << 16];
            while let Ok(len @ 1..) = from.read(&mut bytes) {
                // The server may give up first. The client does not notice that.
                if !silent.load(Ordering::SeqCst) && back.write_all(&bytes[..len]).is_err() {
                    break;
                }
            }
        });
        std::io::copy(&mut (&client).take(most), &mut &server).unwrap();
        if cuts {
            client.shutdown(Shutdown::Both).unwrap();
        } else {
            is_silent.store(true, Ordering::SeqCst);
            // Read until the client gives up and closes the connection.
            let _ = std::io::copy(&mut &client, &mut std::io::sink());
        }
        let _ = server.shutdown(Shutdown::Both);
        answers.join().unwrap();
    });
    Proxy { addr, thread }
}

#[test]
fn a_peer_that_hangs_up_or_goes_silent_fails_its_check_alone() {
    let folder = Folder::new();
    let server = serve(&folder, &[]);
    for (most, cuts, last, why) in [
        (5 << 20, true, "tcp: bytes_to_the_peer: failed", ""),
        (
            3000,
            false,
            "tcp: round_trips: failed",
            "it took longer than 10 s: the peer is silent",
        ),
    ] {
        let proxy = proxy(&server, most, cuts);
        let ran = by_tcp(&folder, &proxy.addr, &["--json"]);
        proxy.thread.join().unwrap();
        let report: Value = serde_json::from_str(&ran.out).unwrap();
        let states = states(&report);
        let failed = states.iter().position(|it| it == last);
        let failed = failed.unwrap_or_else(|| panic!("{states:?}"));
        let row = &report["rows"][failed];
        assert!(row["why"].as_str().unwrap().contains(why), "{row}");
        // The remaining checks over TCP are skipped: the next row is that of RDMA.
        assert_eq!(states[failed + 1], "rdma: connects: failed");
        assert_eq!(report["summary"]["not_run"], 0);
        ran.refused(1, &["2 of ", " checks failed; the report says why"]);
        folder.run(["check", "--peer", &server.addr]).done();
    }
    let ran = server.stop();
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let early = ran.err.matches("the check ended early: ").count();
    assert_eq!((early, ran.err.lines().count()), (2, 2), "{}", ran.err);
}

#[test]
fn strangers_keep_nobody_out_of_a_check() {
    let folder = Folder::new();
    let server = serve(&folder, &["--token", TOKEN]);
    let silent: Vec<_> = (0..8)
        .map(|_| TcpStream::connect(&server.addr).unwrap())
        .collect();
    let mut loud = TcpStream::connect(&server.addr).unwrap();
    loud.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let ran = folder.run(["check", "--peer", &server.addr, "--token", TOKEN]);
    ran.done();
    server.stop();
    drop((silent, loud));
}

#[test]
fn a_signal_ends_a_check_with_a_peer() {
    let folder = Folder::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let mut peer = None;
    let ran = interrupted(folder.command(["check", "--peer", &addr]), |_| {
        let (mut silent, _) = listener.accept().unwrap();
        // The client waits for an answer now.
        silent.read_exact(&mut [0]).unwrap();
        peer = Some(silent);
        true
    });
    assert!(ran.out.contains("0 failed, 20 not made"), "{}", ran.out);
    ran.refused(1, &["interrupted: 20 of 20 checks were not made"]);
}
