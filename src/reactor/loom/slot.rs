//! Models of the real slot, with operations that register, complete and are dropped.

use std::sync::Arc;
use std::task::Waker;

use super::{complete, end, held, in_flight};
use crate::reactor::slots::{Completed, Outcome, Slot};
use crate::sync::atomic::{AtomicBool, Ordering::SeqCst};
use crate::sync::loom::{Task, check, mutant, spawn};
use crate::sync::seq_cst_order;

/// Waits for a job as `JobFuture` does: checks, registers, checks again, sleeps.
fn await_slot(slot: &Slot) -> Outcome {
    let task = Task::new();
    loop {
        if let Some(outcome) = slot.take() {
            return outcome;
        }
        slot.register(&task.waker());
        if let Some(outcome) = slot.take() {
            return outcome;
        }
        task.sleep();
    }
}

#[test]
fn an_op_that_registers_and_then_looks_is_told() {
    check(4, || {
        let (slot, generation) = in_flight();
        let reaper = {
            let slot = Arc::clone(&slot);
            spawn(move || assert!(!end(&slot, generation)))
        };
        assert_eq!(await_slot(&slot), Ok(7));
        reaper.join().unwrap();
        assert_eq!(
            slot.fill_alone(held(), None),
            generation + 1,
            "free, and once"
        );
    });
}

#[test]
fn mutant_that_looks_and_then_registers_is_found() {
    mutant("deadlock", || {
        check(4, || {
            let (slot, generation) = in_flight();
            let reaper = {
                let slot = Arc::clone(&slot);
                spawn(move || end(&slot, generation))
            };
            let task = Task::new();
            while slot.take().is_none() {
                slot.register(&task.waker());
                task.sleep();
            }
            reaper.join().unwrap();
        });
    });
}

#[test]
fn of_two_tasks_the_one_that_polled_last_is_told() {
    check(4, || {
        let (slot, generation) = in_flight();
        let reaper = {
            let slot = Arc::clone(&slot);
            spawn(move || end(&slot, generation))
        };
        // The first task polls once and hands the operation over.
        if slot.take().is_none() {
            slot.register(Waker::noop());
        }
        assert_eq!(await_slot(&slot), Ok(7));
        assert!(!reaper.join().unwrap());
    });
}

#[test]
fn an_op_that_is_woken_early_is_notified_all_the_same() {
    check(4, || {
        let (slot, generation) = in_flight();
        let reaper = {
            let slot = Arc::clone(&slot);
            spawn(move || {
                if let Some(waker) = slot.take_waker() {
                    waker.wake();
                }
                end(&slot, generation);
            })
        };
        assert_eq!(await_slot(&slot), Ok(7));
        reaper.join().unwrap();
    });
}

/// The purpose of `take_waker`: the operation must poll again although its job has not completed.
#[test]
fn an_op_that_waits_while_it_is_woken_polls_again() {
    check(4, || {
        let (slot, _) = in_flight();
        let changed = Arc::new(AtomicBool::new(false));
        let reaper = {
            let (slot, changed) = (Arc::clone(&slot), Arc::clone(&changed));
            spawn(move || {
                changed.store(true, SeqCst);
                seq_cst_order();
                if let Some(waker) = slot.take_waker() {
                    waker.wake();
                }
            })
        };
        let task = Task::new();
        loop {
            slot.register(&task.waker());
            seq_cst_order();
            if changed.load(SeqCst) {
                break;
            }
            task.sleep();
        }
        reaper.join().unwrap();
    });
}

#[test]
fn exactly_one_of_drop_and_completion_frees_the_slot() {
    check(4, || {
        let (slot, generation) = in_flight();
        let reaper = {
            let slot = Arc::clone(&slot);
            spawn(move || end(&slot, generation))
        };
        slot.register(Waker::noop());
        let by_drop = slot.abandon();
        let by_completion = reaper.join().unwrap();
        assert!(by_drop ^ by_completion, "freed by exactly one");
        assert_eq!(slot.fill_alone(held(), None), generation + 1);
    });
}

#[test]
fn a_wake_up_does_not_come_between_drop_and_completion() {
    check(4, || {
        let (slot, generation) = in_flight();
        let reaper = {
            let slot = Arc::clone(&slot);
            spawn(move || {
                drop(slot.take_waker());
                end(&slot, generation)
            })
        };
        slot.register(Waker::noop());
        let by_drop = slot.abandon();
        assert!(by_drop ^ reaper.join().unwrap(), "freed by exactly one");
        assert_eq!(slot.fill_alone(held(), None), generation + 1);
    });
}

#[test]
fn a_completion_that_comes_twice_does_not_touch_the_next_use() {
    check(4, || {
        let (slot, generation) = in_flight();
        let reaper = {
            let slot = Arc::clone(&slot);
            spawn(move || {
                end(&slot, generation);
                let again = complete(&slot, generation, Ok(8));
                assert!(matches!(again, Completed::Stale));
            })
        };
        assert_eq!(await_slot(&slot), Ok(7));
        let next = slot.fill_alone(held(), None);
        slot.register(Waker::noop());
        assert!(slot.take().is_none() && slot.phase().any_in_flight());
        reaper.join().unwrap();
        assert!(matches!(complete(&slot, next, Ok(9)), Completed::Notify(_)));
        assert_eq!(slot.take(), Some(Ok(9)));
    });
}
