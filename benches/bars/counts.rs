//! B3: counts of allocations, system calls and wake-ups. They are the same on any machine.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use support::{counting, runtime_that_counts_sleeps};
use tokio_doca::soft::{Fault, Soft};
use tokio_doca::{
    Mmap, Mode,
    mem::{BufChain, BufInventory},
};

use super::report::Goal::{AtMost, Exactly};
use super::report::Report;
use super::rig::{Rig, fill, on_task};
#[cfg(feature = "verbs")]
use super::verbs;
use super::{graph, locked, scenario};

const LEN: usize = 64;
const FILLING: usize = 64;

/// The counts, by name.
type Counts = BTreeMap<&'static str, f64>;

fn soft(engine: bool) -> Soft {
    // Keep the engine awake between two jobs: the calls that wake it are not a cost of each job.
    let builder = Soft::builder().engine_spin(Duration::from_secs(1));
    builder.defer(engine).build()
}

fn rig(mode: Mode, engine: bool) -> Rig {
    Rig::soft(&soft(engine), mode, LEN * FILLING, 8)
}

/// Returns the allocations of 1,280 jobs after a warm-up: those of this thread, or of all threads
/// if an engine does the jobs.
fn job_allocations(mode: Mode, engine: bool) -> f64 {
    const FILLINGS: u64 = 20;
    let rig = rig(mode, engine);
    let (src, dst) = rig.pair(LEN);
    let dma = rig.dma.clone();
    let allocated = on_task(async move {
        fill(&dma, &src, &dst, FILLINGS).await;
        let count = if engine {
            counting::everywhere
        } else {
            counting::here
        };
        let before = count();
        fill(&dma, &src, &dst, FILLINGS).await;
        count() - before
    });
    allocated as f64
}

/// Returns the allocations of a round of all operations on Bufs.
fn buf_allocations() -> f64 {
    const ROUNDS: u64 = 100;
    let rig = rig(Mode::BusyPoll, false);
    let mmap = Mmap::builder().device(&rig.device).alloc(1 << 16);
    let mmap = mmap.expect("memory");
    let inventory = BufInventory::with_capacity(4);
    let (gather, scatter) = (BufChain::with_capacity(4), BufChain::with_capacity(4));
    let round = || {
        let (src, dst) = rig.pair(LEN);
        let clone = src.clone();
        gather.push(&src).expect("room");
        gather.push(src.slice(8..24).expect("data")).expect("room");
        scatter.push(&dst).expect("room");
        let other = inventory.buf_filled(&mmap, 0..LEN).expect("a descriptor");
        gather.push(&other).expect("room");
        let copied = rig.workq.block_on(rig.dma.copy(&gather, &scatter));
        assert_eq!(copied, Ok(2 * LEN + 16));
        drop(clone.data().expect("no job writes it"));
        while gather.pop().expect("no job has it").is_some() {}
        while scatter.pop().expect("no job has it").is_some() {}
    };
    round();
    // `block_on` allocates a waker per call, which does not count.
    let before = counting::everywhere();
    for _ in 0..ROUNDS {
        rig.workq.block_on(async {});
    }
    let bare = counting::everywhere() - before;
    let before = counting::everywhere();
    for _ in 0..ROUNDS {
        round();
    }
    let all = counting::everywhere() - before;
    (all as f64 - bare as f64) / ROUNDS as f64
}

/// Marks the begin or the end of the counted part of a scenario under strace, by a system call that
/// nothing else here makes.
pub(crate) fn mark() {
    let _ = std::os::unix::process::parent_id();
}

/// How often the destination is filled before the counted part, so that all threads and stacks
/// exist by then.
const WARM_UP: u64 = 4;

