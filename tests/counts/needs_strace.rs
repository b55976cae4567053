//! Tests the system calls of jobs, which strace counts in a child process. These tests are ignored
//! unless requested: `cargo test --test counts -- --ignored needs_strace`.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use support::{runtime_that_counts_sleeps, test_name};
use tokio_doca::Mode;
use tokio_doca::soft::{Fault, Soft};

use super::{FILLING, LEN, Rig, engine, sink};

const CHILD: &str = "TOKIO_DOCA_COUNTS";

/// The number of jobs before the counted ones, so that all threads and stacks exist by then.
const FEW: usize = FILLING;
const MORE: usize = 2 * FILLING;

/// How often the application's own polling loop polls and finds nothing.
const LOOKS: usize = 4096;

/// Marks the begin or the end of the counted part of a child, by a system call that nothing else
/// here makes.
pub(super) fn mark() {
    let _ = std::os::unix::process::parent_id();
}

/// Waits until the harness's thread and an idle engine sleep.
pub(super) fn wait_for_others() {
    while !support::programs::others_sleep() {
        std::thread::yield_now();
    }
}

/// Pins this thread and the engine to a CPU each, and returns true. Returns false if this process
/// may use only one CPU: the engine never spins on its submitter's CPU, and sleeps there.
fn part_from(engine: i32) -> bool {
    let this = Pid::from_raw(0);
    let allowed = sched_getaffinity(this).unwrap();
    let mut cpus = (0..CpuSet::count()).filter(|&cpu| allowed.is_set(cpu).unwrap());
    let (Some(one), Some(other)) = (cpus.next(), cpus.next()) else {
        return false;
    };
    for (thread, cpu) in [(this, one), (Pid::from_raw(engine), other)] {
        let mut cpus = CpuSet::new();
        cpus.set(cpu).unwrap();
        sched_setaffinity(thread, &cpus).unwrap();
    }
    true
}

/// Runs a scenario if this process is the child of a test below. Does nothing otherwise.
#[test]
fn child_under_strace() {
    let Ok(scenario) = std::env::var(CHILD) else {
        return;
    };
    // Spin longer than any pause between two jobs, even on a busy machine.
    let builder = Soft::builder().engine_spin(Duration::from_secs(20));
    let (mode, soft) = match scenario.as_str() {
        "busy-inline" | "busy-own-loop" => (Mode::BusyPoll, builder.build()),
        "busy-engine" => (Mode::BusyPoll, builder.defer(true).build()),
        "event-inline" | "event-bursts" => (Mode::EventDriven, builder.build()),
        _ => (Mode::EventDriven, builder.defer(true).build()),
    };
    let rig = Rig::new(mode, soft, 8);
    let engine = engine();
    println!("engine={engine}; apart={};", u8::from(part_from(engine)));
    if scenario.ends_with("own-loop") {
        let looks = |times: usize| {
            for _ in 0..times {
                if scenario == "event-own-loop" {
                    rig.workq.arm();
                }
                assert_eq!(rig.workq.progress(|_, _| ()), 0);
            }
        };
        looks(FEW);
        wait_for_others();
        mark();
        looks(LOOKS);
        return mark();
    }
    if scenario == "event-bursts" {
        return sink::bursts(&rig);
    }
    let (src, dst) = rig.pair();
    let copies = async |jobs: usize| {
        for at in 1..=jobs {
            rig.dma.copy(&src, &dst).await.unwrap();
            if at % FILLING == 0 {
                dst.reset_data_len().unwrap();
            }
        }
    };
    if mode == Mode::BusyPoll {
        return rig.workq.block_on(async {
            copies(FEW).await;
            if scenario == "busy-inline" {
                wait_for_others();
            }
            mark();
            copies(MORE).await;
            mark();
        });
    }
    let unwaited = async |jobs: usize| {
        for _ in 0..jobs {
            let done = rig.device.jobs().unwrap() + 1;
            let op = rig.dma.copy(&src, &dst).start().unwrap();
            while rig.device.jobs() != Some(done) {
                std::hint::spin_loop();
            }
            // The device counts a job before it delivers the completion, so wait some moments more.
            let end = Instant::now() + Duration::from_micros(20);
            while Instant::now() < end {}
            op.await.unwrap();
            if dst.tailroom() < LEN {
                dst.reset_data_len().unwrap();
            }
        }
    };
    let (runtime, sleeps) = runtime_that_counts_sleeps();
    if scenario == "event-waits" {
        // Late enough that the waiting task does sleep.
        let late = Fault::Delay(Duration::from_micros(300));
        (0..FEW + MORE).for_each(|_| rig.soft.faults().push(late));
    }
    let jobs = async |jobs| match scenario.as_str() {
        "event-unwaited" => unwaited(jobs).await,
        _ => copies(jobs).await,
    };
    let sleeps = runtime.block_on(async {
        jobs(FEW).await;
        if scenario == "event-inline" {
            wait_for_others();
        }
        let before = sleeps.load(Ordering::Relaxed);
        mark();
        jobs(MORE).await;
        mark();
        sleeps.load(Ordering::Relaxed) - before
    });
    println!("sleeps={sleeps};");
}

