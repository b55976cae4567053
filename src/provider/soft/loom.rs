//! Loom models of the software device: the ring, the doorbell, the engine's sleep, and a whole
//! queue from `submit` to `retire`.
//!
//! The signal is a real eventfd: the thread that completes checks whether it became readable, and
//! then wakes the reaper.
#![allow(clippy::unwrap_used, reason = "these are tests")]
#![expect(
    unsafe_code,
    reason = "pushes nodes, and submits Jobs whose memory is not touched"
)]

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicUsize as Tally;
use std::sync::{Arc, Mutex};

use super::counter::Counters;
use super::engine::{Consumer, Doorbell, Engine, Parker, Ring, Rings};
use super::fault::Faults;
use super::queue::SoftQueue;
use super::shared::DeviceShared;
use crate::device::{
    Armed, Completion, CopyJob, KeepAlive, Queue, QueueConfig, Segment, Segments, Signal, Submit,
    Token,
};
use crate::error::{ErrorKind, JobError};
use crate::sync::atomic::{
    AtomicU64,
    Ordering::{self, AcqRel, Acquire, Relaxed, Release, SeqCst},
};
use crate::sync::loom::{Task, check, mutant, spawn};

/// Puts a value at the next position that it claims, as `submit` does.
fn put(ring: &Ring<u64>, claims: &AtomicU64, value: u64) {
    let position = claims.fetch_add(1, AcqRel);
    // SAFETY: only this call has the position, and the ring has the capacity for all values.
    unsafe { ring.put(position, value) };
}

#[test]
fn what_is_put_is_got_once_and_in_order() {
    check(3, || {
        let shared = Arc::new((Ring::new(4), AtomicU64::new(0)));
        let putters = [&[0, 1][..], &[2]].map(|values| {
            let shared = Arc::clone(&shared);
            spawn(move || {
                values
                    .iter()
                    .for_each(|&value| put(&shared.0, &shared.1, value))
            })
        });
        let mut seen = Vec::new();
        let get = |seen: &mut Vec<u64>| {
            // SAFETY: only this thread takes values, one position after the other.
            while let Some(value) = unsafe { shared.0.get(seen.len() as u64) } {
                seen.push(value);
            }
        };
        get(&mut seen);
        for putter in putters {
            putter.join().unwrap();
        }
        get(&mut seen);
        let of_the_first: Vec<u64> = seen.iter().copied().filter(|&value| value < 2).collect();
        assert_eq!((seen.len(), &of_the_first[..]), (3, &[0, 1][..]));
    });
}

/// Models a token that goes around a ring with one entry: it is put again only after it was taken.
fn goes_round(back: Ordering) {
    check(3, move || {
        let shared = Arc::new((Ring::new(1), AtomicU64::new(0), Task::new()));
        let getter = {
            let shared = Arc::clone(&shared);
            spawn(move || {
                for position in 0..2 {
                    // SAFETY: only this thread takes values, one position after the other.
                    while unsafe { shared.0.get(position) } != Some(7 + position) {
                        shared.2.sleep();
                    }
                    // This is a completion that is reaped, after which its token is used again.
                    shared.1.store(position + 1, back);
                }
            })
        };
        for position in 0..2 {
            while shared.1.load(Acquire) < position {
                ::loom::thread::yield_now();
            }
            // SAFETY: there is one entry, and its former value was taken.
            unsafe { shared.0.put(position, 7 + position) };
            shared.2.waker().wake();
        }
        getter.join().unwrap();
    });
}

#[test]
fn an_entry_is_used_again_after_it_was_got() {
    goes_round(Release);
}

#[test]
fn mutant_that_uses_an_entry_again_without_hearing_of_it_is_found() {
    mutant("Causality violation", || goes_round(Relaxed));
}

/// Models a job that is put while the engine is about to sleep. `looks` is the engine's last poll
/// before it sleeps.
fn is_not_slept_through(looks: fn(&Parker, &Ring<u64>) -> bool) {
    check(4, move || {
        let shared = Arc::new((Parker::new(), Ring::new(1), Task::new()));
        let engine = {
            let shared = Arc::clone(&shared);
            spawn(move || {
                let (parker, ring, task) = &*shared;
                // SAFETY: only this thread takes values.
                while unsafe { ring.get(0) }.is_none() {
                    if !looks(parker, ring) {
                        task.sleep();
                    }
                    parker.finish();
                }
            })
        };
        let (parker, ring, task) = &*shared;
        // SAFETY: this is the only value.
        unsafe { ring.put(0, 1) };
        if parker.claim_wake() {
            task.waker().wake();
        }
        engine.join().unwrap();
    });
}

