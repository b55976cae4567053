//! Tests `tokio-doca bench --peer` and `tokio-doca bench serve`. No test depends on how fast
//! anything is.

use std::fs;
use std::io::Write;
use std::net::TcpStream;

use serde_json::Value;

use crate::support::{Folder, Ran, Server, TOKEN, begun, demand_tokens, threads_named};

const KINDS: [&str; 5] = [
    "rdma-send",
    "rdma-read",
    "rdma-write",
    "rdma-atomic",
    "stream",
];

fn serve(folder: &Folder, args: &[&str]) -> Server {
    Server::new(folder, &[&["bench", "serve"], args].concat())
}

/// Measures the shortest possible points with the server at `addr`.
fn bench(folder: &Folder, args: &[&str], addr: &str) -> Ran {
    let short = ["--duration", "0.01", "--peer", addr];
    folder.run([&["bench"], args, &short].concat())
}

#[test]
fn each_kind_is_measured_with_another_process() {
    let folder = Folder::new();
    let server = serve(&folder, &["--device", "pf1"]);
    for kind in KINDS {
        let modes = "event,busy-poll,hybrid";
        let args = [kind, "--depth", "1,4", "--mode", modes, "--json"];
        let ran = bench(&folder, &args, &server.addr);
        assert_eq!(ran.err, "");
        let report: Value = serde_json::from_str(&ran.done()).unwrap();
        assert_eq!(
            (&report["kind"], &report["not_run"]),
            (&kind.into(), &0.into())
        );
        let points = report["points"].as_array().unwrap();
        assert_eq!(points.len(), 6, "{kind}");
        for row in points {
            assert!(row["operations"].as_u64().unwrap() > 0, "{row}");
            assert!(row["latency_ns"]["p50"].as_u64().unwrap() > 0, "{row}");
        }
        let peer = &report["run"]["peer"];
        assert_eq!(peer["address"], server.addr);
        let about = peer["about"].as_str().unwrap();
        assert!(about.starts_with("pf1 (soft), Linux "), "{about}");
        let version = concat!(", tokio-doca ", env!("CARGO_PKG_VERSION"));
        assert!(about.ends_with(version), "{about}");
    }
    let args = ["rdma-send", "--threads", "3", "--size", "1,64K"];
    bench(&folder, &args, &server.addr).done();
    let ran = server.stop();
    assert_eq!((ran.code, &*ran.err), (Some(0), ""));
    for line in [
        "rdma-atomic of 8 bytes, depth 4",
        "stream of 64 bytes, depth 1",
        "rdma-send of 65536 bytes, depth 1",
    ] {
        assert!(ran.out.contains(line), "{line}: {}", ran.out);
    }
}

#[test]
fn tcp_to_the_peer_is_measured_in_turn() {
    let folder = Folder::new();
    let mut server = serve(&folder, &[]);
    for kind in ["rdma-send", "stream"] {
        let args = [kind, "--depth", "3", "--threads", "2"];
        let args = [&args[..], &["--vs", "tcp", "--json"]].concat();
        let report = bench(&folder, &args, &server.addr).done();
        let report: Value = serde_json::from_str(&report).unwrap();
        let row = &report["points"][0]["vs"][0];
        assert_eq!(row["name"], "tcp");
        assert!(row["operations"].as_u64().unwrap() >= 6, "{row}");
        assert!(row["ratio"].as_f64().unwrap() > 0.0, "{row}");
    }
    // Each of the 2 threads has a connection for its messages, 3 for its streams, and twice 3 for
    // TCP.
    let lines: Vec<String> = (0..2 + 6 + 12).map(|_| server.line()).collect();
    let tcp = lines
        .iter()
        .filter(|it| it.ends_with("tcp of 64 bytes, depth 1\n"));
    assert_eq!(tcp.count(), 12, "{lines:?}");
    let ran = server.stop();
    assert_eq!((ran.code, &*ran.err), (Some(0), ""));
}

#[test]
fn every_report_says_what_the_peer_was() {
    let folder = Folder::new();
    let server = serve(&folder, &[]);
    let with = format!("rdma-read by pf0 (soft) with {}", server.addr);
    let args = ["rdma-read", "--html", "page.html"];
    let text = bench(&folder, &args, &server.addr).done();
    assert!(text.starts_with(&format!("{} is pf0 (soft), ", server.addr)));
    assert!(text.contains(&with), "{text}");
    assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    let page = String::from_utf8(folder.read("page.html")).unwrap();
    let note = format!("The other side is {}. ", server.addr);
    for part in [&with, &note, "<dt>its device</dt><dd>pf0 (soft), "] {
        assert!(page.contains(part), "{part}");
    }
    let args = ["rdma-read", "--json"];
    folder.write("far.json", bench(&folder, &args, &server.addr).done());
    folder.write("near.json", bench(&folder, &args, "self").done());
    let near: Value = serde_json::from_slice(&folder.read("near.json")).unwrap();
    assert!(near["run"]["peer"].is_null());
    let compare = ["bench", "compare", "far.json", "near.json"];
    let text = folder.run(compare).done();
    let [far, near] = [0, 1].map(|at| text.lines().nth(at).unwrap());
    assert!(
        far.contains(&format!("(soft) with {}, ", server.addr)),
        "{text}"
    );
    assert!(near.contains("by pf0 (soft), "), "{text}");
}

