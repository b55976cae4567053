//! Tests `tokio-doca bench`. No test depends on how fast anything is.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use io_uring::IoUring;
use serde_json::Value;

use crate::support::{Folder, Ran, interrupted, limited, threads_named};

const KINDS: [&str; 11] = [
    "dma",
    "sha",
    "crc",
    "rdma-send",
    "rdma-read",
    "rdma-write",
    "rdma-atomic",
    "sync-event",
    "channel",
    "stream",
    "graph",
];

/// Runs `bench` with the shortest possible points, and with these environment variables.
fn run(args: &[&str], variables: &[(&str, &str)]) -> Ran {
    let folder = Folder::new();
    let mut command = folder.command(["bench"]);
    command.args(args);
    if !args.contains(&"--duration") {
        command.args(["--duration", "0.01"]);
    }
    command.envs(variables.iter().copied());
    Ran::of(command.output().unwrap())
}

#[track_caller]
fn report(args: &[&str]) -> Value {
    let ran = run(&[args, &["--json"]].concat(), &[]);
    assert_eq!(ran.err, "");
    serde_json::from_str(&ran.done()).unwrap()
}

/// Checks that the figures of a row are consistent.
#[track_caller]
fn plausible(row: &Value) {
    let number = |name: &str| row[name].as_f64().unwrap();
    assert!(number("operations") > 0.0, "{row}");
    let rate = number("operations") / number("seconds");
    assert!((number("operations_per_second") / rate - 1.0).abs() < 0.01);
    let of = |name: &str| row["latency_ns"][name].as_u64().unwrap();
    let latency = ["p50", "p99", "p99_9", "max"].map(of);
    assert!(latency[0] > 0 && latency.is_sorted(), "{row}");
    assert!(number("cpu_ns_per_operation") >= 0.0, "{row}");
    assert!(number("allocations_per_operation") >= 0.0, "{row}");
}

#[test]
fn each_kind_is_measured_in_each_mode_alone_and_with_others_in_flight() {
    for kind in KINDS {
        let modes = "event,busy-poll,hybrid";
        let report = report(&[kind, "--depth", "1,4", "--mode", modes]);
        assert_eq!(
            (&report["kind"], &report["device"], &report["not_run"]),
            (&kind.into(), &"pf0".into(), &0.into())
        );
        let points = report["points"].as_array().unwrap();
        let of = |row: &Value| (row["mode"].clone(), row["depth"].clone());
        let mut wanted = Vec::new();
        for mode in modes.split(',') {
            wanted.extend([1, 4].map(|depth| (mode.into(), depth.into())));
        }
        assert_eq!(points.iter().map(of).collect::<Vec<_>>(), wanted, "{kind}");
        for row in points {
            plausible(row);
            let moves = row["bytes_per_second"].as_f64().unwrap() > 0.0;
            assert_eq!(moves, kind != "sync-event", "{row}");
            assert!(row["vs"].is_null(), "{row}");
        }
    }
}

#[test]
fn sizes_are_measured_in_order_by_several_threads() {
    for kind in ["dma", "stream"] {
        let report = report(&[kind, "--size", "64..256,100", "--threads", "2"]);
        assert_eq!(report["threads"], 2);
        let points = report["points"].as_array().unwrap();
        let sizes = points.iter().map(|row| row["size"].as_u64().unwrap());
        assert_eq!(sizes.collect::<Vec<_>>(), [64, 128, 256, 100]);
        points.iter().for_each(plausible);
    }
}

#[test]
fn others_are_measured_in_turn_and_have_ratios() {
    for (kind, vs) in [
        ("dma", &["memcpy", "spawn_blocking", "io_uring"][..]),
        ("sha", &["memcpy", "spawn_blocking"]),
        ("crc", &["spawn_blocking", "io_uring", "memcpy"]),
        ("graph", &["io_uring", "memcpy", "spawn_blocking"]),
        ("rdma-send", &["tcp", "unix"]),
        ("channel", &["unix", "tcp"]),
        ("stream", &["tcp", "unix"]),
    ] {
        let report = report(&[kind, "--depth", "2", "--vs", &vs.join(",")]);
        let point = &report["points"][0];
        plausible(point);
        let rows = point["vs"].as_array().unwrap();
        let names = rows.iter().map(|row| row["name"].as_str().unwrap());
        assert_eq!(names.collect::<Vec<_>>(), vs, "{kind}");
        for row in rows {
            // The system may refuse io_uring, as in a container.
            if row["name"] == "io_uring" && !row["not_measured"].is_null() {
                assert!(IoUring::new(2).is_err(), "{row}");
                continue;
            }
            plausible(row);
            assert!(row["ratio"].as_f64().unwrap() > 0.0, "{row}");
            assert!(row["not_measured"].is_null(), "{row}");
        }
    }
}

