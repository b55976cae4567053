//! Tests that a job does not allocate, makes no system calls in busy-poll mode, and does not signal
//! if nothing waits.

mod frugal;
mod needs_strace;
mod remote;
mod sink;
mod stream;

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use futures::StreamExt;
use support::counting;
use tokio_doca::soft::Soft;
use tokio_doca::{
    Buf, BufPool, Device, Dma, Mmap, Mode, Rdma, WorkQ,
    graph::Graph,
    mem::{Access, BufChain, BufInventory, RemoteMmap},
    rdma::{RdmaBuilder, RecvPool},
    sha::{Algorithm, Sha},
};

#[global_allocator]
static ALLOCATOR: counting::Counting = counting::Counting;

// The rig
// -----------------------------------------------------------------------------------------------------

const LEN: usize = 64;
/// The number of copies that fill a destination.
const FILLING: usize = 64;

struct Rig {
    soft: Soft,
    device: Device,
    mmap: Mmap,
    pool: BufPool,
    workq: WorkQ,
    dma: Dma,
    /// The ids of this thread and of the engine's thread.
    watched: [i32; 2],
    /// Held so that only one rig, and thus one engine, exists at a time.
    _alone: MutexGuard<'static, ()>,
}

impl Rig {
    fn new(mode: Mode, soft: Soft, depth: u32) -> Rig {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let device = soft.open("pf0").unwrap();
        let mmap = Mmap::builder().device(&device).alloc(1 << 19).unwrap();
        let pool = BufPool::builder(&mmap)
            .range(0..1 << 18)
            .element_size(LEN * FILLING);
        let pool = pool.build().unwrap();
        let workq = WorkQ::builder().depth(depth).mode(mode).build().unwrap();
        let dma = Dma::builder(&device).attach(&workq).unwrap();
        Rig {
            soft,
            device,
            mmap,
            pool,
            workq,
            dma,
            watched: [nix::unistd::gettid().as_raw(), engine()],
            _alone: alone,
        }
    }

    fn pair(&self) -> (Buf, Buf) {
        let (src, dst) = (
            self.pool.try_alloc().unwrap(),
            self.pool.try_alloc().unwrap(),
        );
        src.set_data(0, LEN).unwrap();
        (src, dst)
    }

    fn allocations(&self) -> u64 {
        self.watched.into_iter().map(counting::of_thread).sum()
    }

    /// Returns the allocations of `times` runs of `body`, by this thread and the engine's, after
    /// the same number of warm-up runs.
    async fn allocated_by(&self, times: usize, mut body: impl AsyncFnMut()) -> u64 {
        for _ in 0..times {
            body().await;
        }
        let before = self.allocations();
        for _ in 0..times {
            body().await;
        }
        self.allocations() - before
    }

    /// Waits until nothing is in flight, while the runtime continues.
    async fn drained(&self) {
        let end = Instant::now() + support::LIMIT;
        while self.workq.in_flight() > 0 {
            assert!(
                Instant::now() < end,
                "jobs stay in flight: {:?}",
                self.workq
            );
            tokio::task::yield_now().await;
        }
    }
}

/// Returns the id of the engine's thread. Waits until the engine of an earlier test has ended.
fn engine() -> i32 {
    let end = Instant::now() + support::LIMIT;
    loop {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let engines: Vec<i32> = tasks
            .flatten()
            .filter(|task| {
                let name = std::fs::read_to_string(task.path().join("comm"));
                name.is_ok_and(|name| name.trim() == "doca-pf0")
            })
            .map(|task| task.file_name().to_str().unwrap().parse().unwrap())
            .collect();
        if let [engine] = engines[..] {
            return engine;
        }
        assert!(Instant::now() < end, "one engine, and not {engines:?}");
        std::thread::yield_now();
    }
}

fn inline() -> Soft {
    Soft::builder().build()
}

fn deferred() -> Soft {
    Soft::builder().defer(true).build()
}

fn by_engine() -> Soft {
    Soft::builder().inline_limit(0).build()
}

fn on_runtime<T>(body: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        // The runtime allocates its list of yielded tasks at the first yield. Yield here, so that
        // no job that spends its budget is charged for that list.
        tokio::task::yield_now().await;
        body.await
    })
}

