//! Injects each kind of fault into every example: the example ends in time, reports the fault in
//! one line, and accepts no wrong result.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use sha2::Digest;
use support::programs::*;

const LEN: usize = (3 << 20) + 17;

/// How an example ends under a fault script.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    /// The example exits with status 0.
    Good,
    /// It exits with status 1 and prints a message that contains these words.
    Bad(&'static str),
}

use End::{Bad, Good};

/// The messages for an error of the device, for a job that does not complete in time, and for a
/// broken queue.
const ERROR: End = Bad("input/output operation failed (vendor code 0x88)");
const LATE: End = Bad("within ");
const BROKEN: End = Bad("queue of this WorkQ");

/// Returns the fault scripts. `alone` means that the example awaits each job before it submits the
/// next, so that no job follows one that waits for others.
fn scripts(alone: bool) -> [(&'static str, End); 8] {
    [
        ("pass", Good),
        ("error:IoFailed:0x88", ERROR),
        ("pass error:IoFailed:0x88", ERROR),
        ("delay:20ms", Good),
        ("queue-full", Good),
        match alone {
            true => ("behind:1", LATE),
            false => ("behind:2", Good),
        },
        ("lost", LATE),
        ("queue", BROKEN),
    ]
}

/// Runs an example under each script, with and without defer mode, and checks its output. `good` is
/// on its stdout if it succeeds. `check` examines the files that it leaves; the number identifies
/// the run.
fn through(
    name: &str,
    scripts: &[(&str, End)],
    good: &str,
    parallel: usize,
    arguments: impl Fn(&mut Command, usize) + Sync,
    check: impl Fn(End, usize) + Sync,
) {
    let runs = 2 * scripts.len();
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= runs {
                break;
            }
            let ((script, end), defer) = (scripts[number / 2], number % 2);
            let mut command = example(name);
            command
                .env("TOKIO_DOCA_SOFT_FAULTS", script)
                .env("TOKIO_DOCA_SOFT_DEFER", defer.to_string());
            arguments(&mut command, number);
            let output = run(&mut command);
            let (out, err) = (text(&output.stdout), text(&output.stderr));
            let case = format!("{name}, script \"{script}\", defer {defer}: {err}{out}");
            let claims = out.contains(good);
            match end {
                Good => {
                    assert_eq!((output.status.code(), err), (Some(0), ""), "{case}");
                    assert!(claims, "{case}");
                }
                Bad(cause) => {
                    assert_eq!(output.status.code(), Some(1), "{case}");
                    assert_eq!(err.lines().count(), 1, "{case}");
                    assert!(err.starts_with(&format!("{name}: ")), "{case}");
                    assert!(err.contains(cause) && !err.contains("panic"), "{case}");
                    assert!(!claims, "{case}");
                }
            }
            check(end, number);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..parallel {
            scope.spawn(work);
        }
    });
}

/// Runs an example without arguments, which leaves no files, under each script, and checks its
/// output.
fn bare(name: &str, scripts: &[(&str, End)], good: &str, parallel: usize) {
    through(name, scripts, good, parallel, |_, _| (), |_, _| ());
}

/// How many examples run at once if they sleep while they wait.
const MANY: usize = 6;
/// How many examples run at once if they spin.
const FEW: usize = 2;

#[test]
fn dma_copy_says_what_failed_and_verifies_only_what_is_whole() {
    let folder = Folder::new();
    let (src, bytes) = folder.file("src", LEN);
    let dst = |number| folder.path(&format!("dst{number}"));
    let mut scripts = scripts(false).to_vec();
    scripts.push(("behind:1000000", LATE));
    through(
        "dma_copy",
        &scripts,
        "verified: SRC, and DST",
        MANY,
        |command, number| {
            command.args([&src, &dst(number)]);
        },
        |end, number| {
            let whole = fs::read(dst(number)).unwrap() == bytes;
            assert!(whole || end != Good, "run {number}: DST differs");
        },
    );
    // The message also tells the state of DST after a failure.
    let mut command = example("dma_copy");
    command
        .env("TOKIO_DOCA_SOFT_FAULTS", "pass*3 error:IoFailed:0x88")
        .args([&src, &dst(0)]);
    let output = run(&mut command);
    let says = format!("{} is no complete copy, do not use it", dst(0).display());
    assert!(text(&output.stderr).contains(&says), "{output:?}");
}

#[test]
fn own_epoll_loop_does_not_wait_for_ever() {
    let mut scripts = scripts(false).to_vec();
    scripts.push(("behind:1000000", LATE));
    bare("own_epoll_loop", &scripts, "each told once", MANY);
}

#[test]
fn cancel_and_timeout_notices_what_nobody_awaited() {
    // The future was dropped, so only the statistics show that its job failed.
    let failed = Bad("1 copy failed that no task awaited");
    let scripts = scripts(true).map(|(script, end)| match end {
        // The second job is awaited only briefly: it may or may not have failed by then.
        ERROR if script.starts_with("pass") => (script, Bad("failed")),
        ERROR | BROKEN => (script, failed),
        end => (script, end),
    });
    bare("cancel_and_timeout", &scripts, "shut down: ", MANY);
}

