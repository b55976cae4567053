//! Checks of all duties together: the provider under a WorkQ, in both modes, on one or more
//! runtimes.

use std::future::Future;
use std::sync::{Arc, Barrier};
use std::thread;

use tokio::runtime::{Builder, Runtime};

use crate::rig::{Attached, Subject, depths, watched};
use tokio_doca::error::JobError;
use tokio_doca::{Buf, BufPool, Mmap, Mode, WorkQ, mem::BufChain};

const ELEMENT: usize = 2048;
const TASKS: usize = 12;
const ROUNDS: usize = 20;

/// Runs Jobs through a WorkQ in [`Mode::BusyPoll`], without a runtime.
///
/// # Panics
///
/// Panics if a Job has a wrong result, fails or never ends, or if something is in flight after
/// `shutdown`.
pub fn busy_polls(subject: impl Into<Subject>) {
    watched("Mode::BusyPoll", subject, |subject| {
        for depth in depths(subject) {
            let rig = Bench::new(subject, depth, Mode::BusyPoll);
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

/// Runs Jobs through a WorkQ in [`Mode::EventDriven`], on a Tokio runtime, with more tasks than
/// slots.
///
/// # Panics
///
/// Panics as [`busy_polls`] does.
pub fn sleeps_and_wakes(subject: impl Into<Subject>) {
    watched("Mode::EventDriven", subject, |subject| {
        for depth in depths(subject) {
            let rig = Arc::new(Bench::new(subject, depth, Mode::EventDriven));
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

/// Awaits jobs of one WorkQ on several runtimes. One runtime has registered with the WorkQ, and
/// then stops polling its driver.
///
/// # Panics
///
/// Panics as [`busy_polls`] does.
pub fn serves_several_runtimes(subject: impl Into<Subject>) {
    watched("several runtimes", subject, |subject| {
        for depth in depths(subject) {
            let rig = Bench::new(subject, depth, Mode::EventDriven);
            let (registered, over) = (Barrier::new(4), Barrier::new(4));
            let (rig, registered, over) = (&rig, &registered, &over);
            thread::scope(|scope| {
                for thread in 0..4 {
                    scope.spawn(move || {
                        let runtime = runtime();
                        runtime.block_on(rig.copies(thread));
                        registered.wait();
                        // The driver of the last runtime is not polled from here on.
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

/// A WorkQ, a context and memory for the checks.
struct Bench {
    subject: Subject,
    workq: WorkQ,
    context: Attached,
    pool: BufPool,
}

impl Bench {
    fn new(subject: &Subject, depth: u32, mode: Mode) -> Bench {
        let mmap = Mmap::builder()
            .device(&subject.device)
            .alloc(128 * ELEMENT)
            .expect("memory");
        let workq = WorkQ::builder()
            .depth(depth)
            .mode(mode)
            .build()
            .expect("a WorkQ");
        Bench {
            subject: subject.clone(),
            context: subject.attach(&workq).expect("within the capabilities"),
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
        buf.reset_data_len().expect("no job has it");
        buf.extend_from_slice(&bytes).expect("it fits");
        (buf, bytes)
    }

    /// Checks a Job's answer and the bytes in `dst`. `room` is the tailroom that the Job had.
    fn check(&self, answer: Result<u64, JobError>, bytes: &[u8], room: usize, dst: &[u8]) {
        let (written, want) = self.subject.expected(bytes, room);
        assert_eq!(answer, Ok(want), "what a Job must answer");
        assert_eq!(dst, written, "what a Job must write");
    }

    async fn empty(&self) -> Buf {
        let buf = self.pool.alloc().await;
        buf.reset_data_len().expect("no job has it");
        buf
    }

    /// Runs Jobs, two at a time.
    async fn copies(&self, seed: usize) {
        for round in 0..ROUNDS {
            let len = self
                .subject
                .within(1 + (seed * 97 + round * 131) % (ELEMENT - 8));
            let (src, bytes) = self.filled(seed + round, len).await;
            let dst = self.empty().await;
            // A second Job in flight, so that completions come together.
            let (src2, bytes2) = self.filled(seed + round + 1, len).await;
            let dst2 = self.empty().await;
            for dst in [&dst, &dst2] {
                // The tailroom is as large as a Job without a source may write.
                let room = self.subject.within(ELEMENT).max(len);
                let headroom = ELEMENT - self.subject.room_for(room);
                dst.set_data(headroom, 0).expect("no job has it");
            }
            let room = dst.tailroom();
            let (first, second) = both(
                self.context.work(&src, &dst),
                self.context.work(&src2, &dst2),
            )
            .await;
            self.check(first, &bytes, room, &dst.data().expect("the Job is over"));
            self.check(
                second,
                &bytes2,
                room,
                &dst2.data().expect("the Job is over"),
            );
        }
    }

    /// Runs Jobs on chains.
    async fn lists(&self) {
        let longest = self.subject.max_list_len().min(8) as usize;
        let longest = self.subject.within(longest);
        let piece_len = self.subject.within(longest * (ELEMENT / 8 - 3)) / longest;
        for (from, to) in [(1, longest), (longest, 1), (longest, longest)] {
            let (sources, targets) = (BufChain::with_capacity(8), BufChain::with_capacity(8));
            let (mut bytes, mut dsts) = (Vec::new(), Vec::new());
            let to = self.subject.targets(to);
            for piece in 0..from {
                let (buf, part) = self.filled(piece, piece_len).await;
                bytes.extend(part);
                sources.push(&buf).expect("room");
            }
            for _ in 0..to {
                let dst = self.empty().await;
                let room = self
                    .subject
                    .room_for(self.subject.within(to * ELEMENT) / to);
                dst.set_data(ELEMENT - room, 0).expect("no job has it");
                targets.push(&dst).expect("room");
                dsts.push(dst);
            }
            let room = targets.tailroom();
            let answer = self.context.work(&sources, &targets).await;
            let found: Vec<u8> = dsts
                .iter()
                .flat_map(|dst| dst.data().expect("the Job is over").to_vec())
                .collect();
            self.check(answer, &bytes, room, &found);
        }
    }

    /// Drops Jobs in flight, and checks that their memory returns to the pool.
    async fn drops(&self) {
        for round in 0..100 {
            let (src, dst) = self.pair(round).await;
            self.context.submit_and_drop(&src, &dst);
            // Dropped here, so that the pool has to wait for the Bufs that the device still uses.
            drop((src, dst));
            if round % 10 == 9 {
                let (src, dst) = self.pair(round).await;
                let answer = self.context.work(&src, &dst).await;
                assert!(answer.is_ok(), "after some that were dropped: {answer:?}");
            }
        }
    }

    async fn pair(&self, seed: usize) -> (Buf, Buf) {
        let len = self.subject.within(ELEMENT / 2);
        let (src, dst) = (self.filled(seed, len).await.0, self.empty().await);
        let room = self.subject.room_for(len);
        dst.set_data(ELEMENT - room, 0).expect("no job has it");
        (src, dst)
    }
}

/// Awaits two futures in one task.
async fn both<A: Future, B: Future>(a: A, b: B) -> (A::Output, B::Output) {
    futures::future::join(a, b).await
}
