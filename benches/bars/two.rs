//! N7 and N10: connects and round trips between two processes, over streams, TCP and Unix sockets.
//!
//! A child process is the connecting side, and starts the other side. The cost of both is counted:
//! that of one connect is the difference of two runs with different numbers of connects.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use super::pipe::{Calling, EVENT, Listening, Over, Pipe, runtime};
use super::report::{Goal::AtMost, Report};
use super::{scenario, sys};

/// The bytes of a round trip, and those that pass before a connection is closed.
const TRIP: usize = 64;
const FIRST: usize = 5;

/// Echoes what arrives until the other side ends, and ends too.
async fn serve(mut pipe: Pipe) {
    let mut came = [0; TRIP];
    loop {
        match pipe.read(&mut came).await.expect("a read") {
            0 => break,
            len => pipe.write_all(&came[..len]).await.expect("a write"),
        }
    }
    pipe.shutdown().await.expect("the end");
}

async fn trips<const LEN: usize>(pipe: &mut Pipe, count: usize) {
    let mut came = [0; LEN];
    for _ in 0..count {
        pipe.write_all(&[7; LEN]).await.expect("a write");
        pipe.read_exact(&mut came).await.expect("an answer");
    }
}

/// Ends a stream in order, and waits for the end of the other side.
async fn close(mut pipe: Pipe) {
    pipe.shutdown().await.expect("the end");
    assert_eq!(pipe.read(&mut [0]).await.expect("the end"), 0);
}

/// Runs the scenario in this process: `two-connects-rdma`, `two-trips-unix-64`, or the same with
/// `-served` appended for the other side.
pub(crate) fn run(scenario: &str, jobs: u64) {
    let mut words = scenario.split('-').skip(1);
    let what = words.next().expect("what");
    let over = match words.next().expect("over") {
        "tcp" => Over::Tcp,
        "unix" => Over::Unix,
        _ => EVENT,
    };
    let connections = words.next().and_then(|word| word.parse().ok()).unwrap_or(2);
    if scenario.ends_with("-served") {
        sys::pin(Some(1));
        return runtime().block_on(async {
            let listening = Listening::new(over, connections).await;
            println!("{}", listening.addr());
            let all = match what {
                "trips" => connections,
                _ => 1 + jobs as usize,
            };
            let mut streams = JoinSet::new();
            for _ in 0..all {
                streams.spawn(serve(listening.accept().await));
            }
            streams.join_all().await;
        });
    }
    let mut served = Command::new(std::env::current_exe().expect("a path"))
        .args(["scenario", &format!("{scenario}-served"), &jobs.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .expect("another process");
    let mut said = BufReader::new(served.stdout.take().expect("a pipe"));
    let mut addr = String::new();
    said.read_line(&mut addr).expect("its address");
    sys::pin(Some(0));
    runtime().block_on(async {
        let calling = Calling::new(over, connections, addr.trim());
        if what == "connects" {
            // One connection stays open beside the others.
            let beside = calling.connect().await;
            for _ in 0..jobs {
                let mut pipe = calling.connect().await;
                trips::<FIRST>(&mut pipe, 1).await;
                close(pipe).await;
            }
            return close(beside).await;
        }
        let mut pipes = Vec::new();
        for _ in 0..connections {
            let mut pipe = calling.connect().await;
            trips::<TRIP>(&mut pipe, 8).await;
            pipes.push(pipe);
        }
        let (each, start) = (jobs as usize / connections, Instant::now());
        let mut tasks = JoinSet::new();
        for mut pipe in pipes {
            tasks.spawn(async move {
                trips::<TRIP>(&mut pipe, each).await;
                pipe
            });
        }
        let pipes = tasks.join_all().await;
        let took = start.elapsed().as_nanos() as f64 / (each * connections) as f64;
        println!("{took}");
        for pipe in pipes {
            close(pipe).await;
        }
    });
    assert!(served.wait().expect("it ends").success());
}

/// Runs a scenario. Returns its output, and the CPU time of its processes in nanoseconds.
fn measured(scenario: &str, jobs: u64) -> (String, f64) {
    let cpu = || {
        let usage = getrusage(UsageWho::RUSAGE_CHILDREN).expect("they are ours");
        (usage.user_time().num_nanoseconds() + usage.system_time().num_nanoseconds()) as f64
    };
    let before = cpu();
    let output = Command::new(std::env::current_exe().expect("a path"))
        .args(["scenario", scenario, &jobs.to_string()])
        .output()
        .expect("another process");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{scenario}: {text}");
    (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        cpu() - before,
    )
}

pub(crate) fn n7(report: &mut Report) {
    let what = "system calls of both sides for a connection beside an open stream: connect, 5 B \
                there and back, close";
    let calls = scenario::system_calls("two-connects-rdma", 20, 120);
    report.counted("N7", calls, AtMost(80.0), what);
    let [tcp, rdma] = ["tcp", "rdma"].map(|over| {
        let scenario = format!("two-connects-{over}");
        let cpu = |count| {
            let runs = (0..3).map(|_| measured(&scenario, count).1);
            runs.fold(f64::MAX, f64::min)
        };
        (cpu(1_100) - cpu(100)) / 1_000.0
    });
    let what = format!(
        "CPU time of one, of both sides, over TCP's ({:.0} us against {:.0})",
        rdma / 1e3,
        tcp / 1e3
    );
    report.line("N7.cpu", rdma / tcp, AtMost(2.5), "x", &what);
}

pub(crate) fn n10(report: &mut Report) {
    let busy_cpus = sys::both_cpus().err().unwrap_or_default();
    for (name, connections, bar) in [("N10", 1, 1.5), ("N10.64", 64, 0.7), ("N10.512", 512, 0.7)] {
        let jobs = if connections == 1 { 20_000 } else { 200_000 };
        let mut best = [f64::MAX; 3];
        for _ in 0..3 {
            for (over, best) in ["unix", "rdma", "tcp"].into_iter().zip(&mut best) {
                let (said, _) = measured(&format!("two-trips-{over}-{connections}"), jobs);
                *best = best.min(said.trim().parse().expect("a number"));
            }
        }
        let [unix, rdma, tcp] = best;
        let what = format!(
            "time per round trip of {TRIP} B between two processes, event, one on its way on each \
             of {connections} connections, over a Unix socket's ({rdma:.0} ns against {unix:.0}; TCP \
             {tcp:.0}){busy_cpus}"
        );
        report.line(name, rdma / unix, AtMost(bar), "x", &what);
    }
}