/// Calls `body` for each way in which jobs can run, with the number of repetitions that makes
/// sense: through the engine a job is slow if both threads share a CPU, and inline it takes many
/// jobs to spend a budget.
fn for_each_way(body: impl Fn(Mode, Rig, usize)) {
    let spin = Duration::from_micros(30);
    for mode in [Mode::EventDriven, Mode::BusyPoll, Mode::Hybrid { spin }] {
        body(mode, Rig::new(mode, inline(), 16), 40);
        body(mode, Rig::new(mode, deferred(), 16), 4);
        body(mode, Rig::new(mode, by_engine(), 16), 4);
    }
}

// Allocations
// -------------------------------------------------------------------------------------------------

#[test]
fn the_allocator_counts_this_thread_and_the_engine() {
    let rig = Rig::new(Mode::BusyPoll, inline(), 4);
    let before = rig.allocations();
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(rig.allocations() - before, 1);
    let here = counting::of_thread(rig.watched[0]);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| drop(std::hint::black_box(Box::new(1))));
        other.join().unwrap();
        // `spawn` itself allocates on this thread. The Box of the other thread is not counted.
    });
    assert!(counting::of_thread(rig.watched[0]) > here);
    assert!(
        counting::of_thread(rig.watched[1]) > 0,
        "a new thread allocates"
    );
}

#[test]
fn a_copy_allocates_nothing() {
    for_each_way(|mode, rig, times| {
        let (src, dst) = rig.pair();
        let copies = async || {
            for _ in 0..FILLING {
                rig.dma.copy(&src, &dst).await.unwrap();
            }
            dst.reset_data_len().unwrap();
        };
        let allocated = on_runtime(rig.allocated_by(times, copies));
        assert_eq!(allocated, 0, "{mode:?}");
    });
}

/// Tests a run with 22 copies and a sub-graph with a chain of 3, a function that sets one of the
/// copies, a function with data, and a future. The WorkQ is too shallow for them, so that the run
/// has to wait for slots.
#[test]
fn a_run_of_a_graph_allocates_nothing() {
    for_each_way(|mode, rig, times| {
        let (src, dst) = rig.pair();
        let bufs: Vec<(Buf, Buf)> = (0..24).map(|_| rig.pair()).collect();
        let mut g = Graph::builder();
        let chain = [(); 3].map(|()| g.dma_copy(&rig.dma));
        g.depends(chain[1], chain[0]);
        g.depends(chain[2], chain[1]);
        let inner = g.build().unwrap();
        let mut part = inner.instance().unwrap();
        for (node, (src, dst)) in chain.iter().zip(&bufs) {
            part.set(*node, (src, dst)).unwrap();
        }

        let mut g = Graph::builder();
        let wide: Vec<_> = bufs[3..].iter().map(|_| g.dma_copy(&rig.dma)).collect();
        let (last, sub) = (g.dma_copy(&rig.dma), g.subgraph(&inner));
        let (from, to) = (src.clone(), dst.clone());
        let set = g.user(move |run| run.set(last, (&from, &to)));
        let count = g.user_with(|_, count: &mut u64| {
            *count += 1;
            Ok(())
        });
        let yields = g.user_async(|_| async {
            tokio::task::yield_now().await;
            Ok(())
        });
        g.depends(set, &wide);
        g.depends(last, (set, sub, yields));
        g.depends(count, last);
        let mut instance = g.build().unwrap().instance().unwrap();
        for (node, (src, dst)) in wide.iter().zip(&bufs[3..]) {
            instance.set(*node, (src, dst)).unwrap();
        }
        instance.set(sub, part).unwrap();
        instance.set(count, 0_u64).unwrap();
        let runs = async || {
            for _ in 0..FILLING {
                instance.run().await.unwrap();
            }
            let all = bufs.iter().map(|(_, dst)| dst).chain([&dst]);
            all.for_each(|dst| dst.reset_data_len().unwrap());
        };
        let allocated = on_runtime(rig.allocated_by(times.min(8), runs));
        assert_eq!(allocated, 0, "{mode:?}");
    });
}

