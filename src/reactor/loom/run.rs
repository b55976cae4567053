//! Models of runs of graphs: jobs without operations, whose completions wake one waker.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use ::loom::thread::JoinHandle;

use super::{Bed, on_a_workq, prepared};
use crate::reactor;
use crate::reactor::Attachment;
use crate::reactor::Run;
use crate::reactor::RunWaiter;
use crate::reactor::events::Driven;
use crate::reactor::slots::Outcome;
use crate::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Release, SeqCst},
};
use crate::sync::loom::{Task, TrackedCell, check, deep, mutant, spawn};
use crate::sync::{Mutex, lock};

/// The completions that a run was notified of: a count and a waker, similar to
/// `ops/graph/run/board.rs`.
#[derive(Default)]
struct Ends {
    told: Mutex<(u32, Option<Waker>)>,
}

impl Run for Ends {
    fn completed(&self, _node: u32, outcome: Outcome) {
        assert_eq!(outcome, Ok(7));
        let mut told = lock(&self.told);
        told.0 += 1;
        let waker = told.1.take();
        drop(told);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl reactor::Completions for Ends {
    fn any(&self) -> bool {
        lock(&self.told).0 > 0
    }

    fn register(&self, waker: &Waker) {
        let waker = waker.clone();
        let old = lock(&self.told).1.replace(waker);
        drop(old);
    }
}

impl Bed {
    /// Spawns a run of one node, which launches its job, after waiting in line if needed, and
    /// awaits the completion. If `dropped`, the run is dropped after one poll.
    fn spawn_run(&self, dropped: bool) -> JoinHandle<()> {
        let (attachment, workq) = (Arc::clone(&self.attachment), self.workq.clone());
        spawn(move || {
            let ends = Arc::new(Ends::default());
            let told = Arc::clone(&ends) as Arc<dyn Run>;
            let mut line = pin!(RunWaiter::new(workq.clone()));
            let (task, mut launched) = (Task::new(), false);
            let waker = task.waker();
            let mut cx = Context::from_waker(&waker);
            loop {
                let mut heard = false;
                if !launched {
                    let told = Arc::clone(&told);
                    let now = RunWaiter::launch(&attachment, &mut heard, prepared(), told, 0);
                    launched = now.unwrap();
                }
                if !launched {
                    let prepare = || Ok(prepared());
                    let line = line.as_mut();
                    match line.poll_launch(&mut cx, &attachment, &told, 0, &prepare) {
                        Poll::Ready(submitted) => {
                            submitted.unwrap();
                            launched = true;
                        }
                        Poll::Pending => {}
                    }
                }
                if launched {
                    let over = line.as_mut().poll_ends(&mut cx, &mut heard, &*ends);
                    if over.is_ready() {
                        return;
                    }
                }
                if dropped {
                    if launched {
                        line.as_mut().abandon();
                    }
                    return;
                }
                task.sleep();
            }
        })
    }
}

/// A job that no run waits for is launched, while another thread drops an operation or polls.
fn nobody_waits(attend: fn(&Attachment), beside: fn(&Bed) -> JoinHandle<()>) {
    on_a_workq(1, move |_| {
        let bed = Bed::on(2, false);
        let attachment = Arc::clone(&bed.attachment);
        let launcher = spawn(move || {
            let told = Arc::new(Ends::default());
            let now = RunWaiter::launch(&attachment, &mut false, prepared(), told, 0);
            assert!(now.unwrap(), "there are two Slots");
            attend(&attachment);
        });
        bed.run([launcher, beside(&bed)]);
    });
}

#[test]
fn the_end_of_a_job_that_is_attended_to_is_heard() {
    nobody_waits(RunWaiter::attend, Bed::spawn_dropped_op);
    nobody_waits(RunWaiter::attend, |bed| {
        let workq = bed.workq.clone();
        spawn(move || workq.0.turn())
    });
}

#[test]
fn mutant_that_leaves_a_job_that_nobody_waits_for_is_found() {
    mutant("left: 1", || {
        nobody_waits(
            |_| (),
            |bed| {
                let workq = bed.workq.clone();
                spawn(move || workq.0.turn())
            },
        );
    });
}

#[test]
fn a_run_is_told_by_the_real_wait_cycle_though_another_one_looks() {
    on_a_workq(deep(1), |bed| {
        let workq = bed.workq.clone();
        let looker = spawn(move || workq.0.turn());
        bed.run([bed.spawn_run(false), looker]);
    });
}

#[test]
#[ignore = "deep: .ci/soak loom"]
fn a_run_and_an_op_on_one_slot_are_both_told() {
    on_a_workq(1, |bed| bed.run([bed.spawn_run(false), bed.spawn_op()]));
}

#[test]
fn a_run_in_line_is_told_though_the_one_before_it_is_dropped() {
    on_a_workq(1, |bed| {
        bed.run([bed.spawn_run(true), bed.spawn_run(false)])
    });
}

#[test]
fn a_run_that_sleeps_goes_on_as_the_new_mode_says() {
    on_a_workq(1, |_| {
        let bed = Bed::on(1, true);
        bed.run([bed.spawn_run(false)]);
    });
}

#[test]
fn a_run_whose_job_is_refused_is_woken_meanwhile() {
    on_a_workq(deep(1), |_| {
        let bed = Bed::on(1, false);
        bed.queue.refusals.store(1, SeqCst);
        let workq = bed.workq.clone();
        let waker_thread = spawn(move || workq.0.wake_all());
        bed.run([bed.spawn_run(false), waker_thread]);
    });
}

/// The cell of a slot that has a run's target. One thread launches a job and is refused, while
/// another thread wakes the runs.
struct Toy {
    running: AtomicBool,
    target: TrackedCell,
}

/// Checks the toy. If `at_the_slot`, the wake-up reads the slots of runs; otherwise it uses a list
/// of its own.
fn toy_is_refused_and_woken(at_the_slot: bool) {
    check(3, move || {
        let toy = Arc::new(Toy {
            running: AtomicBool::new(false),
            target: TrackedCell::new(),
        });
        let waker_thread = {
            let toy = Arc::clone(&toy);
            spawn(move || {
                if at_the_slot && toy.running.load(Acquire) {
                    toy.target.read();
                }
            })
        };
        // Filled, refused, and undone.
        toy.target.write();
        toy.running.store(true, Release);
        toy.target.write();
        toy.running.store(false, Release);
        waker_thread.join().unwrap();
    });
}

#[test]
fn the_toy_of_a_refused_run_is_right() {
    toy_is_refused_and_woken(false);
}

#[test]
fn mutant_that_nudges_a_run_at_its_slot_is_found() {
    mutant("Causality violation", || toy_is_refused_and_woken(true));
}