/// Runs a scenario under strace.
pub(crate) fn run(scenario: &str, jobs: u64) {
    let fillings = jobs / FILLING as u64;
    let (mode, engine) = match scenario {
        "sys-busy-inline" => (Mode::BusyPoll, false),
        "sys-busy-engine" => (Mode::BusyPoll, true),
        "sys-event-inline" => (Mode::EventDriven, false),
        "sys-event-engine" | "sys-unwaited" => (Mode::EventDriven, true),
        other => panic!("no scenario {other}"),
    };
    let soft = soft(engine);
    let rig = Rig::soft(&soft, mode, LEN * FILLING, 8);
    if scenario == "sys-event-engine" {
        // Late enough that the waiting task does sleep.
        let late = Fault::Delay(Duration::from_micros(300));
        let all = jobs + WARM_UP * FILLING as u64;
        (0..all).for_each(|_| soft.faults().push(late));
    }
    let (src, dst) = rig.pair(LEN);
    if mode == Mode::BusyPoll {
        // There is no runtime here: every system call is the crate's.
        return rig.workq.block_on(async {
            fill(&rig.dma, &src, &dst, WARM_UP).await;
            mark();
            fill(&rig.dma, &src, &dst, fillings).await;
            mark();
        });
    }
    let (runtime, sleeps) = runtime_that_counts_sleeps();
    let some = async |fillings| {
        if scenario == "sys-unwaited" {
            unwaited(&rig, fillings * FILLING as u64).await;
        } else {
            fill(&rig.dma, &src, &dst, fillings).await;
        }
    };
    let sleeps = runtime.block_on(async {
        some(WARM_UP).await;
        let before = sleeps.load(Ordering::Relaxed);
        mark();
        some(fillings).await;
        mark();
        sleeps.load(Ordering::Relaxed) - before
    });
    println!("sleeps {sleeps}");
}

/// Runs jobs that have completed before their operation is polled.
async fn unwaited(rig: &Rig, jobs: u64) {
    let (src, dst) = rig.pair(LEN);
    for _ in 0..jobs {
        let done = rig.device.jobs().expect("it counts them") + 1;
        let op = rig.dma.copy(&src, &dst).start().expect("a Slot is free");
        while rig.device.jobs() != Some(done) {
            std::hint::spin_loop();
        }
        // The device counts a job before it delivers the completion, so wait some moments more.
        let end = Instant::now() + Duration::from_micros(20);
        while Instant::now() < end {}
        op.await.expect("a copy");
        if dst.tailroom() < LEN {
            dst.reset_data_len().expect("no job has it");
        }
    }
}

/// Counts the system calls of 1,024 jobs of a scenario, and the sleeps of the runtime.
fn calls(scenario: &str) -> Result<BTreeMap<String, f64>, String> {
    let file = std::env::temp_dir().join(format!("bars-{}-{scenario}", std::process::id()));
    let output = Command::new("strace")
        .args(["-f", "-qq", "-o"])
        .arg(&file)
        .arg(std::env::current_exe().map_err(|error| error.to_string())?)
        .args(["scenario", scenario, "1024"])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("strace does not start: {error}"))?;
    let trace = std::fs::read_to_string(&file).map_err(|error| error.to_string());
    let _ = std::fs::remove_file(&file);
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{scenario} failed under strace: {text}"));
    }
    let mut calls = BTreeMap::new();
    let mut marks = 0;
    for line in trace?.lines() {
        // `1234 write(7, ...) = 8`; the rest of an interrupted call is `1234 <... write resumed>`.
        let Some((_, call)) = line.split_once(' ') else {
            continue;
        };
        let Some((name, _)) = call.trim_start().split_once('(') else {
            continue;
        };
        if name == "getppid" {
            marks += 1;
        } else if marks == 1
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        {
            *calls.entry(name.to_owned()).or_insert(0.0) += 1.0;
        }
    }
    if marks != 2 {
        return Err(format!("{scenario} has {marks} marks, and not 2"));
    }
    let said = String::from_utf8_lossy(&output.stdout);
    if let Some(sleeps) = said.strip_prefix("sleeps ") {
        let sleeps = sleeps.trim().parse().map_err(|_| said.to_string())?;
        calls.insert("sleeps".into(), sleeps);
    }
    Ok(calls)
}

/// System calls that are not a cost of a job: Tokio's sleep, the engine's sleep, and giving up the
/// CPU after a budget.
const NOT_OURS: [&str; 5] = [
    "epoll_wait",
    "epoll_pwait",
    "futex",
    "sched_yield",
    "sleeps",
];

