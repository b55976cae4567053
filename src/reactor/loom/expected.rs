//! A model of `Shared::expected`, by which one operation arms for all that sleep. It has the lines
//! of `poll_event`, `event_turn`, `arm` and `attach` that write and read `expected`, and ways to
//! get them wrong. `super::workq` has models of the real functions.
//!
//! (Words that several threads write are exchanged, except `asleep` and the flags that only become
//! true: loom does not order plain stores of several threads.)
//!
//! There are two operations with one job each. The device's event must be cleared; a driver thread
//! handles it.

use std::sync::Arc;

use ::loom::thread::JoinHandle;

use crate::sync::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    fence,
};
use crate::sync::loom::{Task, check, deep, mutant, spawn};
use crate::sync::seq_cst_order;

#[derive(Clone, Copy, PartialEq)]
enum Wrong {
    Nothing,
    /// `arm` sets `expected` only once all queues are armed.
    SaidAfterArming,
    /// `event_turn` resets `expected` and then clears the event.
    TakenBackBeforeClear,
    /// `poll_event` has no fence.
    NotFenced,
    /// `event_turn` never resets `expected`.
    NeverTakenBack,
    /// `attach` leaves `expected` as it is.
    AttachedInSilence,
}

struct Line {
    wrong: Wrong,
    expected: AtomicBool,
    /// The number of queues that are attached.
    queues: AtomicUsize,
    armed: [AtomicBool; 2],
    event: AtomicBool,
    driver: Task,
    /// True once all operations were notified, so that the driver stops.
    stopped: AtomicBool,
    ops: [Op; 2],
}

struct Op {
    /// The index of the queue that has the operation's job.
    queue: usize,
    done: AtomicBool,
    /// True once the job was reaped and the operation was notified.
    over: AtomicBool,
    asleep: AtomicBool,
    task: Task,
}

// SAFETY: a Task is a waker and the state by which one thread sleeps.
unsafe impl Sync for Line {}

impl Line {
    fn new(wrong: Wrong, queues: [usize; 2]) -> Arc<Line> {
        let no = || AtomicBool::new(false);
        Arc::new(Line {
            wrong,
            expected: no(),
            queues: AtomicUsize::new(1),
            armed: [no(), no()],
            event: no(),
            driver: Task::new(),
            stopped: no(),
            ops: queues.map(|queue| Op {
                queue,
                done: no(),
                over: no(),
                asleep: no(),
                task: Task::new(),
            }),
        })
    }

    /// Does as `WorkQ::attach`: adds the second queue.
    fn attach(&self) {
        self.queues.store(2, Release);
        if self.wrong != Wrong::AttachedInSilence {
            self.expected.swap(false, AcqRel);
        }
    }

    /// Does as `Shared::arm`, and as `arm` of the queues.
    fn arm(&self) -> bool {
        if self.wrong != Wrong::SaidAfterArming {
            self.expected.swap(true, AcqRel);
        }
        for armed in &self.armed[..self.queues.load(Acquire)] {
            armed.swap(true, SeqCst);
        }
        seq_cst_order();
        let ready = self.ops.iter().any(|op| op.done.load(SeqCst));
        if self.wrong == Wrong::SaidAfterArming {
            self.expected.swap(true, AcqRel);
        }
        ready
    }

    /// Does as `Shared::turn`: notifies the operations whose job is done.
    fn turn(&self) {
        for op in &self.ops {
            if op.done.load(SeqCst) && op.done.swap(false, SeqCst) {
                op.asleep.store(false, SeqCst);
                op.over.store(true, Release);
                op.task.waker().wake();
            }
        }
    }

    /// Does as `Attachment::poll_event`, until the operation has completed.
    fn sleep(&self, op: usize) {
        let op = &self.ops[op];
        while !op.over.load(Acquire) {
            op.asleep.store(true, SeqCst);
            if self.wrong != Wrong::NotFenced {
                fence(SeqCst);
            }
            if !self.expected.load(Relaxed) && self.arm() {
                self.turn();
            }
            if op.over.load(Acquire) {
                return;
            }
            op.task.sleep();
        }
    }