#[test]
fn a_run_that_sends_and_receives_allocates_nothing() {
    for_each_way(|mode, rig, times| {
        let attach = || Rdma::builder(&rig.device).attach(&rig.workq).unwrap();
        let (near, far) = (attach(), attach());
        near.connect(&far.export().unwrap()).wait().unwrap();
        far.connect(&near.export().unwrap()).wait().unwrap();
        let mut g = Graph::builder();
        let (recv, send) = (g.rdma_recv(&far), g.rdma_send(&near));
        let mut instance = g.build().unwrap().instance().unwrap();
        let (src, dst) = rig.pair();
        instance.set(send, &src).unwrap();
        instance.set(recv, &dst).unwrap();
        let runs = async || {
            for _ in 0..FILLING {
                instance.run().await.unwrap();
            }
            assert_eq!(instance.result(recv), Some(Ok(LEN as u64)));
            dst.reset_data_len().unwrap();
        };
        let allocated = on_runtime(rig.allocated_by(times.min(8), runs));
        assert_eq!(allocated, 0, "{mode:?}");
    });
}

#[test]
fn an_engine_that_leaves_queues_allocates_nothing() {
    let rig = Rig::new(Mode::BusyPoll, deferred(), 4);
    let (src, dst) = rig.pair();
    // Between two jobs, the engine checks for queues that were added or removed.
    let two_jobs = || {
        for _ in 0..2 {
            rig.workq.block_on(rig.dma.copy(&src, &dst)).unwrap();
        }
    };
    let others = [(); 8].map(|()| {
        let workq = WorkQ::builder().build().unwrap();
        Dma::builder(&rig.device).attach(&workq).unwrap()
    });
    two_jobs();
    let before = counting::of_thread(rig.watched[1]);
    for other in others {
        drop(other);
        two_jobs();
    }
    assert_eq!(counting::of_thread(rig.watched[1]), before);
}

/// Tests each remote operation, and a receive that is dropped and then adopted.
#[test]
fn a_remote_operation_allocates_nothing_nor_does_a_receive() {
    for_each_way(|mode, rig, times| {
        let access = Access::RDMA_READ | Access::RDMA_WRITE | Access::RDMA_ATOMIC;
        let [here, there] = [(); 2].map(|()| {
            let builder = Rdma::builder(&rig.device).permissions(access);
            builder.attach(&rig.workq).unwrap()
        });
        let blobs = [&here, &there].map(|rdma| rdma.export().unwrap());
        here.connect(&blobs[1]).wait().unwrap();
        there.connect(&blobs[0]).wait().unwrap();
        let builder = Mmap::builder().device(&rig.device);
        let mmap = builder.access(access | Access::LOCAL_READ_WRITE);
        let mmap = mmap.alloc(LEN).unwrap();
        let blob = mmap.export_rdma(&rig.device).unwrap();
        let remote = RemoteMmap::from_export(&rig.device, &blob).wait().unwrap();
        let whole = remote.buf(..).unwrap();
        let ((src, dst), (dropped, _)) = (rig.pair(), rig.pair());
        dropped.set_data(0, 0).unwrap();
        let operations = async || {
            let remote = whole.slice(..).unwrap();
            let (sent, received) = tokio::join!(here.send(&src), there.recv(&dst));
            assert_eq!((sent, received.unwrap().len), (Ok(LEN), LEN));
            drop(there.recv(&dropped).start().unwrap());
            here.send(&src).await.unwrap();
            there.recv(&dst).await.unwrap();
            let (sent, received) = tokio::join!(here.write_imm(&src, &remote, 1), there.recv(()));
            assert_eq!((sent, received.unwrap().immediate), (Ok(LEN), Some(1)));
            here.write(&src, &remote).await.unwrap();
            here.read(&remote, &dst).await.unwrap();
            here.fetch_add(&remote, 1).await.unwrap();
            dst.reset_data_len().unwrap();
        };
        let allocated = on_runtime(rig.allocated_by(4 * times, operations));
        assert_eq!(allocated, 0, "{mode:?}");
    });
}

#[test]
fn a_stream_of_messages_allocates_nothing_while_its_pool_is_empty_neither() {
    for_each_way(|mode, rig, times| {
        let attach = || Rdma::builder(&rig.device).attach(&rig.workq).unwrap();
        let (here, there) = (attach(), attach());
        here.connect(&there.export().unwrap()).wait().unwrap();
        there.connect(&here.export().unwrap()).wait().unwrap();
        let mmap = Mmap::builder().device(&rig.device).alloc(2 * LEN).unwrap();
        let pool = BufPool::builder(&mmap).element_size(LEN).build().unwrap();
        let mut stream = there.recv_stream(&pool, 2);
        let (src, _) = rig.pair();
        let mut kept = None;
        let messages = async || {
            let (sent, message) = tokio::join!(here.send(&src), stream.next());
            assert_eq!(sent, Ok(LEN));
            kept = message.unwrap().unwrap().buf;
            assert!(kept.is_some());
        };
        let allocated = on_runtime(rig.allocated_by(4 * times, messages));
        assert_eq!(allocated, 0, "{mode:?}");
    });
}

