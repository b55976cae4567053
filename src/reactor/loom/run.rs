//! Runs of graphs: Jobs without an Op, whose ends one waker hears of.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use ::loom::thread::JoinHandle;

use super::super::held::Outcome;
use super::super::slot::{Completed, Slot};
use super::super::target::{Target, Told};
use super::super::{self as reactor, Line, Run};
use super::{Bed, held, on_a_workq, prepared};
use crate::sync::loom::{Task, check, spawn};
use crate::sync::{Mutex, lock};

/// What a run of a graph has for ends: a word and a waker, as `ops/graph/board.rs` has them.
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

    fn nudge(&self) {
        let waker = lock(&self.told).1.take();
        waker.into_iter().for_each(Waker::wake);
    }
}

impl reactor::Ends for Ends {
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
    /// A run of one node: it is launched, or stands in line, and its end is awaited; or it is dropped after one poll.
    fn spawn_run(&self, dropped: bool) -> JoinHandle<()> {
        let (attachment, workq) = (Arc::clone(&self.attachment), self.workq.clone());
        spawn(move || {
            let ends = Arc::new(Ends::default());
            let told = Arc::clone(&ends) as Arc<dyn Run>;
            let mut line = pin!(Line::new(&workq));
            let (task, mut launched) = (Task::new(), false);
            let waker = task.waker();
            let mut cx = Context::from_waker(&waker);
            loop {
                line.as_mut().polled();
                if !launched {
                    let now = line
                        .as_mut()
                        .launch(&attachment, prepared(), Arc::clone(&told), 0);
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
                    let over = line.as_mut().poll_ends(&mut cx, &*ends);
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

#[test]
fn a_run_is_told_by_the_real_wait_cycle_though_another_one_looks() {
    on_a_workq(2, |bed| {
        let workq = bed.workq.clone();
        let looker = spawn(move || workq.0.turn());
        bed.run([bed.spawn_run(false), looker]);
    });
}

#[test]
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
fn a_run_is_told_once_though_it_is_nudged_meanwhile() {
    check(3, || {
        let ends = Arc::new(Ends::default());
        let slot = Arc::new(Slot::new());
        let target = Target::Run(Arc::clone(&ends) as Arc<dyn Run>, 3);
        let generation = slot.fill(held(), Some(target));
        let reaper = {
            let slot = Arc::clone(&slot);
            spawn(move || {
                if let Some(nudged) = slot.nudge() {
                    nudged.wake();
                }
                match slot.complete(generation, Ok(7)) {
                    Completed::Free(Some(Told::Run(run, 3, outcome))) => run.completed(3, outcome),
                    _ => panic!("the run is told"),
                }
            })
        };
        let task = Task::new();
        loop {
            reactor::Ends::register(&*ends, &task.waker());
            if reactor::Ends::any(&*ends) {
                break;
            }
            task.sleep();
        }
        reaper.join().unwrap();
        assert_eq!(slot.fill(held(), None), generation + 1, "free, and once");
    });
}
