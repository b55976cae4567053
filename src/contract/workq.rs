//! The duties together: the provider under a WorkQ, in both modes, on one runtime and on several.

use std::future::Future;
use std::sync::{Arc, Barrier};
use std::thread;

use tokio::runtime::{Builder, Runtime};

use super::suite::{depths, watched};
use crate::device::Device;
use crate::{Buf, BufChain, BufPool, Dma, Mmap, Mode, WorkQ};

const ELEMENT: usize = 2048;
const TASKS: usize = 12;
const ROUNDS: usize = 20;

/// Copies through a WorkQ in [`Mode::BusyPoll`], without a runtime.
///
/// # Panics
///
/// If a copy is wrong, fails or never ends, or if something is in flight after `shutdown`.
pub fn busy_polls(device: &Device) {
    watched("Mode::BusyPoll", device, |device| {
        for depth in depths(device) {
            let rig = Bench::new(device, depth, Mode::BusyPoll);
            rig.workq.block_on(rig.copies(0));
            rig.workq.block_on(rig.lists());
            rig.workq.block_on(rig.drops());
            rig.workq
                .block_on(rig.workq.shutdown())
                .expect("nothing hinders it");
            assert_eq!(rig.workq.in_flight(), 0, "in flight after shutdown");
        }
    });
}

/// Copies through a WorkQ in [`Mode::EventDriven`], on a Tokio runtime, more tasks than Slots.
///
/// # Panics
///
/// As [`busy_polls`].
pub fn sleeps_and_wakes(device: &Device) {
    watched("Mode::EventDriven", device, |device| {
        for depth in depths(device) {
            let rig = Arc::new(Bench::new(device, depth, Mode::EventDriven));
            runtime().block_on(async {
                let task = |seed| {
                    let rig = Arc::clone(&rig);
                    tokio::spawn(async move { rig.copies(seed).await })
                };
                let tasks: Vec<_> = (0..TASKS).map(task).collect();
                for task in tasks {
                    task.await.expect("a task's copies");
                }
                rig.lists().await;
                rig.drops().await;
                rig.workq.shutdown().await.expect("nothing hinders it");
                assert_eq!(rig.workq.in_flight(), 0, "in flight after shutdown");
            });
        }
    });
}

/// Several runtimes await one WorkQ; one of them has registered and is then blocked.
///
/// # Panics
///
/// As [`busy_polls`].
pub fn serves_several_runtimes(device: &Device) {
    watched("several runtimes", device, |device| {
        for depth in depths(device) {
            let rig = Bench::new(device, depth, Mode::EventDriven);
            let (registered, over) = (Barrier::new(4), Barrier::new(4));
            let (rig, registered, over) = (&rig, &registered, &over);
            thread::scope(|scope| {
                for thread in 0..4 {
                    scope.spawn(move || {
                        let runtime = runtime();
                        runtime.block_on(rig.copies(thread));
                        registered.wait();
                        // The last one's driver is not polled from here on.
                        if thread < 3 {
                            for turn in 1..4 {
                                runtime.block_on(rig.copies(thread * 100 + turn));
                            }
                        }
                        over.wait();
                    });
                }
            });
            runtime()
                .block_on(rig.workq.shutdown())
                .expect("nothing hinders it");
            assert_eq!(rig.workq.in_flight(), 0, "in flight after shutdown");
        }
    });
}

fn runtime() -> Runtime {
    Builder::new_current_thread()
        .enable_io()
        .build()
        .expect("a runtime with I/O")
}

/// A WorkQ, a context and memory.
struct Bench {
    workq: WorkQ,
    dma: Dma,
    pool: BufPool,
}

impl Bench {
    fn new(device: &Device, depth: u32, mode: Mode) -> Bench {
        let mmap = Mmap::builder()
            .device(device)
            .alloc(128 * ELEMENT)
            .expect("memory");
        let workq = WorkQ::builder()
            .depth(depth)
            .mode(mode)
            .build()
            .expect("a WorkQ");
        Bench {
            dma: Dma::builder(device)
                .attach(&workq)
                .expect("within the capabilities"),
            pool: BufPool::builder(&mmap)
                .element_size(ELEMENT)
                .build()
                .expect("a pool"),
            workq,
        }
    }

    async fn filled(&self, seed: usize, len: usize) -> (Buf, Vec<u8>) {
        let bytes: Vec<u8> = (0..len).map(|i| (i * 31 + seed * 7 + 1) as u8).collect();
        let buf = self.pool.alloc().await;
        buf.reset_data_len().expect("nobody has it");
        buf.extend_from_slice(&bytes).expect("it fits");
        (buf, bytes)
    }

    async fn empty(&self) -> Buf {
        let buf = self.pool.alloc().await;
        buf.reset_data_len().expect("nobody has it");
        buf
    }

    /// Copies, one after the other.
    async fn copies(&self, seed: usize) {
        for round in 0..ROUNDS {
            let len = 1 + (seed * 97 + round * 131) % (ELEMENT - 8);
            let (src, bytes) = self.filled(seed + round, len).await;
            let dst = self.empty().await;
            // In flight beside it, so that completions come together.
            let (src2, bytes2) = self.filled(seed + round + 1, len).await;
            let dst2 = self.empty().await;
            let (first, second) =
                both(self.dma.copy(&src, &dst), self.dma.copy(&src2, &dst2)).await;
            assert_eq!(
                (first, second),
                (Ok(len), Ok(len)),
                "a copy answers how many bytes it moved"
            );
            assert_eq!(dst.data().expect("the copy is over")[..], bytes);
            assert_eq!(dst2.data().expect("the copy is over")[..], bytes2);
        }
    }

    /// Copies between chains.
    async fn lists(&self) {
        let longest = self.dma.caps().max_list_len.min(8) as usize;
        for (from, to) in [(1, longest), (longest, 1), (longest, longest)] {
            let (sources, targets) = (BufChain::with_capacity(8), BufChain::with_capacity(8));
            let (mut want, mut dsts) = (Vec::new(), Vec::new());
            for piece in 0..from {
                let (buf, bytes) = self.filled(piece, ELEMENT / 8 - 3).await;
                want.extend(bytes);
                sources.push(&buf).expect("room");
            }
            for _ in 0..to {
                let dst = self.empty().await;
                targets.push(&dst).expect("room");
                dsts.push(dst);
            }
            assert_eq!(self.dma.copy(&sources, &targets).await, Ok(want.len()));
            let found: Vec<u8> = dsts
                .iter()
                .flat_map(|dst| dst.data().expect("the copy is over").to_vec())
                .collect();
            assert_eq!(found, want, "{from} pieces gathered, {to} scattered");
        }
    }

    /// Drops copies that are on their way: their memory comes back.
    async fn drops(&self) {
        for round in 0..100 {
            let (src, bytes) = self.filled(round, ELEMENT / 2).await;
            let dst = self.empty().await;
            if let Ok(copy) = self.dma.try_copy(&src, &dst) {
                drop(copy);
            }
            // It is the pool that has to wait for what the device still has.
            drop((src, dst));
            if round % 10 == 9 {
                let (src, dst) = (self.filled(round, ELEMENT / 2).await.0, self.empty().await);
                assert_eq!(self.dma.copy(&src, &dst).await, Ok(bytes.len()));
            }
        }
    }
}

/// Both, in one task.
async fn both<A: Future, B: Future>(a: A, b: B) -> (A::Output, B::Output) {
    futures::future::join(a, b).await
}
