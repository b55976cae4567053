//! Tests that an idle program is never woken: for three seconds no thread but this one has a
//! context switch, although the program exports memory to another process and imports memory from
//! it.

use std::time::{Duration, Instant};

use support::peer::{Peer, hear, hex, role, say, unhex};
use support::programs::others_sleep;
use support::test_name;
use support::{LIMIT, alone};
use tokio_doca::soft::{Soft, View};
use tokio_doca::{
    BufPool, Dma, Mmap, Mode, WorkQ,
    mem::{Access, RemoteMmap},
};

/// How long no thread may wake up.
const IDLE: Duration = Duration::from_secs(3);

const HYBRID: Mode = Mode::Hybrid {
    spin: Duration::from_micros(30),
};

/// Returns the number of context switches, voluntary and not, of each thread but this one, with the
/// thread's name.
fn switches() -> Vec<(String, u64)> {
    let here = nix::unistd::gettid().to_string();
    let mut switches: Vec<_> = std::fs::read_dir("/proc/self/task")
        .unwrap()
        .map(|task| task.unwrap())
        .filter(|task| task.file_name() != *here)
        .filter_map(|task| {
            // A thread may end meanwhile.
            let status = std::fs::read_to_string(task.path().join("status")).ok()?;
            let field = |name: &str| {
                let line = status.lines().find_map(|line| line.strip_prefix(name));
                line.unwrap().trim()
            };
            let count = |name| field(name).parse::<u64>().unwrap();
            let sum = count("voluntary_ctxt_switches:") + count("nonvoluntary_ctxt_switches:");
            let name = format!("{} {}", field("Name:"), task.file_name().display());
            Some((name, sum))
        })
        .collect();
    switches.sort();
    switches
}

/// Waits until all threads sleep, so that any later context switch is a wake-up of an idle program.
fn settled() -> Vec<(String, u64)> {
    let end = Instant::now() + LIMIT;
    let mut before = switches();
    loop {
        std::thread::sleep(Duration::from_millis(100));
        let now = switches();
        // A thread that is ready but has no CPU makes no context switches.
        if now == before && others_sleep() {
            return now;
        }
        assert!(Instant::now() < end, "the threads never rest: {now:?}");
        before = now;
    }
}

/// Exports memory that another process may use.
fn export() -> (Mmap, Vec<u8>) {
    let device = Soft::builder().build().open("pf0").unwrap();
    let access = Access::LOCAL_READ_WRITE | Access::DPU_READ_WRITE;
    let builder = Mmap::builder().device(&device).access(access);
    let mmap = builder.alloc(1 << 16).unwrap();
    let blob = mmap.export_dpu(&device).unwrap();
    (mmap, blob)
}

fn import(blob: &str) -> RemoteMmap {
    let device = Soft::builder().view(View::Dpu).build().open("p0").unwrap();
    let import = RemoteMmap::from_export(&device, &unhex(blob)).timeout(LIMIT);
    import.wait().unwrap()
}

/// The other process, which is idle as well.
fn other() {
    let (mmap, blob) = export();
    say(&hex(&blob));
    let remote = import(&hear().unwrap());
    say("imported");
    hear();
    let before = settled();
    assert!(before.iter().any(|(name, _)| name.contains("doca-f")));
    // Sleeps for the duration of the measurement.
    std::thread::sleep(IDLE);
    assert_eq!(switches(), before, "a thread woke up");
    remote.check().unwrap();
    // The parent's thread that reads this must not wake while the parent measures.
    hear();
    say("idle");
    drop((mmap, remote));
}

#[test]
fn an_idle_program_makes_no_wakeups() {
    const TEST: &str = test_name!(an_idle_program_makes_no_wakeups);
    if role().is_some() {
        return other();
    }
    if !alone(TEST) {
        return;
    }
    let mut peer = Peer::start(TEST, "other");
    let (mmap, blob) = export();
    let remote = import(&peer.hear());
    peer.say(&hex(&blob));
    assert_eq!(peer.hear(), "imported");
    let mut keep = Vec::new();
    for (mode, defer) in [
        (Mode::EventDriven, false),
        (Mode::EventDriven, true),
        (Mode::BusyPoll, true),
        (HYBRID, true),
    ] {
        let soft = Soft::builder().defer(defer).build();
        let device = soft.open("pf0").unwrap();
        let mmap = Mmap::builder().device(&device).alloc(1 << 16).unwrap();
        let pool = BufPool::builder(&mmap).build().unwrap();
        let workq = WorkQ::builder().depth(4).mode(mode).build().unwrap();
        let dma = Dma::builder(&device).attach(&workq).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let jobs = {
            let (dma, pool) = (dma.clone(), pool.clone());
            async move {
                let (src, dst) = (pool.alloc().await, pool.alloc().await);
                src.extend_from_slice(b"hello").unwrap();
                for _ in 0..100 {
                    dma.copy(&src, &dst).await.unwrap();
                }
            }
        };
        let task = runtime.spawn(jobs);
        runtime.block_on(task).unwrap();
        assert_eq!(device.jobs(), Some(100));
        keep.push((device, pool, workq, dma, runtime));
    }
    let before = settled();
    let named = |name: &str| before.iter().filter(|(n, _)| n.starts_with(name)).count();
    assert_eq!(named("doca-pf0"), 4, "the engines are there: {before:?}");
    let fabric = before.iter().any(|(name, _)| name.contains("doca-f"));
    assert!(fabric, "the fabric's thread is there: {before:?}");
    peer.say("be idle");
    // Sleeps for the duration of the measurement.
    std::thread::sleep(IDLE);
    assert_eq!(switches(), before, "a thread woke up");
    remote.check().unwrap();
    peer.say("report");
    assert_eq!(peer.hear(), "idle");
    peer.ends();
    drop((keep, mmap, remote));
}