/// Returns the system calls of a scenario without those of [`NOT_OURS`].
pub(crate) fn calls_that_are_ours(scenario: &str) -> Result<f64, String> {
    let calls = calls(scenario)?;
    let ours = calls
        .iter()
        .filter(|call| !NOT_OURS.contains(&call.0.as_str()));
    Ok(ours.fold(0.0, |sum, call| sum + call.1))
}

fn of(calls: &BTreeMap<String, f64>, name: &str) -> f64 {
    calls.get(name).copied().unwrap_or(0.0)
}

fn per_sleep(calls: &BTreeMap<String, f64>, name: &str) -> f64 {
    of(calls, name) / of(calls, "sleeps").max(1.0)
}

fn system_calls(counts: &mut Counts) -> Result<(), String> {
    for (name, scenario) in [
        ("calls_busy_inline", "sys-busy-inline"),
        ("calls_busy_engine", "sys-busy-engine"),
        ("calls_event_inline", "sys-event-inline"),
    ] {
        counts.insert(name, calls_that_are_ours(scenario)?);
    }
    // Take the least of three tries. A thread that loses its CPU on its way to sleep, or during a
    // job, makes extra calls; a job's own calls show in every try.
    let tries = |scenario| {
        (0..3)
            .map(|_| calls(scenario))
            .collect::<Result<Vec<_>, _>>()
    };
    let least = |tries: &[BTreeMap<String, f64>], count: fn(&BTreeMap<String, f64>) -> f64| {
        tries.iter().map(count).fold(f64::INFINITY, f64::min)
    };
    let waits = tries("sys-event-engine")?;
    let writes = least(&waits, |calls| per_sleep(calls, "write"));
    let reads = least(&waits, |calls| per_sleep(calls, "read"));
    let unwaited = least(&tries("sys-unwaited")?, |calls| of(calls, "write"));
    counts.insert("writes_per_sleep", writes);
    counts.insert("reads_per_sleep", reads);
    counts.insert("writes_unwaited", unwaited);
    Ok(())
}

/// Returns the context switches of each thread except this one.
fn switches() -> BTreeMap<String, u64> {
    let here = nix::unistd::gettid().to_string();
    let tasks = std::fs::read_dir("/proc/self/task").expect("/proc is mounted");
    let names = tasks
        .flatten()
        .filter_map(|task| task.file_name().into_string().ok())
        .filter(|tid| *tid != here);
    let count = |tid: String| {
        let status = std::fs::read_to_string(format!("/proc/self/task/{tid}/status")).ok()?;
        let counts = status
            .lines()
            .filter_map(|line| line.split_once("ctxt_switches:"));
        let sum = counts
            .filter_map(|(_, count)| count.trim().parse::<u64>().ok())
            .sum();
        Some((tid, sum))
    };
    names.filter_map(count).collect()
}

/// Returns the wake-ups in 5 s of a program that has all its resources and does nothing.
fn idle_wakeups() -> f64 {
    let soft = Soft::builder().defer(true).build();
    let rig = Rig::soft(&soft, Mode::EventDriven, LEN * FILLING, 8);
    let (src, dst) = rig.pair(LEN);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let dma = rig.dma.clone();
    let task = runtime.spawn(async move { fill(&dma, &src, &dst, 4).await });
    runtime.block_on(task).expect("the task did not panic");
    settled_wakeups()
}

/// Returns the wake-ups in 5 s of all threads except this one, once they rest.
pub(crate) fn settled_wakeups() -> f64 {
    // Wait until the engine sleeps: no switch within 100 ms.
    let mut before = switches();
    for _ in 0..50 {
        std::thread::sleep(Duration::from_millis(100));
        let now = switches();
        if now == before {
            break;
        }
        before = now;
    }
    std::thread::sleep(Duration::from_secs(5));
    let after = switches();
    let woken = after.iter().map(|(tid, count)| {
        // All switches of a thread that is new count.
        count - before.get(tid).copied().unwrap_or(0).min(*count)
    });
    woken.sum::<u64>() as f64
}

