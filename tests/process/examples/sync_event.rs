//! Tests of the sync event examples: two processes in every combination of flavours, started in
//! either order, and what they refuse.

use std::process::{Child, Command, Stdio};

use support::programs::*;

/// The host's functions, one for each run: the name at which its two processes meet is derived from
/// it.
const FUNCTIONS: [&str; 5] = ["0b:00.0", "0b:00.2", "0b:00.3", "0000:0b:00.0", "0b:00.2"];

fn host(function: &str, flags: &[&str]) -> Command {
    let mut command = example("sync_event_host");
    command.args(["-d", function]).args(flags);
    command
}

fn dpu(function: &str, flags: &[&str]) -> Command {
    let mut command = example("sync_event_dpu");
    command.env("TOKIO_DOCA_SOFT", "dpu");
    command.args(["-d", "03:00.0", "-r", function]).args(flags);
    command
}

fn start(mut command: Command) -> Child {
    command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn said(child: Child) -> String {
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_signal_goes_there_and_back() {
    const FLAVOURS: [&[&str]; 3] = [
        &["-l", "60"],
        &["--async", "--qdepth", "2"],
        &["--atomic", "--async"],
    ];
    let mut functions = FUNCTIONS.iter().cycle();
    for (number, of_host) in FLAVOURS.into_iter().enumerate() {
        for (other, of_dpu) in FLAVOURS.into_iter().enumerate() {
            let function = functions.next().unwrap();
            let (host, dpu) = (host(function, of_host), dpu(function, of_dpu));
            let (host, dpu) = match (number + other) % 2 {
                0 => {
                    let host = start(host);
                    (host, start(dpu))
                }
                _ => {
                    let dpu = start(dpu);
                    (start(host), dpu)
                }
            };
            let (host, dpu) = (said(host), said(dpu));
            let lines = [
                "Connecting to DPU",
                "Connection to DPU has been established",
                "Exported DOCA Sync Event has been sent to DPU successfully",
                "Signaling sync event for DPU",
                "Waiting for sync event to be signaled from DPU",
                "Done",
            ];
            assert_eq!(
                host.lines().collect::<Vec<_>>(),
                lines,
                "{of_host:?} {of_dpu:?}"
            );
            let lines = [
                "Listening to host",
                "Received blob from host",
                "Waiting for sync event to be signaled from host",
                "Signaling sync event for host",
                "Done",
            ];
            assert_eq!(
                dpu.lines().collect::<Vec<_>>(),
                lines,
                "{of_host:?} {of_dpu:?}"
            );
        }
    }
}

#[test]
fn what_is_wrong_is_said_in_one_line() {
    let line = |mut command: Command| {
        let output = command.output().unwrap();
        assert!(matches!(output.status.code(), Some(1 | 2)));
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        text
    };
    for (command, names) in [
        (example("sync_event_host"), "--dev-pci-addr is needed"),
        (host("0b:00.0", &["-r", "0b:00.0"]), "no flag \"-r\""),
        (host("0b:00.0", &["--qdepth"]), "--qdepth needs a value"),
        (
            host("0b:00.0", &["--async", "--qdepth", "many"]),
            "--qdepth many",
        ),
        (host("0b:00.0", &["-l", "loud"]), "-l loud"),
        (host("nowhere", &[]), "nowhere"),
        (dpu("nothing", &[]), "nothing"),
    ] {
        let text = line(command);
        assert!(text.contains(names), "{text}");
    }
    let mut without = example("sync_event_dpu");
    without
        .env("TOKIO_DOCA_SOFT", "dpu")
        .args(["-d", "03:00.0"]);
    assert!(line(without).contains("--rep-pci-addr is needed"));
    for name in ["sync_event_host", "sync_event_dpu"] {
        for flag in ["-h", "--help", "-v", "--version"] {
            let output = example(name).arg(flag).output().unwrap();
            assert!(output.status.success());
            assert!(String::from_utf8(output.stdout).unwrap().contains(name));
        }
    }
}