/// Tests that no lane waits forever: a lane may reap the completions of other lanes' reads from the
/// ring that they share.
#[test]
fn no_lane_of_a_ring_sleeps_for_ever() {
    let depth = ["--size", "64", "--depth", "32,256"];
    let args = [&["dma"], &depth[..], &["--vs", "io_uring"]].concat();
    for row in report(&args)["points"].as_array().unwrap() {
        let why = &row["vs"][0]["not_measured"];
        assert!(why.is_null() || IoUring::new(2).is_err(), "{why}");
    }
}

#[test]
fn what_the_system_refuses_has_a_row_that_says_why() {
    let folder = Folder::new();
    let args = [
        "bench",
        "stream",
        "--depth",
        "4",
        "--vs",
        "unix",
        "--duration",
        "0.01",
        "--json",
    ];
    // Raise the limit of open files step by step: at first no run is possible, then the kind alone,
    // then the kind and the baseline.
    for files in (10..100).step_by(2) {
        let command = folder.command(args);
        let mut limited = limited(&format!("-n {files}"), &command);
        let ran = Ran::of(limited.output().unwrap());
        if ran.code != Some(0) {
            ran.refused(1, &[]);
            continue;
        }
        let report: Value = serde_json::from_str(&ran.out).unwrap();
        let row = &report["points"][0]["vs"][0];
        assert_eq!(row["not_measured"], "Too many open files", "{files}");
        return assert!(row["operations"].is_null() && row["ratio"].is_null());
    }
    panic!("no limit was too low for the sockets alone");
}

#[test]
fn tables_fit_a_screen() {
    let args = ["dma", "--size", "1,1M", "--vs", "memcpy,spawn_blocking"];
    let text = run(&args, &[]).done();
    assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    let begins = |words: &str| text.lines().filter(|line| line.starts_with(words)).count();
    assert_eq!(begins("dma by pf0 (soft), event, 1 thread, 0.01 s"), 1);
    assert_eq!(begins("        1      1"), 1, "{text}");
    assert_eq!(begins("       1M      1"), 1, "{text}");
    assert_eq!((begins("  memcpy "), begins("  spawn_blocking ")), (2, 2));
    assert!(text.contains(" ratio\n") && text.contains("x\n"), "{text}");
    let text = run(&["sync-event", "--mode", "event,hybrid"], &[]).done();
    assert_eq!(text.matches("cpu/op").count(), 2, "{text}");
    assert!(!text.contains("ratio"), "{text}");
    let help = run(&["--help"], &[]).done();
    assert!(help.lines().count() <= 40, "{help}");
    for kind in KINDS {
        assert!(help.contains(kind), "{kind}: {help}");
    }
}

#[test]
fn wrong_usage_is_one_sentence_with_the_way_out() {
    for (args, part) in [
        (&["copies"][..], "rdma-send, rdma-read"),
        (&["dma", "--size", "0"], "64..1M"),
        (&["dma", "--size", "4K..64"], "64..1M"),
        (&["dma", "--size", "1G"], "1 to 128M"),
        (&["dma", "--depth", "0"], "1..64"),
        (&["dma", "--depth", "1K"], "1 to 4096"),
        (&["dma", "--mode", "poll"], "event, busy-poll, hybrid"),
        (&["dma", "--threads", "65"], "write 1 to 64"),
        (&["dma", "--threads", "x"], "write 1 to 64"),
        (&["dma", "--duration", "61"], "0.01 to 60"),
        (
            &["dma", "--vs", "rsync"],
            "memcpy, spawn_blocking, io_uring, tcp, unix",
        ),
        (
            &["dma", "--vs", "memcpy,tcp"],
            "dma with memcpy or spawn_blocking or io_uring",
        ),
        (&["stream", "--vs", "memcpy"], "stream with tcp or unix"),
        (&["rdma-read", "--vs", "tcp"], "leave --vs out"),
        (&["rdma-atomic", "--size", "8"], "leave --size out"),
        (&["sync-event", "--size", "8"], "leave --size out"),
        (&["channel", "--size", "4081"], "say at most 4080"),
        (
            &["dma", "--size", "1M", "--depth", "4096"],
            "lower --size, --depth",
        ),
        (
            &["stream", "--threads", "64", "--depth", "64"],
            "1024 MiB at most",
        ),
        (
            &[
                "dma",
                "--size",
                "1..64K",
                "--depth",
                "1..1024",
                "--mode",
                "event,hybrid",
            ],
            "name fewer",
        ),
    ] {
        run(args, &[]).refused(2, &[part]);
    }
}