fn allocations(counts: &mut Counts) {
    for (name, mode, engine) in [
        ("allocations_busy_inline", Mode::BusyPoll, false),
        ("allocations_busy_engine", Mode::BusyPoll, true),
        ("allocations_event_inline", Mode::EventDriven, false),
        ("allocations_event_engine", Mode::EventDriven, true),
    ] {
        counts.insert(name, job_allocations(mode, engine));
    }
    counts.insert("allocations_bufs", buf_allocations());
    counts.insert("allocations_graph", graph::allocations());
}

pub(crate) fn b3(report: &mut Report) {
    let mut counts = Counts::new();
    counts.insert("idle_wakeups", idle_wakeups());
    allocations(&mut counts);
    let traced = system_calls(&mut counts);
    for (name, what, goal) in LINES {
        if let Some(&count) = counts.get(name) {
            report.line("B3", count, goal, "", what);
        }
    }
    if let Err(error) = traced {
        report.skip("B3", &error);
    }
}

use super::report::Goal;

const NONE: Goal = Exactly(0.0);

const LINES: [(&str, &str, Goal); 12] = [
    (
        "allocations_busy_inline",
        "allocations of 1,280 jobs, busy-poll, inline",
        NONE,
    ),
    (
        "allocations_busy_engine",
        "allocations of 1,280 jobs, busy-poll, engine",
        NONE,
    ),
    (
        "allocations_event_inline",
        "allocations of 1,280 jobs, event mode, inline",
        NONE,
    ),
    (
        "allocations_event_engine",
        "allocations of 1,280 jobs, event mode, engine",
        NONE,
    ),
    (
        "allocations_bufs",
        "allocations of alloc, chain, slice, clone, drop",
        NONE,
    ),
    (
        "calls_busy_inline",
        "system calls of 1,024 jobs, busy-poll, inline",
        NONE,
    ),
    (
        "calls_busy_engine",
        "system calls of 1,024 jobs, busy-poll, engine",
        NONE,
    ),
    (
        "calls_event_inline",
        "system calls of 1,024 jobs, event mode, inline",
        NONE,
    ),
    (
        "writes_per_sleep",
        "eventfd writes per sleep, event mode",
        AtMost(1.0),
    ),
    ("reads_per_sleep", "reads per sleep, event mode", NONE),
    (
        "writes_unwaited",
        "eventfd writes for 1,024 jobs that no task waits for",
        NONE,
    ),
    ("idle_wakeups", "wake-ups of an idle program in 5 s", NONE),
];

/// Prints the counts that are the same on any machine, as TOML. B13 is an operation that is dropped
/// in flight, R2 a round trip between two contexts of one process. V8 and V10 are the locked
/// instructions of a write and of a message.
pub(crate) fn steady() -> Result<(), String> {
    let mut counts = Counts::new();
    allocations(&mut counts);
    system_calls(&mut counts)?;
    // The number varies with the sleeps: only whether it is at most one counts.
    if let Some(writes) = counts.get_mut("writes_per_sleep") {
        *writes = writes.ceil();
    }
    let raw = scenario::instructions("raw")?;
    let mut text = String::from("[instructions]\n");
    let b1 = scenario::instructions("busy-inline")? - raw;
    let b4 = scenario::instructions("event")?;
    let b13 = scenario::instructions("dropped")?;
    let [_, g1] = graph::instructions()?;
    let r2 = scenario::instructions("rdma-round-trips")?;
    let v10 = locked::instructions("rdma-round-trips")? / 2.0;
    for (name, count) in [
        ("B1", b1),
        ("B4", b4),
        ("B13", b13),
        ("G1", g1),
        ("R2", r2),
        ("V10", v10),
    ] {
        let _ = writeln!(text, "{name} = {count:.1}");
    }
    #[cfg(feature = "verbs")]
    {
        let [c, write] = verbs::instructions()?;
        let v8 = locked::instructions("verbs-write")?;
        let [v11, v12] = ["verbs-batch", "verbs-asleep"].map(scenario::instructions);
        for (name, count) in [("V2", write - c), ("V8", v8), ("V11", v11?), ("V12", v12?)] {
            let _ = writeln!(text, "{name} = {count:.1}");
        }
    }
    text.push_str("\n[counts]\n");
    for (name, count) in counts {
        let _ = writeln!(text, "{name} = {count}");
    }
    print!("{text}");
    Ok(())
}