/// Tests messages of a shared pool: those of one connection are received at once, those of another
/// one wait.
#[test]
fn messages_of_a_shared_pool_allocate_nothing() {
    for_each_way(|mode, rig, times| {
        let mmap = Mmap::builder().device(&rig.device).alloc(2 * LEN).unwrap();
        let pool = BufPool::builder(&mmap).element_size(LEN).build().unwrap();
        let pool = RecvPool::new(&pool);
        let attach = |builder: RdmaBuilder<'_>| builder.attach(&rig.workq).unwrap();
        let pairs = [(); 2].map(|()| {
            let here = attach(Rdma::builder(&rig.device));
            let there = attach(Rdma::builder(&rig.device).recv_pool(&pool));
            here.connect(&there.export().unwrap()).wait().unwrap();
            there.connect(&here.export().unwrap()).wait().unwrap();
            let stream = there.messages();
            (here, stream)
        });
        let [(here, mut stream), (other, mut late)] = pairs;
        let (src, _) = rig.pair();
        let messages = async || {
            assert_eq!(other.send(&src).await, Ok(LEN));
            let (message, sent) = tokio::join!(stream.next(), here.send(&src));
            assert_eq!(
                (sent, message.unwrap().unwrap().received.len),
                (Ok(LEN), LEN)
            );
            assert_eq!(late.next().await.unwrap().unwrap().received.len, LEN);
        };
        let allocated = on_runtime(rig.allocated_by(4 * times, messages));
        assert_eq!(allocated, 0, "{mode:?}");
    });
}

#[test]
fn a_hash_allocates_nothing_nor_does_a_part_of_a_session() {
    for_each_way(|mode, rig, times| {
        let sha = Sha::builder(&rig.device).attach(&rig.workq).unwrap();
        let (src, dst) = rig.pair();
        src.set_data(0, LEN * FILLING).unwrap();
        let chain = BufChain::with_capacity(2);
        chain.push(src.slice(0..128).unwrap()).unwrap();
        chain.push(&src).unwrap();
        let [session, other] = [(); 2].map(|()| sha.session(Algorithm::Sha512).unwrap());
        let hashes = async || {
            for algorithm in Algorithm::ALL {
                sha.hash(algorithm, &src, &dst).await.unwrap();
                sha.hash(algorithm, &chain, &dst).await.unwrap();
            }
            session.update(&src).await.unwrap();
            session.update(&chain).await.unwrap();
            other.copy_from(&session).unwrap();
            session.finish((), &dst).await.unwrap();
            other.finish(&src, &dst).await.unwrap();
            dst.reset_data_len().unwrap();
        };
        let allocated = on_runtime(rig.allocated_by(times, hashes));
        assert_eq!(allocated, 0, "{mode:?}");
    });
}

#[test]
fn jobs_of_a_loop_of_ones_own_allocate_nothing() {
    for_each_way(|mode, rig, times| {
        let (src, dst) = rig.pair();
        rig.workq.event_handle().unwrap();
        let jobs = async || {
            for at in 0..FILLING as u64 {
                rig.dma.copy(&src, &dst).post(at).unwrap();
                rig.workq.arm();
                let mut told = 0;
                while told == 0 {
                    rig.workq.clear();
                    told = rig.workq.progress(|word, _| assert_eq!(word, at));
                }
            }
            dst.reset_data_len().unwrap();
        };
        let allocated = on_runtime(rig.allocated_by(times, jobs));
        assert_eq!(allocated, 0, "{mode:?}");
    });
}

#[test]
fn copies_that_wait_for_a_slot_allocate_nothing() {
    for_each_way(|mode, rig, times| {
        let pairs: [_; 24] = std::array::from_fn(|_| rig.pair());
        let copies = async || {
            let mut ops = pin!(futures::future::join3(
                join8(|at| rig.dma.copy(&pairs[at].0, &pairs[at].1)),
                join8(|at| rig.dma.copy(&pairs[at + 8].0, &pairs[at + 8].1)),
                join8(|at| rig.dma.copy(&pairs[at + 16].0, &pairs[at + 16].1)),
            ));
            ops.as_mut().await;
            for (_, dst) in &pairs {
                dst.reset_data_len().unwrap();
            }
        };
        let allocated = on_runtime(rig.allocated_by(3 * times, copies));
        assert_eq!(allocated, 0, "{mode:?}");
    });
}