type Calls = BTreeMap<String, u64>;

/// The system calls of a child during the [`MORE`] counted jobs, by name.
#[derive(Debug, Default)]
struct Trace {
    /// The calls of all its threads.
    all: Calls,
    /// The calls of the engine's thread.
    engine: Calls,
    /// The number of sleeps of its runtime.
    sleeps: u64,
    /// True if the engine had a CPU to itself.
    apart: bool,
}

/// Runs a scenario in a child under strace.
#[track_caller]
fn trace(scenario: &str) -> Trace {
    let file = std::env::temp_dir().join(format!("counts-{}-{scenario}", std::process::id()));
    let output = Command::new("strace")
        .args(["-f", "-qq", "-o"])
        .arg(&file)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test_name!(child_under_strace), "--nocapture"])
        .arg("--test-threads=1")
        .env(CHILD, scenario)
        .output()
        .expect("strace starts");
    let said = String::from_utf8_lossy(&output.stdout);
    let lines = std::fs::read_to_string(&file);
    let _ = std::fs::remove_file(&file);
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{scenario}: {said} {why}");
    let number = |name: &str| {
        let (_, rest) = said.split_once(name)?;
        rest.split_once(';')?.0.parse::<u64>().ok()
    };
    let engine = number("engine=").expect("it says which thread is the engine");
    let engine = engine.to_string();
    let mut trace = Trace {
        sleeps: number("sleeps=").unwrap_or(0),
        apart: number("apart=") == Some(1),
        ..Trace::default()
    };
    let mut marks = 0;
    for line in lines.unwrap().lines() {
        // `1234 write(7, ...) = 8`; the rest of an interrupted call is `1234 <... write resumed>`.
        let (thread, call) = line.split_once(' ').unwrap_or_default();
        let name = call
            .trim_start()
            .split_once('(')
            .map_or("", |(name, _)| name);
        if name == "getppid" {
            marks += 1;
        } else if marks == 1
            && !name.is_empty()
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        {
            *trace.all.entry(name.to_owned()).or_default() += 1;
            if thread == engine {
                *trace.engine.entry(name.to_owned()).or_default() += 1;
            }
        }
    }
    assert_eq!(marks, 2, "{scenario} was marked: {said}");
    trace
}

fn of(calls: &Calls, name: &str) -> u64 {
    calls.get(name).copied().unwrap_or(0)
}

/// Checks that the jobs made no system calls except those of `allowed`.
#[track_caller]
fn assert_none_but(calls: &Calls, allowed: &[&str]) {
    let mut calls = calls.clone();
    calls.retain(|name, _| !allowed.contains(&name.as_str()));
    assert!(calls.is_empty(), "{MORE} jobs: {calls:?}");
}

/// Checks that the engine spins between jobs, and makes no system calls. With one CPU it sleeps
/// between jobs instead, so that the submitter has the CPU.
#[track_caller]
fn assert_engine_spins(trace: &Trace) {
    let allowed: &[&str] = if trace.apart { &[] } else { &["futex"] };
    assert_none_but(&trace.engine, allowed);
}