#[test]
fn what_the_device_lacks_is_said_before_anything_is_measured() {
    run(&["dma", "--device", "pf9"], &[]).refused(1, &["no device \"pf9\"", "pf0"]);
    let limits = [("TOKIO_DOCA_SOFT_LIMITS", "bluefield2")];
    let parts = ["4194304 bytes", "say at most 1048576"];
    run(&["dma", "--size", "64..4M"], &limits).refused(2, &parts);
    let dpu = [("TOKIO_DOCA_SOFT", "dpu")];
    let parts = ["device p0 has no channel", "--device"];
    run(&["channel"], &dpu).refused(1, &parts);
}

#[test]
fn a_device_that_fails_ends_it_with_the_points_before() {
    let faults = [("TOKIO_DOCA_SOFT_FAULTS", "error:IoFailed")];
    let ran = run(&["dma", "--json"], &faults);
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(
        (&report["points"], &report["not_run"]),
        (&Value::Array(vec![]), &1.into())
    );
    ran.refused(1, &["input/output operation failed"]);
}

#[test]
fn a_signal_ends_it_with_the_points_that_have_ended() {
    let folder = Folder::new();
    let args = [
        "bench",
        "dma",
        "--depth",
        "1,2",
        "--duration",
        "60",
        "--json",
    ];
    let ran = interrupted(folder.command(args), |threads| {
        !threads_named(threads, "bench").is_empty()
    });
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(
        (&report["points"], &report["not_run"]),
        (&Value::Array(vec![]), &2.into())
    );
    ran.refused(1, &["interrupted: 2 of 2 points were not measured"]);
}

#[test]
#[ignore = "needs strace"]
fn needs_strace_a_refused_ring_is_named_as_in_manuals() {
    let folder = Folder::new();
    for (error, says) in [
        ("EPERM", "EPERM: Operation not permitted"),
        ("ENOSYS", "ENOSYS: Function not implemented"),
    ] {
        let mut command = Command::new("strace");
        let inject = format!("inject=io_uring_setup:error={error}");
        command.args([
            "-f",
            "-o",
            "/dev/null",
            "-e",
            "trace=io_uring_setup",
            "-e",
            &inject,
        ]);
        command.arg(env!("CARGO_BIN_EXE_tokio-doca"));
        command.args([
            "bench",
            "dma",
            "--duration",
            "0.01",
            "--vs",
            "io_uring",
            "--json",
        ]);
        let ran = Ran::of(command.current_dir(folder.path("")).output().unwrap());
        let report: Value = serde_json::from_str(&ran.done()).unwrap();
        let row = &report["points"][0]["vs"][0];
        assert_eq!(row["not_measured"], says);
    }
}

/// Runs `bench --trace` with `script` as the program `strace`.
fn with_strace(script: &str) -> Value {
    let folder = Folder::new();
    folder.write("strace", format!("#!/bin/sh\n{script}\n"));
    let mode = fs::Permissions::from_mode(0o700);
    fs::set_permissions(folder.path("strace"), mode).unwrap();
    let args = ["bench", "stream", "--duration", "0.01", "--trace", "--json"];
    let mut command = folder.command(args);
    let path = format!("{}:/usr/bin:/bin", folder.path("").display());
    let ran = Ran::of(command.env("PATH", path).output().unwrap());
    let report: Value = serde_json::from_str(&ran.done()).unwrap();
    plausible(&report["points"][0]);
    report["points"][0]["system_calls"].clone()
}

#[test]
fn system_calls_are_counted_under_strace_or_the_report_says_why_not() {
    let refuses = "echo 'strace: ptrace(PTRACE_TRACEME, ...): Operation not permitted' >&2; exit 1";
    let why = with_strace(refuses)["not_measured"].clone();
    let wanted = "strace is refused: ptrace(PTRACE_TRACEME, ...): Operation not permitted";
    assert_eq!(why, wanted);
    assert_eq!(
        with_strace("exit 0")["not_measured"],
        "strace shows no round"
    );
    let none = run(&["dma", "--trace"], &[("PATH", "/nowhere")]).done();
    assert!(
        none.contains("not measured: strace is not installed"),
        "{none}"
    );
    // A container may refuse the real strace.
    let calls = report(&["stream", "--trace"])["points"][0]["system_calls"].clone();
    match calls["not_measured"].as_str() {
        None => assert!(calls["per_operation"].as_f64().unwrap() > 0.1, "{calls}"),
        Some(why) => assert!(why.starts_with("strace is "), "{why}"),
    }
    let calls = report(&["stream"])["points"][0]["system_calls"].clone();
    assert_eq!(calls["not_measured"], "without --trace");
    let text = run(&["stream", "--duration", "0.01"], &[]).done();
    let end = "\n\nnot measured: system calls, without --trace\n";
    assert!(text.ends_with(end), "{text}");
}