/// Awaits eight operations at once, without the allocations of `join_all`.
async fn join8<F: Future<Output = Result<usize, tokio_doca::error::JobError>>>(
    op: impl Fn(usize) -> F,
) {
    let (mut a, mut b, mut c, mut d) = (pin!(op(0)), pin!(op(1)), pin!(op(2)), pin!(op(3)));
    let (mut e, mut f, mut g, mut h) = (pin!(op(4)), pin!(op(5)), pin!(op(6)), pin!(op(7)));
    let mut left = [true; 8];
    poll_fn(|cx| {
        let ops = [
            a.as_mut(),
            b.as_mut(),
            c.as_mut(),
            d.as_mut(),
            e.as_mut(),
            f.as_mut(),
            g.as_mut(),
            h.as_mut(),
        ];
        for (left, op) in left.iter_mut().zip(ops) {
            if *left && let Poll::Ready(copied) = op.poll(cx) {
                assert_eq!(copied, Ok(LEN));
                *left = false;
            }
        }
        if left.contains(&true) {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    })
    .await;
}

#[test]
fn chains_allocate_nothing_after_they_were_built() {
    for_each_way(|mode, rig, times| {
        let (gather, scatter) = (BufChain::with_capacity(3), BufChain::with_capacity(2));
        let (src, dst) = rig.pair();
        let (other, last) = rig.pair();
        let copies = async || {
            gather.push(&src).unwrap();
            gather.push(src.slice(8..24).unwrap()).unwrap();
            gather.push(&other).unwrap();
            scatter.push(&dst).unwrap();
            scatter.push(&last).unwrap();
            let copied = rig.dma.copy(&gather, &scatter).await;
            assert_eq!(copied, Ok(2 * LEN + 16));
            while gather.pop().unwrap().is_some() {}
            while scatter.pop().unwrap().is_some() {}
            dst.reset_data_len().unwrap();
        };
        let allocated = on_runtime(rig.allocated_by(6 * times, copies));
        assert_eq!(allocated, 0, "{mode:?}");
    });
}

#[test]
fn bufs_allocate_nothing() {
    let rig = Rig::new(Mode::BusyPoll, inline(), 4);
    let inventory = BufInventory::with_capacity(8);
    let round = async || {
        let (src, dst) = rig.pair();
        let clone = src.clone();
        let slice = clone.slice(1..9).unwrap();
        drop(src);
        drop(clone.data().unwrap());
        drop(dst.data_mut().unwrap());
        dst.extend_from_slice(&[1; 16]).unwrap();
        drop((slice.clone(), slice));
        drop(rig.pool.alloc().await);
        let ranged = inventory
            .buf_filled(&rig.mmap, 1 << 18..(1 << 18) + 64)
            .unwrap();
        let within = inventory
            .buf(&rig.mmap, (1 << 18) + 32..(1 << 18) + 40)
            .unwrap();
        drop(ranged.data().unwrap());
        let both = (ranged.clone(), within);
        drop(both.0.data_mut().unwrap());
        drop(both);
    };
    assert_eq!(on_runtime(rig.allocated_by(200, round)), 0);
}

#[test]
fn waiting_for_an_element_allocates_nothing() {
    let rig = Rig::new(Mode::BusyPoll, inline(), 4);
    let held = Cell::new(None);
    let mut all: Vec<Buf> = std::iter::from_fn(|| rig.pool.try_alloc().ok()).collect();
    held.set(all.pop());
    let round = async || {
        let mut wait = pin!(rig.pool.alloc());
        let mut cx = Context::from_waker(Waker::noop());
        assert!(
            wait.as_mut().poll(&mut cx).is_pending(),
            "the pool is empty"
        );
        // A second waiter gives up its place in the queue.
        let mut dropped = Box::pin(rig.pool.alloc());
        assert!(dropped.as_mut().poll(&mut cx).is_pending());
        drop(dropped);
        drop(held.take());
        held.set(Some(wait.await));
    };
    // The Box above is the test's own allocation.
    assert_eq!(on_runtime(rig.allocated_by(200, round)), 200);
}

#[test]
fn ops_dropped_in_flight_allocate_nothing() {
    for mode in [Mode::EventDriven, Mode::BusyPoll] {
        let rig = Rig::new(mode, deferred(), 4);
        let (src, dst) = rig.pair();
        let (other, last) = rig.pair();
        let round = async || {
            let hold = rig.soft.faults().hold();
            let mut cx = Context::from_waker(Waker::noop());
            {
                let (mut one, mut two) = (
                    pin!(rig.dma.copy(&src, &dst)),
                    pin!(rig.dma.copy(&other, &last)),
                );
                assert!(one.as_mut().poll(&mut cx).is_pending());
                assert!(two.as_mut().poll(&mut cx).is_pending());
            }
            assert_eq!(rig.workq.in_flight(), 2);
            drop(hold);
            rig.drained().await;
            dst.reset_data_len().unwrap();
            last.reset_data_len().unwrap();
        };
        // The warm-up includes the single growth of the script of faults and of the list of yielded
        // tasks.
        let allocated = on_runtime(rig.allocated_by(100, round));
        assert_eq!(allocated, 0, "{mode:?}");
    }
}

#[test]
fn a_timeout_round_an_op_allocates_what_it_does_round_any_future() {
    const LIMIT: Duration = Duration::from_secs(60);
    for_each_way(|mode, rig, times| {
        let (src, dst) = rig.pair();
        let (bare, ours) = on_runtime(async {
            let bare = rig.allocated_by(64 * times, async || {
                tokio::time::timeout(LIMIT, tokio::task::yield_now())
                    .await
                    .unwrap();
            });
            let bare = bare.await;
            let ours = rig.allocated_by(64 * times, async || {
                let copied = tokio::time::timeout(LIMIT, rig.dma.copy(&src, &dst)).await;
                copied.unwrap().unwrap();
                dst.reset_data_len().unwrap();
            });
            (bare, ours.await)
        });
        assert_eq!(ours, bare, "{mode:?}");
    });
}

#[test]
fn a_timeout_that_runs_out_allocates_what_it_does_round_any_future() {
    for mode in [Mode::EventDriven, Mode::BusyPoll] {
        let rig = Rig::new(mode, deferred(), 4);
        let (src, dst) = rig.pair();
        let (bare, ours) = on_runtime(async {
            let bare = rig.allocated_by(50, async || {
                let late = tokio::time::timeout(Duration::ZERO, std::future::pending::<()>());
                late.await.unwrap_err();
                rig.drained().await;
            });
            let bare = bare.await;
            let ours = rig.allocated_by(50, async || {
                let hold = rig.soft.faults().hold();
                let late = tokio::time::timeout(Duration::ZERO, rig.dma.copy(&src, &dst));
                late.await.unwrap_err();
                drop(hold);
                rig.drained().await;
                dst.reset_data_len().unwrap();
            });
            (bare, ours.await)
        });
        assert_eq!(ours, bare, "{mode:?}");
    }
}

// A device that rings no more than it must
// ---------------------------------------------------------------------

#[test]
fn an_op_that_found_anothers_completion_ready_is_still_woken_by_its_own() {
    let adapter = frugal::Frugal::new();
    let device = Device::from_adapter(adapter.clone());
    let mmap = Mmap::builder().device(&device).alloc(1 << 14).unwrap();
    let pool = BufPool::builder(&mmap).build().unwrap();
    let workq = WorkQ::builder().depth(4).build().unwrap();
    let dma = Dma::builder(&device).attach(&workq).unwrap();
    let alloc = || pool.try_alloc().unwrap();
    let (src, one, two) = (alloc(), alloc(), alloc());
    src.extend_from_slice(b"hello").unwrap();
    on_runtime(async {
        // The first job completes before anything waits, so that the device does not signal.
        let first = dma.copy(&src, &one).start().unwrap();
        adapter.finish_one();
        let second = tokio::spawn(dma.copy(src.clone(), two).owned());
        // The second copy finds the completion of the first one, and has to wait for its own.
        while workq.in_flight() < 2 {
            tokio::task::yield_now().await;
        }
        adapter.finish_one();
        let woken = tokio::time::timeout(support::LIMIT, second).await;
        let slept = "the second Op sleeps for ever: nothing was armed for it";
        woken.expect(slept).unwrap().unwrap();
        first.await.unwrap();
    });
}