#[test]
fn an_engine_that_lies_down_and_then_looks_sleeps_through_nothing() {
    is_not_slept_through(|parker, ring| {
        parker.prepare();
        ring.holds(0)
    });
}

#[test]
fn mutant_that_looks_and_then_lies_down_is_found() {
    mutant("deadlock", || {
        is_not_slept_through(|parker, ring| {
            let found = ring.holds(0);
            parker.prepare();
            found
        })
    });
}

/// An eventfd, and how often it was signalled.
struct Bell {
    signal: Arc<Signal>,
    rings: Tally,
}

impl Bell {
    fn new() -> Bell {
        Bell {
            signal: Arc::new(Signal::new().unwrap()),
            rings: Tally::new(0),
        }
    }

    /// Does what the driver would do: wakes the task if the eventfd was signalled.
    fn listen(&self, task: &Task) {
        let fd = self.signal.as_fd().try_clone_to_owned().unwrap();
        if File::from(fd).read(&mut [0; 8]).is_ok() {
            self.rings.fetch_add(1, SeqCst);
            task.waker().wake();
        }
    }
}

/// Models one thread that completes a job by `complete`, and another that waits for the completion.
/// `sleeps` polls, and returns true if the waiting thread may sleep.
fn one_is_rung_for(complete: fn(&Ring<u64>, &Doorbell), sleeps: fn(&Ring<u64>, &Doorbell) -> bool) {
    check(4, move || {
        let (ring, bell) = (Arc::new(Ring::new(1)), Arc::new(Bell::new()));
        let doorbell = Arc::new(Doorbell::new(Arc::clone(&bell.signal)));
        let task = Arc::new(Task::new());
        let device = {
            let (ring, doorbell) = (Arc::clone(&ring), Arc::clone(&doorbell));
            let (bell, task) = (Arc::clone(&bell), Arc::clone(&task));
            spawn(move || {
                complete(&ring, &doorbell);
                bell.listen(&task);
            })
        };
        // SAFETY: only this thread takes values.
        while unsafe { ring.get(0) }.is_none() {
            if sleeps(&ring, &doorbell) {
                task.sleep();
            }
        }
        device.join().unwrap();
    });
}

fn publish(ring: &Ring<u64>) {
    // SAFETY: this is the only value.
    unsafe { ring.put(0, 1) };
}

fn publish_then_ring(ring: &Ring<u64>, doorbell: &Doorbell) {
    publish(ring);
    doorbell.ring(1);
    doorbell.signal_for_certain(1);
}

fn arm_then_look(ring: &Ring<u64>, doorbell: &Doorbell) -> bool {
    doorbell.arm(0);
    !ring.holds(0)
}

#[test]
fn who_arms_and_then_looks_is_rung_for_or_sees_it() {
    one_is_rung_for(publish_then_ring, arm_then_look);
}

#[test]
fn mutant_that_looks_and_then_arms_is_found() {
    let look_then_arm = |ring: &Ring<u64>, doorbell: &Doorbell| {
        let empty = !ring.holds(0);
        doorbell.arm(0);
        empty
    };
    mutant("deadlock", || {
        one_is_rung_for(publish_then_ring, look_then_arm)
    });
}

#[test]
fn mutant_that_rings_before_it_publishes_is_found() {
    let ring_then_publish = |ring: &Ring<u64>, doorbell: &Doorbell| {
        doorbell.signal_for_certain(1);
        publish(ring);
    };
    mutant("deadlock", || {
        one_is_rung_for(ring_then_publish, arm_then_look)
    });
}

#[test]
fn mutant_that_never_rings_for_certain_is_found() {
    let publish_then_glance = |ring: &Ring<u64>, doorbell: &Doorbell| {
        publish(ring);
        doorbell.ring(1);
    };
    mutant("deadlock", || {
        one_is_rung_for(publish_then_glance, arm_then_look)
    });
}

/// A real queue. A thread of the model does its engine's work.
struct Stand {
    queue: SoftQueue,
    consumer: Mutex<Consumer>,
    bell: Bell,
    reaper: Task,
    /// The task in which the engine waits for jobs.
    worker: Task,
}

