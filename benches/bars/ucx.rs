//! N5: messages of 64 bytes, one way, between two polling processes, against UCX over shared memory
//! (`ucx_perftest`, Debian's `ucx-utils`).

use std::process::{Child, Command, Stdio};
use std::time::Instant;

use futures::{SinkExt, StreamExt};
use support::peer::{Peer, hear, hex, say, unhex};
use support::programs::this_program;
use tokio_doca::Mode;

use super::echo::{DEPTH, Side};
use super::measure::interleave;
use super::report::Goal::AtLeast;
use super::report::Report;
use super::sys;

const SIZE: usize = 64;
const MESSAGES: usize = 1_000_000;
const PORT: &str = "13556";

/// Runs in the second process: receives messages, and reports once it has received `messages` of
/// them.
pub(crate) fn peer(messages: usize) {
    sys::pin(Some(1));
    let Side { pool, rdmas, workq } = Side::open(Mode::BusyPoll, 1, SIZE);
    let (rdma, _) = &rdmas[0];
    say(&hex(&rdma.export().expect("a blob")));
    let blob = unhex(&hear().expect("the parent is there"));
    rdma.connect(&blob).wait().expect("a connection");
    let mut stream = rdma.recv_stream(&pool, DEPTH);
    workq.block_on(async {
        // The first poll posts the receives.
        let first = futures::poll!(stream.next());
        say("connected");
        let before = usize::from(first.is_ready());
        for _ in before..messages {
            stream.next().await.expect("open").expect("a message");
        }
    });
    say("taken");
}

/// Returns the nanoseconds of a message of the crate.
fn ours() -> f64 {
    let mut command = this_program();
    command.args(["take", "messages", &MESSAGES.to_string()]);
    let mut peer = Peer::spawn(command);
    sys::pin(Some(0));
    let Side { rdmas, workq, .. } = Side::open(Mode::BusyPoll, 1, SIZE);
    let (rdma, src) = &rdmas[0];
    let blob = unhex(&peer.hear());
    peer.say(&hex(&rdma.export().expect("a blob")));
    rdma.connect(&blob).wait().expect("a connection");
    assert_eq!(peer.hear(), "connected");
    let start = Instant::now();
    let mut sends = rdma.send_sink(DEPTH);
    workq.block_on(async {
        for _ in 0..MESSAGES {
            sends.feed(src.clone()).await.expect("a send");
        }
        sends.flush().await.expect("a send");
    });
    assert_eq!(peer.hear(), "taken");
    let took = start.elapsed();
    peer.ends();
    sys::pin(None);
    took.as_nanos() as f64 / MESSAGES as f64
}

/// Returns the command of `ucx_perftest` on a CPU, for messages through shared memory.
fn ucx(cpu: &str, args: &[&str]) -> Command {
    let mut command = Command::new("taskset");
    command
        .args(["-c", cpu, "ucx_perftest", "-p", PORT])
        .args(args);
    command
        .env("UCX_TLS", "posix,cma,self")
        .stdin(Stdio::null());
    command
}

/// Returns the nanoseconds of a message of UCX.
fn theirs() -> Result<f64, String> {
    struct Ended(Child);
    impl Drop for Ended {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
    let failed = |error: std::io::Error| format!("ucx_perftest: {error}");
    let mut server = ucx("1", &[]);
    let server = server.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let _server = Ended(server.map_err(failed)?);
    let (size, messages) = (SIZE.to_string(), MESSAGES.to_string());
    let test = [
        "127.0.0.1",
        "-t",
        "tag_bw",
        "-s",
        &size,
        "-n",
        &messages,
        "-f",
    ];
    // Retry: the server listens only a moment after its start.
    for _ in 0..50 {
        let output = ucx("0", &test).output().map_err(failed)?;
        let text = String::from_utf8_lossy(&output.stdout);
        let rate = text
            .lines()
            .last()
            .and_then(|line| line.split_whitespace().last());
        if let Some(rate) = rate.and_then(|rate| rate.parse::<f64>().ok()) {
            return Ok(1e9 / rate);
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    Err("ucx_perftest said no rate".into())
}

pub(crate) fn n5(report: &mut Report) {
    let busy_cpus = sys::both_cpus().err().unwrap_or_default();
    if let Err(why) = theirs() {
        return report.skip("N5", &why);
    }
    let mut failed = None;
    let mut bare = || {
        theirs().unwrap_or_else(|why| {
            failed = Some(why);
            f64::NAN
        })
    };
    let [theirs, ours] = interleave(5, [&mut bare, &mut ours]);
    if let Some(why) = failed {
        return report.skip("N5", &why);
    }
    let (theirs, ours) = (theirs.median(), ours.median());
    let what = format!(
        "messages of {SIZE} B a second, one way, busy, over UCX's tag_bw through shared memory ({:.1} against {:.1} million){busy_cpus}",
        1e3 / ours,
        1e3 / theirs
    );
    report.line("N5", theirs / ours, AtLeast(0.4), "x", &what);
}