    /// Completes a job, as the device does.
    fn finish(&self, op: usize) {
        let op = &self.ops[op];
        op.done.swap(true, SeqCst);
        seq_cst_order();
        let armed = &self.armed[op.queue];
        if armed.load(SeqCst) && armed.swap(false, SeqCst) {
            self.event.swap(true, SeqCst);
            self.driver.waker().wake();
        }
    }

    /// Handles events until the driver is stopped.
    fn drive(&self) {
        while !self.stopped.load(SeqCst) {
            if self.event.load(SeqCst) {
                self.event_turn();
            } else {
                self.driver.sleep();
            }
        }
    }

    /// Does as `Shared::event_turn`.
    fn event_turn(&self) {
        if self.wrong == Wrong::TakenBackBeforeClear {
            self.expected.swap(false, AcqRel);
        }
        // The load comes before the swap, so that this thread sees what the thread that signalled
        // did.
        if self.event.load(SeqCst) {
            self.event.swap(false, SeqCst);
        }
        if !matches!(
            self.wrong,
            Wrong::TakenBackBeforeClear | Wrong::NeverTakenBack
        ) {
            self.expected.swap(false, AcqRel);
        }
        fence(SeqCst);
        self.turn();
        if self.ops.iter().any(|op| op.asleep.load(SeqCst)) && self.arm() {
            self.turn();
        }
    }

    fn spawn(self: &Arc<Line>, run: fn(&Line)) -> JoinHandle<()> {
        let line = Arc::clone(self);
        spawn(move || run(&line))
    }

    fn stop(&self) {
        self.stopped.store(true, SeqCst);
        self.driver.waker().wake();
    }
}

/// Runs `model` on this thread, and the driver and each function of `beside` on threads of their
/// own.
fn run<const N: usize>(line: &Arc<Line>, beside: [fn(&Line); N], model: fn(&Line)) {
    let driver = line.spawn(Line::drive);
    let beside = beside.map(|run| line.spawn(run));
    model(line);
    for thread in beside {
        thread.join().unwrap();
    }
    line.stop();
    driver.join().unwrap();
}

/// Two operations sleep on one queue, one after the other, while an earlier event comes that
/// reports no completion.
fn both_are_told(wrong: Wrong, preemptions: usize) {
    check(preemptions, move || {
        let line = Line::new(wrong, [0, 0]);
        line.event.store(true, SeqCst);
        let device = |line: &Line| {
            line.finish(0);
            line.finish(1);
        };
        run(&line, [device], |line| {
            line.sleep(0);
            line.sleep(1);
        });
    });
}

/// An operation attaches a second queue, while another thread arms the queues that it sees.
fn who_attaches_is_told(wrong: Wrong, preemptions: usize) {
    check(preemptions, move || {
        let line = Line::new(wrong, [0, 1]);
        let armer = |line: &Line| {
            if line.arm() {
                line.turn();
            }
        };
        run(&line, [armer, |line| line.finish(1)], |line| {
            line.attach();
            line.sleep(1);
        });
    });
}

#[test]
fn one_arm_is_enough_for_all_who_sleep() {
    both_are_told(Wrong::Nothing, deep(2));
}

#[test]
fn an_arm_from_before_is_not_enough_for_a_queue_that_is_attached() {
    who_attaches_is_told(Wrong::Nothing, deep(1));
}

#[test]
#[ignore = "deep: .ci/soak loom"]
fn mutant_that_says_it_is_armed_after_arming_is_found() {
    mutant("deadlock", || both_are_told(Wrong::SaidAfterArming, 3));
}

#[test]
#[ignore = "deep: .ci/soak loom"]
fn mutant_that_takes_the_event_back_before_it_is_swallowed_is_found() {
    mutant("deadlock", || both_are_told(Wrong::TakenBackBeforeClear, 3));
}

#[test]
fn mutant_that_sleeps_without_a_fence_is_found() {
    mutant("deadlock", || both_are_told(Wrong::NotFenced, 3));
}

#[test]
fn mutant_that_expects_an_event_for_ever_is_found() {
    mutant("deadlock", || both_are_told(Wrong::NeverTakenBack, 3));
}

#[test]
#[ignore = "deep: .ci/soak loom"]
fn mutant_that_attaches_a_queue_in_silence_is_found() {
    mutant("deadlock", || {
        who_attaches_is_told(Wrong::AttachedInSilence, 2)
    });
}
