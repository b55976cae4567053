//! B12: the cost of Bufs from a pool and from an inventory: the least nanoseconds of all rounds.

use std::hint::black_box;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use tokio_doca::soft::Soft;
use tokio_doca::{Buf, BufPool, Mmap, Mode, mem::BufInventory};

use super::measure::{Samples, interleave, per_op};
use super::report::Goal::AtMost;
use super::report::Report;
use super::rig::Rig;
use super::sys;

const ROUNDS: usize = 60;
/// The number of Bufs that go to the other thread at once.
const BATCH: usize = 256;

fn alloc_and_drop(pool: &BufPool) -> f64 {
    const TIMES: u64 = 50_000;
    let start = Instant::now();
    for _ in 0..TIMES {
        drop(black_box(pool.try_alloc().expect("an element is free")));
    }
    per_op(start, TIMES)
}

/// One thread allocates a batch, then another thread drops it, in turn. Returns the nanoseconds per
/// Buf of both threads together.
fn freed_elsewhere(pool: &BufPool) -> f64 {
    const BATCHES: u32 = 200;
    let bufs: Mutex<Vec<Buf>> = Mutex::new(Vec::with_capacity(BATCH));
    let turn = AtomicU32::new(0);
    let await_turn = |wanted: u32| {
        let mut looks = 0u32;
        while turn.load(Ordering::Acquire) != wanted {
            looks += 1;
            if looks.is_multiple_of(1 << 14) {
                std::thread::yield_now();
            }
        }
    };
    let lock = || bufs.lock().unwrap_or_else(PoisonError::into_inner);
    std::thread::scope(|scope| {
        let dropper = scope.spawn(|| {
            sys::pin(Some(1));
            let mut samples = Vec::new();
            for batch in 0..BATCHES {
                await_turn(2 * batch + 1);
                let mut bufs = lock();
                let start = Instant::now();
                bufs.clear();
                samples.push(per_op(start, BATCH as u64));
                drop(bufs);
                turn.store(2 * batch + 2, Ordering::Release);
            }
            Samples::of(samples).median()
        });
        sys::pin(Some(0));
        let mut samples = Vec::new();
        for batch in 0..BATCHES {
            await_turn(2 * batch);
            let mut bufs = lock();
            let start = Instant::now();
            for _ in 0..BATCH {
                bufs.push(pool.try_alloc().expect("an element is free"));
            }
            samples.push(per_op(start, BATCH as u64));
            drop(bufs);
            turn.store(2 * batch + 1, Ordering::Release);
        }
        sys::pin(None);
        let dropped = dropper.join().expect("the other thread");
        Samples::of(samples).median() + dropped
    })
}

/// Makes a Buf among 1,000 live ranges, takes and returns a read lease, and drops the Buf. Returns
/// the nanoseconds.
fn ranged(inventory: &BufInventory, mmap: &Mmap, starts: &[usize]) -> f64 {
    const TIMES: u64 = 20_000;
    let start = Instant::now();
    for at in 0..TIMES as usize {
        let from = starts[at % starts.len()];
        let buf = inventory
            .buf_filled(mmap, from..from + 64)
            .expect("a descriptor is free");
        drop(black_box(buf.data().expect("no job writes it")));
        drop(buf);
    }
    per_op(start, TIMES)
}

pub(crate) fn b12(report: &mut Report) {
    let rig = Rig::soft(&Soft::builder().build(), Mode::BusyPoll, 4096, 512);
    let count = 1_000;
    let mmap = Mmap::builder().device(&rig.device).alloc(count * 256);
    let mmap = mmap.expect("memory");
    let inventory = BufInventory::with_capacity(count + 8);
    // Every second piece of 128 bytes is a live range. The measured ranges lie between them, in
    // scattered order.
    let bufs: Vec<Buf> = (0..count)
        .map(|at| inventory.buf_filled(&mmap, at * 256..at * 256 + 128))
        .collect::<Result<_, _>>()
        .expect("descriptors");
    let starts: Vec<usize> = (0..count).map(|at| at * 389 % count * 256 + 128).collect();
    let [here, elsewhere, live] = interleave(
        ROUNDS,
        [
            &mut || alloc_and_drop(&rig.pool),
            &mut || freed_elsewhere(&rig.pool),
            &mut || ranged(&inventory, &mmap, &starts),
        ],
    );
    let guards: Vec<_> = bufs
        .iter()
        .map(|buf| buf.data().expect("no job writes it"))
        .collect();
    let [leased] = interleave(ROUNDS, [&mut || ranged(&inventory, &mmap, &starts)]);
    drop(guards);
    let what = "pool: alloc and drop";
    report.line("B12.pool", here.min(), AtMost(25.0), "ns", what);
    let what = "pool: alloc, and drop on the other CPU";
    report.line("B12.remote", elsewhere.min(), AtMost(60.0), "ns", what);
    let (live, leased) = (live.min(), leased.min());
    let what = format!(
        "inventory, 1,000 live ranges: buf, read Lease, return, drop ({leased:.1} ns if all are leased)"
    );
    report.line("B12.inventory", live, AtMost(150.0), "ns", &what);
}