#[test]
fn busy_poll_ends_though_nothing_wakes_it() {
    bare("busy_poll", &scripts(true), "event: ", FEW);
}

#[test]
fn hybrid_ends_in_each_mode() {
    bare("hybrid", &scripts(true), "busy-poll: ", FEW);
}

#[test]
fn sha_file_prints_a_sum_of_the_whole_file_or_none() {
    let folder = Folder::new();
    let (file, bytes) = folder.file("file", LEN);
    let digest = sha2::Sha256::digest(&bytes);
    let sum: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    through(
        "sha_file",
        &scripts(true),
        &sum,
        MANY,
        |command, _| {
            command.arg(&file);
        },
        |_, _| (),
    );
}

#[test]
fn graph_says_what_failed_and_verifies_only_what_is_whole() {
    // An inline job is not behind any other, so the script passes the next jobs to the engine.
    let scripts = scripts(false).map(|(script, end)| match script {
        "behind:2" => ("behind:2 pass*2", end),
        script => (script, end),
    });
    bare("graph", &scripts, "instances verified", MANY);
}

#[test]
fn graph_pipeline_says_what_failed_and_its_replicas_are_whole_or_said_not_to_be() {
    let folder = Folder::new();
    let (file, bytes) = folder.file("file", LEN);
    let replicas =
        |number| ["left", "right"].map(|side: &str| folder.path(&format!("{side} {number}")));
    through(
        "graph_pipeline",
        &scripts(false),
        "verify failures: 0",
        MANY,
        |command, number| {
            command.arg(&file).args(replicas(number));
        },
        |end, number| {
            for replica in replicas(number) {
                let whole = fs::read(replica).unwrap() == bytes;
                assert!(whole || end != Good, "run {number}: a replica differs");
            }
        },
    );
}

#[test]
fn examples_without_jobs_of_the_device_are_as_ever() {
    let scripts = scripts(false).map(|(script, _)| (script, Good));
    bare("custom_provider", &scripts, "with 8 keys", FEW);
    let folder = Folder::new();
    let (file, _) = folder.file("file", LEN);
    through(
        "zero_copy_bytes",
        &scripts,
        "verified: ",
        FEW,
        |command, _| {
            command.arg(&file);
        },
        |_, _| (),
    );
}

/// The server runs with the same script. Either side may report the failure first.
#[test]
fn rdma_pingpong_does_not_wait_for_ever() {
    if is_emulated("start what a program starts itself") {
        return;
    }
    let scripts = [
        ("lost", LATE),
        ("error:IoFailed", Bad("")),
        ("pass*3 queue", Bad("")),
        ("pass*5 queue-full", Good),
    ];
    let short = |command: &mut Command, _| _ = command.args(["-n", "300"]);
    through("rdma_pingpong", &scripts, "event: ", FEW, short, |_, _| ());
}

#[test]
fn every_example_names_what_it_cannot_read_in_a_script() {
    let folder = Folder::new();
    let (file, _) = folder.file("file", 5);
    let mut known = 0;
    for name in [
        "busy_poll",
        "cancel_and_timeout",
        "cc_client",
        "cc_server",
        "crc32c",
        "custom_provider",
        "dma_copy",
        "dma_copy_dpu",
        "dma_copy_host",
        "file_to_rdma",
        "file_transfer_dpu",
        "file_transfer_host",
        "graph",
        "graph_pipeline",
        "hybrid",
        "epoll_rdma",
        "own_epoll_loop",
        "pinned_echo",
        "rdma_pingpong",
        "rdma_read",
        "rdma_send_receive",
        "rdma_send_receive_immediate",
        "rdma_write",
        "rdma_write_immediate",
        "sha_file",
        "stream_echo",
        "sync_event_dpu",
        "sync_event_host",
        "zero_copy_bytes",
    ] {
        let says = "TOKIO_DOCA_SOFT_FAULTS cannot be taken: \"oops\" is no fault";
        let scripts = [("pass oops", Bad(says))];
        let arguments = |command: &mut Command, _| match name {
            "dma_copy" => _ = command.args([&file, &folder.path("dst")]),
            "file_to_rdma" => _ = command.args(["send", "127.0.0.1:1"]).arg(&file),
            "crc32c" | "sha_file" | "zero_copy_bytes" => _ = command.arg(&file),
            "file_transfer_dpu" | "file_transfer_host" => _ = command.arg("-f").arg(&file),
            "sync_event_host" => _ = command.args(["-d", "0b:00.0"]),
            "sync_event_dpu" => _ = command.args(["-d", "03:00.0", "-r", "0b:00.0"]),
            "rdma_send_receive" | "rdma_send_receive_immediate" => _ = command.arg("send"),
            "rdma_read" | "rdma_write" | "rdma_write_immediate" => _ = command.arg("responder"),
            _ => {}
        };
        through(name, &scripts, "verified", FEW, arguments, |_, _| ());
        known += 1;
    }
    let all = fs::read_dir(root().join("examples")).unwrap();
    // Folders contain code that several examples share.
    let is_program = |path: &Path| path.extension().is_some_and(|it| it == "rs");
    let programs = all.filter(|entry| is_program(&entry.as_ref().unwrap().path()));
    assert_eq!(programs.count(), known, "an example is not tested here");
}