impl Stand {
    fn new(depth: u32) -> Arc<Stand> {
        let bell = Bell::new();
        let device = DeviceShared {
            faults: Faults::new(0),
            inline_jobs: Counters::default(),
            own_jobs: 0.into(),
            highest_value: u64::MAX,
        };
        let (rings, consumer) = Rings::open(&QueueConfig::new(depth, Arc::clone(&bell.signal)));
        let engine = Arc::new(Engine(Arc::default()));
        Arc::new(Stand {
            queue: SoftQueue::modelled(rings, Arc::new(device), engine),
            consumer: Mutex::new(consumer),
            bell,
            reaper: Task::new(),
            worker: Task::new(),
        })
    }

    fn submit(&self, index: u32) {
        // SAFETY: no code reaches the memory.
        let segment = Segments::one(unsafe { Segment::new(NonNull::dangling(), 1, 0) });
        let job = CopyJob {
            src: segment,
            dst: segment,
            len: 1,
        };
        // SAFETY: the engine fails every job, and touches no memory; each index is used once.
        let submitted = unsafe {
            self.queue
                .submit(&[(Token::new(0, index, 0), (&job).into())])
        };
        assert_eq!(submitted.accepted, 1);
        self.worker.waker().wake();
    }

    /// Fails `jobs` jobs. Only one thread calls this, so that the lock is not part of the model.
    fn work(&self, jobs: usize) {
        let mut consumer = self.consumer.lock().unwrap();
        for _ in 0..jobs {
            let work = loop {
                match consumer.next() {
                    Some(work) => break work,
                    None => self.worker.sleep(),
                }
            };
            consumer.finish(work, Err(JobError::device(ErrorKind::IoFailed, 0)));
            consumer.signal_for_certain();
            self.bell.listen(&self.reaper);
        }
    }

    /// Reaps all completions, in batches of `batch`.
    fn reap(&self, batch: usize, seen: &mut Vec<u32>) {
        let nothing = Completion::new(Token::from_raw(0), Ok(0));
        let mut out = [nothing; 2];
        loop {
            // SAFETY: each model reaps on one thread.
            let reaped = unsafe { self.queue.reap(&mut out[..batch]) };
            seen.extend(out[..reaped].iter().map(|done| done.token.index()));
            if reaped < batch {
                return;
            }
        }
    }
}

#[test]
fn a_queue_hands_every_job_back_once_and_rings_for_it() {
    check(3, || {
        let stand = Stand::new(2);
        let engine = {
            let stand = Arc::clone(&stand);
            spawn(move || stand.work(2))
        };
        stand.submit(0);
        stand.submit(1);
        let (mut seen, mut arms) = (Vec::new(), 0);
        loop {
            stand.reap(1, &mut seen);
            if seen.len() == 2 {
                break;
            }
            arms += 1;
            if stand.queue.arm() == Armed::Armed {
                stand.reaper.sleep();
            }
        }
        engine.join().unwrap();
        assert_eq!(seen, [0, 1], "in order");
        assert!(stand.bell.rings.load(SeqCst) <= arms, "once per arm");
    });
}

/// The object that `retire` keeps alive: it records its drop.
struct Kept {
    drops: Arc<Tally>,
    finished: Arc<Tally>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        assert_eq!(self.finished.load(SeqCst), 2, "after the last Job");
        self.drops.fetch_add(1, SeqCst);
    }
}

#[test]
fn what_a_retired_queue_keeps_goes_once_and_after_the_last_job() {
    check(3, || {
        let stand = Stand::new(2);
        let (drops, finished) = (Arc::new(Tally::new(0)), Arc::new(Tally::new(0)));
        stand.submit(0);
        stand.submit(1);
        let engine = {
            let (stand, finished) = (Arc::clone(&stand), Arc::clone(&finished));
            spawn(move || {
                let mut consumer = stand.consumer.lock().unwrap();
                while let Some(work) = consumer.next() {
                    finished.fetch_add(1, SeqCst);
                    consumer.finish(work, Err(JobError::device(ErrorKind::IoFailed, 0)));
                    consumer.signal_for_certain();
                }
                consumer.is_over(&Faults::new(0))
            })
        };
        let mut seen = Vec::new();
        stand.reap(2, &mut seen);
        let keep: KeepAlive = Arc::new(Kept {
            drops: Arc::clone(&drops),
            finished,
        });
        // SAFETY: two were submitted, no memory is touched, and this thread alone had the queue.
        unsafe { stand.queue.retire(keep, 2 - seen.len()) };
        let over = engine.join().unwrap();
        // The engine was called, and would check once more.
        let consumer = stand.consumer.lock().unwrap();
        assert!(over || consumer.is_over(&Faults::new(0)));
        assert_eq!(drops.load(SeqCst), 1, "exactly once");
    });
}