#[test]
fn both_sides_must_have_the_same_token() {
    let folder = Folder::new();
    let server = serve(&folder, &["--token", TOKEN]);
    let cannot = format!("cannot measure with {}: ", server.addr);
    let measure = |more: &[&str]| bench(&folder, &[&["rdma-read"], more].concat(), &server.addr);
    measure(&[]).refused(1, &[&cannot, "this server demands a token"]);
    let other = ["--token", "another token of sixteen"];
    measure(&other).refused(1, &[&cannot, "its token is another one: give both sides"]);
    measure(&["--token", TOKEN]).done();
    // The run under strace gets the token as well.
    let text = measure(&["--token", TOKEN, "--trace"]).done();
    assert!(!text.contains("token"), "{text}");
    server.stop_after_another_token();
    demand_tokens(&folder, &["bench", "stream"]);
}

#[test]
fn what_has_no_peer_is_told_before_anything_is_measured() {
    let folder = Folder::new();
    for kind in ["dma", "sha", "crc", "graph", "channel", "sync-event"] {
        let parts = [kind, "leave --peer out", "rdma-atomic, stream have one"];
        bench(&folder, &[kind], "127.0.0.1:1").refused(2, &parts);
    }
    for (args, part) in [
        (
            &["stream", "--vs", "tcp,unix"][..],
            "unix stays on this host: with --peer, compare with tcp",
        ),
        (&["stream", "--depth", "65"], "bench serve has 64 at most"),
        (
            &["stream", "--depth", "33", "--vs", "tcp"],
            "66 connections at once, and bench serve has 64 at most",
        ),
    ] {
        bench(&folder, args, "127.0.0.1:1").refused(2, &[part]);
    }
    let ran = bench(&folder, &["stream"], "127.0.0.1:1");
    assert_eq!(ran.out, "");
    ran.refused(
        1,
        &[
            "cannot measure with 127.0.0.1:1: no service listens at 127.0.0.1:1: ",
            "start tokio-doca bench serve there",
        ],
    );
    let ran = bench(&folder, &["stream", "--token", TOKEN], "nowhere.invalid");
    ran.refused(1, &["cannot measure with nowhere.invalid: no address for"]);
}

#[test]
fn strangers_and_other_commands_keep_nobody_out() {
    let folder = Folder::new();
    let server = serve(&folder, &[]);
    let silent: Vec<_> = (0..8)
        .map(|_| TcpStream::connect(&server.addr).unwrap())
        .collect();
    let mut loud = TcpStream::connect(&server.addr).unwrap();
    loud.write_all(&[0xff; 4096]).unwrap();
    let ran = folder.run(["check", "--peer", &server.addr]);
    ran.refused(1, &["this server speaks with tokio-doca bench --peer"]);
    bench(&folder, &["rdma-send"], &server.addr).done();
    let checks = Server::new(&folder, &["check", "serve"]);
    let ran = bench(&folder, &["rdma-send"], &checks.addr);
    ran.refused(1, &["this server speaks with tokio-doca check --peer"]);
    assert_eq!(server.stop().code, Some(0));
    drop((silent, loud));
}

#[test]
fn a_server_that_is_killed_fails_the_point_with_the_way_out() {
    let folder = Folder::new();
    for kind in ["rdma-send", "rdma-write", "stream"] {
        let server = serve(&folder, &[]);
        let args = ["bench", kind, "--duration", "60", "--peer", &server.addr];
        let child = begun(folder.command([&args[..], &["--json"]].concat()), measures);
        server.signal("-KILL");
        let ran = Ran::of(child.wait_with_output().unwrap());
        let report: Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!(report["not_run"], 1);
        assert_eq!(report["run"]["peer"]["address"], server.addr);
        let cannot = format!("cannot measure with {}: it was lost: ", server.addr);
        ran.refused(
            1,
            &[&cannot, "if bench serve has ended there, start it again"],
        );
    }
}

/// Returns true once the measuring thread has used 20 ticks of CPU time. Only the operations take
/// that long.
fn measures(threads: &str) -> bool {
    let thread = threads_named(threads, "bench").into_iter().next();
    let stat = thread.and_then(|it| fs::read_to_string(it.join("stat")).ok());
    let stat = stat.unwrap_or_default();
    let fields = stat.rsplit(") ").next().unwrap_or_default();
    let fields = fields.split(' ').skip(11).take(2);
    fields.filter_map(|it| it.parse::<u64>().ok()).sum::<u64>() >= 20
}

#[test]
fn a_signal_ends_the_server_and_says_what_it_cuts_off() {
    let folder = Folder::new();
    let server = serve(&folder, &[]);
    let args = [
        "bench",
        "rdma-send",
        "--duration",
        "60",
        "--peer",
        &server.addr,
    ];
    let child = begun(folder.command(args), measures);
    server
        .stop()
        .refused(1, &["interrupted: 1 connection of bench --peer cut off"]);
    let ran = Ran::of(child.wait_with_output().unwrap());
    ran.refused(1, &["it was lost: "]);
}