#[test]
#[ignore = "needs strace"]
fn a_loop_of_ones_own_that_finds_nothing_gives_the_cpu_up_after_a_budget() {
    let trace = trace("busy-own-loop");
    // The loop yields once in 64 polls, after the first 256.
    assert_none_but(&trace.all, &["sched_yield"]);
    let yields = of(&trace.all, "sched_yield");
    assert!((48..=96).contains(&yields), "{LOOKS} looks: {yields}");
}

#[test]
#[ignore = "needs strace"]
fn a_loop_of_ones_own_that_is_armed_does_not_yield() {
    let trace = trace("event-own-loop");
    assert_eq!(of(&trace.all, "sched_yield"), 0, "{:?}", trace.all);
}

#[test]
#[ignore = "needs strace"]
fn busy_poll_inline_makes_no_system_call() {
    let trace = trace("busy-inline");
    assert_none_but(&trace.all, &[]);
}

#[test]
#[ignore = "needs strace"]
fn busy_poll_through_a_spinning_engine_makes_no_system_call() {
    let trace = trace("busy-engine");
    assert_engine_spins(&trace);
    // The submitter yields the CPU after a budget, and wakes the engine if the engine sleeps.
    match trace.apart {
        true => assert_none_but(&trace.all, &["sched_yield"]),
        false => assert_none_but(&trace.all, &["futex", "sched_yield"]),
    }
}

#[test]
#[ignore = "needs strace"]
fn event_mode_inline_makes_no_system_call_but_tokios() {
    let trace = trace("event-inline");
    assert_none_but(&trace.all, &["epoll_wait"]);
    assert_none_but(&trace.engine, &[]);
}

#[test]
#[ignore = "needs strace"]
fn event_mode_writes_once_per_sleep_and_reads_never() {
    let mut seen = Trace::default();
    // Needs only one good try of several: a waiter that loses the CPU on its way to sleep finds its
    // Job complete and does not sleep, and the engine has signaled in vain.
    for _ in 0..3 {
        let trace = trace("event-waits");
        assert_eq!(of(&trace.all, "read"), 0, "{trace:?}");
        // Only the engine signals, at most once for each job, and it sleeps at the end of each
        // delay.
        assert_none_but(&trace.engine, &["futex", "write"]);
        if trace.apart {
            assert!(of(&trace.engine, "futex") <= MORE as u64, "{trace:?}");
        }
        let rings = of(&trace.engine, "write");
        assert_eq!(rings, of(&trace.all, "write"), "{trace:?}");
        assert!(rings <= MORE as u64, "{trace:?}");
        // A run counts only if the runtime slept for at least half of the jobs.
        let waited = trace.sleeps >= MORE as u64 / 2;
        if waited && of(&trace.all, "write") <= trace.sleeps {
            return;
        }
        seen = trace;
    }
    panic!("more writes than sleeps, or few sleeps: {seen:?}");
}

#[test]
#[ignore = "needs strace"]
fn nothing_is_written_while_nobody_waits() {
    let mut seen = Trace::default();
    // Needs only one good try of several: if the engine loses the CPU between the count and the
    // completion, the job is waited for.
    for _ in 0..3 {
        let trace = trace("event-unwaited");
        if of(&trace.all, "write") == 0 {
            return assert_engine_spins(&trace);
        }
        seen = trace;
    }
    panic!("{MORE} jobs that nobody waited for: {seen:?}");
}

#[test]
#[ignore = "needs strace"]
fn a_burst_costs_each_side_one_system_call_and_tokios() {
    let trace = trace("event-bursts");
    assert_none_but(&trace.all, &["epoll_wait", "write"]);
    // The sender signals once per burst. So may the peer, whose reaper leaves part of the burst for
    // another poll.
    let writes = of(&trace.all, "write");
    let bursts = sink::BURSTS as u64;
    assert!((bursts..=2 * bursts).contains(&writes), "{trace:?}");
    assert!(of(&trace.all, "epoll_wait") <= 2 * bursts, "{trace:?}");
}
