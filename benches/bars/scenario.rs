//! Scenarios that run in a child process, under a counting tool: `bars scenario NAME JOBS`.
//!
//! The cost of a job is the difference of the counts of two runs, divided by the difference of
//! their numbers of jobs.

use std::process::{Command, Stdio};

use tokio_doca::Mode;
use tokio_doca::soft::Soft;

use super::rig::{Rig, bare, fill, on_task};
use super::{cancel, counts, crowd, echo, event, graph, locked, raw, rdma, share, tool, two};

/// The bytes of the smallest job.
const SMALL: usize = 64;
/// The number of jobs that fill a destination.
const FILLING: u64 = 64;

/// The numbers of jobs of the two runs.
const FEW: u64 = 64 * FILLING;
const MANY: u64 = 6 * FEW;

/// Runs a scenario with this number of jobs.
pub(crate) fn run(scenario: &str, jobs: u64) {
    locked::callgrind_finds_this();
    match scenario {
        "raw" => raw_post(jobs),
        "busy-inline" => busy_inline(jobs, false),
        "busy-stats" => busy_inline(jobs, true),
        "raw-event" => {
            event::raw_event(jobs, SMALL);
        }
        "event" => {
            event::crate_event(jobs, SMALL);
        }
        "remote-busy" => share::run(jobs),
        "rdma-busy" => rdma::writes(jobs),
        "rdma-round-trips" => rdma::round_trips_here(jobs),
        "rdma-echoes" => echo::echoes_here(jobs as usize),
        "rdma-echo-pair" => echo::echoes_of_two(64, jobs as usize),
        "rdma-echo-one" => echo::echoes_of_two(1, jobs as usize),
        "dropped" => cancel::dropped(jobs),
        #[cfg(feature = "verbs")]
        other if other.starts_with("verbs-") => super::verbs::run(other, jobs),
        other if other.starts_with("graph-") => graph::run(other, jobs),
        other if other.starts_with("crowd-") => crowd::run(other, jobs),
        other if other.starts_with("tool-") => tool::run(other, jobs),
        other if other.starts_with("two-") => two::run(other, jobs),
        other => counts::run(other, jobs),
    }
}

fn raw_post(jobs: u64) {
    let rig = Rig::soft(
        &Soft::builder().build(),
        Mode::BusyPoll,
        SMALL * FILLING as usize,
        2,
    );
    let (src, dst) = rig.pair(SMALL);
    let job = bare(&src, &dst);
    let mut ring = raw::Ring::new();
    for _ in 0..jobs {
        ring.run(job);
    }
}

fn busy_inline(jobs: u64, stats: bool) {
    let rig = Rig::soft(
        &Soft::builder().build(),
        Mode::BusyPoll,
        SMALL * FILLING as usize,
        2,
    );
    let (src, dst) = rig.pair(SMALL);
    let dma = rig.dma.clone();
    let workq = rig.workq.clone();
    on_task(async move {
        for done in 1..=jobs / FEW {
            fill(&dma, &src, &dst, FEW / FILLING).await;
            if stats {
                assert_eq!(workq.stats().completed, done * FEW);
            }
        }
    });
    assert_eq!(rig.device.jobs(), Some(jobs), "every job was the device's");
}

/// Runs a scenario under callgrind with these options. Returns callgrind's standard error.
pub(crate) fn callgrind(scenario: &str, jobs: u64, options: &[&str]) -> Result<String, String> {
    let mut command = Command::new("valgrind");
    command.arg("--tool=callgrind").args(options);
    command.arg(std::env::current_exe().map_err(|error| error.to_string())?);
    let [_, text] = output(command.args(["scenario", scenario, &jobs.to_string()]))?;
    Ok(text)
}

/// Runs a program without input. Returns its standard output and its standard error.
pub(crate) fn output(command: &mut Command) -> Result<[String; 2], String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| {
        let program = command.get_program().display();
        format!("{program} does not start: {error}")
    })?;
    let texts = [output.stdout, output.stderr];
    let [out, err] = texts.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    match output.status.success() {
        true => Ok([out, err]),
        false => Err(format!("{command:?} failed: {err}")),
    }
}

/// Returns the number of instructions that callgrind reports on its standard error.
pub(crate) fn collected(text: &str) -> Result<u64, String> {
    text.lines()
        .find_map(|line| line.split_once("Collected :"))
        .and_then(|(_, number)| number.trim().parse().ok())
        .ok_or_else(|| format!("callgrind reports no instructions: {text}"))
}

/// Returns the count per job: the difference of the counts of two runs, divided by the difference
/// of their numbers of jobs.
pub(crate) fn per_job(count: impl Fn(u64) -> Result<u64, String>) -> Result<f64, String> {
    let (few, many) = (count(FEW)?, count(MANY)?);
    Ok((many as f64 - few as f64) / (MANY - FEW) as f64)
}

/// Returns the user-space instructions per job, by callgrind; `Err` if they cannot be counted here.
pub(crate) fn instructions(scenario: &str) -> Result<f64, String> {
    per_job(|jobs| {
        let text = callgrind(scenario, jobs, &["--callgrind-out-file=/dev/null"])?;
        collected(&text).map_err(|why| format!("{scenario}: {why}"))
    })
}

/// Returns the system calls per job of a process and its children, by strace; `Err` if they cannot
/// be counted here.
pub(crate) fn system_calls(scenario: &str, few: u64, many: u64) -> Result<f64, String> {
    let count = |jobs: u64| -> Result<f64, String> {
        let output = Command::new("strace")
            .args(["-f", "-c", "-qq", "-U", "name,calls", "-o", "/dev/stderr"])
            .arg(std::env::current_exe().map_err(|error| error.to_string())?)
            .args(["scenario", scenario, &jobs.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .output()
            .map_err(|error| format!("strace does not start: {error}"))?;
        let text = String::from_utf8_lossy(&output.stderr);
        let total = text.lines().find_map(|line| line.strip_prefix("total"));
        total
            .and_then(|number| number.trim().parse().ok())
            .ok_or_else(|| format!("strace said nothing of {scenario}: {text}"))
    };
    Ok((count(many)? - count(few)?) / (many - few) as f64)
}
