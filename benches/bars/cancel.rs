//! B13: the cost of dropping operations in flight, and of timeouts.

use std::future::{Future, poll_fn};
use std::hint::black_box;
use std::marker::PhantomPinned;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use support::counting;
use tokio::time::timeout;
use tokio_doca::soft::Soft;
use tokio_doca::{Buf, Dma, Mode, dma::DmaCopy};

use super::devices::Forced;
use super::measure::{interleave, per_op};
use super::raw::Descriptor;
use super::report::Goal::{AtMost, Exactly};
use super::report::Report;
use super::rig::{Rig, bare, on_task};

const ROUNDS: usize = 40;
const OPS: usize = 128;

/// A future that is pending forever, and as large as an operation of the crate.
struct Bare {
    _size: [u8; size_of::<DmaCopy<&Dma, &Buf, &Buf>>()],
    _pin: PhantomPinned,
}

impl Future for Bare {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        black_box(&self._size);
    }
}

/// Polls each future once and drops them all. Returns the nanoseconds per drop, and the allocations
/// of the drops.
fn drop_pending<F: Future<Output: std::fmt::Debug>>(make: impl Fn(usize) -> F) -> (f64, u64) {
    let mut futures: Vec<Pin<Box<F>>> = (0..OPS).map(|at| Box::pin(make(at))).collect();
    let mut cx = Context::from_waker(Waker::noop());
    for future in &mut futures {
        let polled = future.as_mut().poll(&mut cx);
        assert!(polled.is_pending(), "{polled:?}");
    }
    let before = counting::here();
    let start = Instant::now();
    futures.clear();
    let ns = per_op(start, OPS as u64);
    (ns, counting::here() - before)
}

/// Measures a round of drops of operations that are in flight: the device holds them up meanwhile.
fn drop_ops(soft: &Soft, rig: &Rig, pairs: &[(Buf, Buf)]) -> (f64, u64) {
    let hold = soft.faults().hold();
    let dropped = drop_pending(|at| rig.dma.copy(&pairs[at].0, &pairs[at].1));
    drop(hold);
    // Wait until the orphaned jobs have completed, before the next round begins.
    let runtime = tokio::runtime::Handle::current();
    let end = Instant::now() + Duration::from_secs(10);
    while rig.workq.in_flight() > 0 {
        assert!(Instant::now() < end, "orphans stay in flight");
        tokio::task::block_in_place(|| runtime.block_on(tokio::task::yield_now()));
        std::thread::yield_now();
    }
    for (_, dst) in pairs {
        dst.reset_data_len().expect("no job has it any more");
    }
    dropped
}

pub(crate) fn b13(report: &mut Report) {
    let mut allocated = 0;
    for (name, mode, what) in [
        ("B13.drop.event", Mode::EventDriven, "event mode"),
        ("B13.drop.busy", Mode::BusyPoll, "busy-poll"),
    ] {
        let soft = Soft::builder().defer(true).build();
        let rig = Rig::soft(&soft, mode, 64, 2 * OPS);
        let pairs: Vec<_> = (0..OPS).map(|_| rig.pair(64)).collect();
        // A worker thread drives events while this thread measures.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_io()
            .build()
            .expect("a runtime");
        let _entered = runtime.enter();
        let mut warm = false;
        let [bare, op] = interleave(
            ROUNDS,
            [
                &mut || {
                    drop_pending(|_| Bare {
                        _size: [0; _],
                        _pin: PhantomPinned,
                    })
                    .0
                },
                &mut || {
                    let (ns, allocations) = drop_ops(&soft, &rig, &pairs);
                    // Allocations of the first round may be those of the thread and the runtime.
                    allocated += if warm { allocations } else { 0 };
                    warm = true;
                    ns
                },
            ],
        );
        let what = format!(
            "drop of an Op in flight over the drop of a bare future, {what} ({:.1} ns against {:.1})",
            op.min(),
            bare.min()
        );
        report.line(
            name,
            (op.min() - bare.min()).max(0.0),
            AtMost(100.0),
            "ns",
            &what,
        );
    }
    let (over, extra) = timeouts();
    report.line("B13.timeout", over.0, AtMost(100.0), "ns", &over.1);
    let what = "allocations of ours, dropping Ops in flight and wrapping each in timeout";
    report.line(
        "B13.alloc",
        (allocated + extra) as f64,
        Exactly(0.0),
        "",
        what,
    );
}

/// Drops copies in flight, each after its first poll. The next event collects the orphaned job. One
/// thread does all of this.
pub(crate) fn dropped(jobs: u64) {
    const FILLING: usize = 64;
    let (device, forced) = Forced::open();
    let rig = Rig::on(device, Mode::EventDriven, 8, 64 * FILLING, 2);
    let (src, dst) = rig.pair(64);
    on_task(async move {
        for _ in 0..jobs {
            {
                let mut op = pin!(rig.dma.copy(&src, &dst));
                let begun = poll_fn(|cx| Poll::Ready(op.as_mut().poll(cx)));
                assert!(begun.await.is_pending(), "it waits for its event");
            }
            forced.show();
            while rig.workq.in_flight() > 0 {
                tokio::task::yield_now().await;
            }
            if dst.tailroom() < 64 {
                dst.reset_data_len().expect("no job has it");
            }
        }
    });
}

/// Returns the cost of `timeout` around an operation beyond that of `timeout` around the bare copy:
/// nanoseconds, and allocations.
fn timeouts() -> ((f64, String), u64) {
    let rig = Rig::soft(&Soft::builder().build(), Mode::EventDriven, 4096, 2);
    let (src, dst) = rig.pair(64);
    let job = bare(&src, &dst);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let (mut ours, mut bare) = (0, 0);
    let [raw, op] = interleave(
        ROUNDS,
        [
            &mut || runtime.block_on(timeout_bare(job, &mut bare)),
            &mut || runtime.block_on(timeout_ops(&rig.dma, &src, &dst, &mut ours)),
        ],
    );
    let what = format!(
        "timeout round an inline Op of 64 bytes over timeout round the bare copy ({:.1} ns against {:.1})",
        op.min(),
        raw.min()
    );
    (
        ((op.min() - raw.min()).max(0.0), what),
        u64::saturating_sub(ours, bare),
    )
}

const LIMIT: Duration = Duration::from_secs(60);
/// How often the destination is filled in the measurement, and how often before it to warm up.
const FILLINGS: u64 = 64;
const WARM: u64 = 40;

async fn timeout_bare(job: Descriptor, allocated: &mut u64) -> f64 {
    let (mut before, mut start) = (0, Instant::now());
    for filling in 0..FILLINGS + WARM {
        if filling == WARM {
            (before, start) = (counting::here(), Instant::now());
        }
        for _ in 0..64 {
            let copied = timeout(LIMIT, async { black_box(job).copy() }).await;
            copied.expect("in time");
        }
    }
    *allocated += counting::here() - before;
    per_op(start, FILLINGS * 64)
}

async fn timeout_ops(dma: &Dma, src: &Buf, dst: &Buf, allocated: &mut u64) -> f64 {
    let (mut before, mut start) = (0, Instant::now());
    for filling in 0..FILLINGS + WARM {
        if filling == WARM {
            (before, start) = (counting::here(), Instant::now());
        }
        for _ in 0..64 {
            let copied = timeout(LIMIT, dma.copy(src, dst)).await;
            copied.expect("in time").expect("a copy");
        }
        dst.reset_data_len().expect("no job has it");
    }
    *allocated += counting::here() - before;
    per_op(start, FILLINGS * 64)
}