/// A queue without an engine, whose capacity is one job of two pieces: each poll does one piece.
struct Own {
    queue: SoftQueue,
    bell: Bell,
    bytes: [Segments; 2],
    _memory: Vec<u8>,
}

const PIECES: usize = 2;

impl Own {
    fn new() -> Arc<Own> {
        let bell = Bell::new();
        let device = DeviceShared {
            faults: Faults::new(0),
            inline_jobs: Counters::default(),
            own_jobs: 0.into(),
            highest_value: u64::MAX,
        };
        let config = QueueConfig::new(1, Arc::clone(&bell.signal));
        let mut memory = vec![0; 2 * PIECES];
        let (from, to) = memory.split_at_mut(PIECES);
        let bytes = [from, to].map(|bytes| {
            // SAFETY: the vector stays where it is, and goes with the queue.
            Segments::one(unsafe { Segment::new(NonNull::from(bytes).cast(), PIECES, 0) })
        });
        Arc::new(Own {
            queue: SoftQueue::open(&config, Arc::new(device), None),
            bell,
            bytes,
            _memory: memory,
        })
    }

    fn submit(&self) {
        let [src, dst] = self.bytes;
        let len = PIECES;
        let job = CopyJob { src, dst, len };
        // SAFETY: this is the only job. No other code touches its bytes, which stay where they are.
        let submitted = unsafe { self.queue.submit(&[(Token::new(0, 0, 0), (&job).into())]) };
        assert_eq!(submitted.accepted, 1);
    }

    /// Polls once. Returns true if the job has completed.
    fn look(&self) -> bool {
        let mut out = [Completion::new(Token::from_raw(0), Ok(0))];
        // SAFETY: each model polls on one thread.
        unsafe { self.queue.reap(&mut out) == 1 }
    }

    /// Arms, as a thread that is about to sleep does. Returns true if the thread may sleep.
    fn arms_in_vain(&self) -> bool {
        self.queue.arm() == Armed::Armed
    }

    fn is_rung(&self) -> bool {
        let fd = self.bell.signal.as_fd().try_clone_to_owned().unwrap();
        File::from(fd).read(&mut [0; 8]).is_ok()
    }
}

#[test]
fn who_arms_hears_of_a_job_that_nobody_does_by_itself() {
    check(4, || {
        let own = Own::new();
        let armer = {
            let own = Arc::clone(&own);
            spawn(move || own.arms_in_vain())
        };
        own.submit();
        let asleep = armer.join().unwrap();
        assert!(own.is_rung() || !asleep, "all sleep");
        assert!(!own.look() && own.look(), "two pieces");
    });
}

/// One thread does a piece of the job, and does not arm, since another thread arms. The arming
/// thread must notice the rest of the job.
#[test]
fn who_arms_hears_of_a_job_that_another_one_is_doing() {
    check(4, || {
        let own = Own::new();
        own.submit();
        let armer = {
            let own = Arc::clone(&own);
            spawn(move || own.arms_in_vain())
        };
        assert!(!own.look(), "the first piece");
        let asleep = armer.join().unwrap();
        assert!(own.is_rung() || !asleep, "all sleep");
        assert!(own.look(), "the other piece");
    });
}

/// Models how `Own::next` publishes the progress of the only job, between its first and second
/// piece.
fn is_seen(said: fn(&[AtomicU64; 2]), seen: fn(&[AtomicU64; 2]) -> bool) {
    check(4, move || {
        let words = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let sayer = {
            let words = Arc::clone(&words);
            spawn(move || said(&words))
        };
        assert!(seen(&words), "all sleep");
        sayer.join().unwrap();
    });
}

#[test]
fn mutant_that_says_in_two_words_what_is_left_is_found() {
    is_seen(
        |words| words[0].store(3, SeqCst),
        |words| {
            let next = words[0].load(SeqCst);
            next & 1 != 0 || next / 2 < 1
        },
    );
    mutant("all sleep", || {
        is_seen(
            |words| {
                words[0].store(1, SeqCst);
                words[1].store(1, SeqCst);
            },
            |words| words[1].load(SeqCst) != 0 || words[0].load(SeqCst) < 1,
        );
    });
}
