//! Models of a device that refuses jobs. The waiters in line are woken even if the future whose job
//! was refused is dropped or not polled again.
//!
//! In some models the device takes one job, and refuses others until the first has completed. These
//! must work without the timer, which never expires there. In other models the device refuses jobs
//! although it has capacity.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Waker};

use ::loom::thread::JoinHandle;

use super::{Bed, Op, on_a_workq, prepared};
use crate::reactor::Attachment;
use crate::reactor::JobFuture;
use crate::reactor::workq::LaunchError;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use crate::sync::loom::{Task, block_on, check, mutant, spawn};
use crate::sync::seq_cst_order;

/// Returns an operation that was polled once, and is pending.
fn polled_once(attachment: &Arc<Attachment>) -> Pin<Box<Op>> {
    let mut op = Box::pin(Op(JobFuture::new(Arc::clone(attachment))));
    let polled = op.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending());
    op
}

impl Bed {
    /// Spawns a thread that submits a job without waiting in line. If the device refuses the job,
    /// calls `refused`.
    fn spawn_try(&self, refused: fn(&Attachment, LaunchError<'_>)) -> JoinHandle<()> {
        let attachment = Arc::clone(&self.attachment);
        spawn(move || {
            let Ok(index) = attachment.try_reserve() else {
                return;
            };
            match attachment.launch(index.take(), &mut prepared(), None) {
                // No operation waits for the job: its completion frees the slot.
                Ok(token) => attachment.abandon(token),
                Err(full) => refused(&attachment, full),
            }
        })
    }
}

/// A job is in flight on a device that takes only one, while an operation waits in line and another
/// thread tries to submit a job.
fn one_tries(refused: fn(&Attachment, LaunchError<'_>)) {
    on_a_workq(1, move |_| {
        let bed = Bed::with(2, |queue| (queue.capacity, queue.timed) = (1, false));
        // The first operation is not polled again until all threads have ended.
        let first = polled_once(&bed.attachment);
        bed.run_beside(first, [bed.spawn_op(), bed.spawn_try(refused)]);
    });
}

#[test]
fn an_op_in_line_is_woken_though_another_one_that_does_not_wait_was_refused() {
    one_tries(|_, refused| drop(refused));
}

/// The line pauses, and the thread that began the pause is not in the line.
#[test]
fn mutant_that_pauses_the_line_and_goes_away_is_found() {
    mutant("deadlock", || {
        one_tries(|attachment, refused| {
            attachment.shared.begin_pause(0);
            std::mem::forget(refused);
        });
    });
}

#[test]
fn a_shutdown_ends_though_a_job_was_refused_meanwhile() {
    on_a_workq(1, |_| {
        let bed = Bed::with(2, |queue| (queue.capacity, queue.timed) = (1, false));
        let first = polled_once(&bed.attachment);
        let workq = bed.workq.clone();
        let shutdown = spawn(move || {
            let shutdown = pin!(workq.shutdown());
            assert!(block_on(shutdown).is_ok());
        });
        bed.run_beside(first, [shutdown, bed.spawn_try(|_, refused| drop(refused))]);
    });
}

/// The device refuses a job although nothing is in flight. The operation whose job was refused is
/// dropped, or not polled again, while another operation waits in line behind it.
fn one_is_refused(dropped: bool, timed: bool) {
    on_a_workq(1, move |_| {
        let bed = Bed::with(2, |queue| queue.timed = timed);
        bed.queue.refusals.store(2, SeqCst);
        // One poll asks the device twice.
        let refused = polled_once(&bed.attachment);
        let ops = [bed.spawn_op()];
        if dropped {
            drop(refused);
            bed.run(ops);
        } else {
            bed.run_beside(refused, ops);
        }
    });
}

#[test]
fn an_op_in_line_is_woken_though_the_refused_one_is_not_polled() {
    one_is_refused(false, true);
}

#[test]
fn an_op_in_line_is_woken_though_the_refused_one_is_dropped() {
    one_is_refused(true, true);
}

#[test]
fn mutant_whose_timer_never_expires_is_found() {
    mutant("deadlock", || one_is_refused(false, false));
}

#[test]
fn an_op_that_is_refused_again_and_again_is_woken_each_time() {
    on_a_workq(1, |_| {
        let bed = Bed::new();
        bed.queue.refusals.store(4, SeqCst);
        bed.run([bed.spawn_op()]);
    });
}

/// The ways to get a pause wrong: in the thread whose job was refused, or in the thread that
/// collects.
#[derive(Clone, Copy, PartialEq)]
enum Wrong {
    Nothing,
    /// The refused thread pauses and sleeps, without checking again whether a completion was
    /// collected.
    NoSecondLook,
    /// The collecting thread checks for a pause before it has counted the completion.
    LooksBeforeItCounts,
}

struct Toy {
    wrong: Wrong,
    completed: AtomicU64,
    paused: AtomicBool,
    refused: Task,
}

// SAFETY: a Task is a waker and the state by which one thread sleeps.
unsafe impl Sync for Toy {}

impl Toy {
    /// Counts a completion and then ends a pause, as `Shared::turn` does.
    fn collect(&self) {
        let early = self.wrong == Wrong::LooksBeforeItCounts && self.paused.load(SeqCst);
        self.completed.store(1, SeqCst);
        seq_cst_order();
        let paused = match self.wrong {
            Wrong::LooksBeforeItCounts => early,
            _ => self.paused.load(SeqCst),
        };
        if paused && self.paused.swap(false, SeqCst) {
            self.refused.waker().wake();
        }
    }

    /// Does as `Full::stay`, and sleeps if no completion was collected.
    fn stay(&self, before: u64) {
        self.paused.store(true, SeqCst);
        seq_cst_order();
        let look = self.wrong != Wrong::NoSecondLook;
        if look && self.completed.load(SeqCst) != before {
            return;
        }
        self.refused.sleep();
    }
}

fn toy_is_refused(wrong: Wrong) {
    check(3, move || {
        let toy = Arc::new(Toy {
            wrong,
            completed: AtomicU64::new(0),
            paused: AtomicBool::new(false),
            refused: Task::new(),
        });
        let collector = {
            let toy = Arc::clone(&toy);
            spawn(move || toy.collect())
        };
        toy.stay(0);
        collector.join().unwrap();
    });
}

#[test]
fn the_toy_pause_is_right() {
    toy_is_refused(Wrong::Nothing);
}

#[test]
fn mutant_that_pauses_without_a_second_look_is_found() {
    mutant("deadlock", || toy_is_refused(Wrong::NoSecondLook));
}

#[test]
fn mutant_that_looks_for_a_pause_before_it_counts_is_found() {
    mutant("deadlock", || toy_is_refused(Wrong::LooksBeforeItCounts));
}
