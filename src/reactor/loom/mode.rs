//! Models of a change of mode while an operation goes to sleep.

use std::sync::Arc;

use super::super::mode::{Current, Mode, Policy};
use super::in_flight;
use crate::reactor::slots::Slot;
use crate::sync::loom::{Task, check, mutant, spawn};

/// An operation goes to sleep while another thread sets a mode: the operation must poll again.
fn mode_is_set(
    sleep: impl Fn(&Current, &Slot, Policy, &Task) + Clone + Send + Sync + 'static,
    set: impl Fn(&Current, &Slot, Policy) + Clone + Send + Sync + 'static,
) {
    check(4, move || {
        let policy = |mode| Policy::of(mode, "model").unwrap();
        let (event, busy) = (policy(Mode::EventDriven), policy(Mode::BusyPoll));
        let (slot, _) = in_flight();
        let shared = Arc::new((Current::new(event), slot));
        let setter = {
            let (shared, set) = (Arc::clone(&shared), set.clone());
            spawn(move || set(&shared.0, &shared.1, busy))
        };
        let task = Task::new();
        loop {
            let seen = shared.0.load();
            if seen.is_busy() {
                break;
            }
            sleep(&shared.0, &shared.1, seen, &task);
        }
        setter.join().unwrap();
    });
}

/// Stores the waker and then checks the mode, as `Attachment::poll_event` does.
fn register_then_ask(mode: &Current, slot: &Slot, seen: Policy, task: &Task) {
    slot.register(&task.waker());
    if mode.is_still(seen) {
        task.sleep();
    }
}

/// Sets the mode and then wakes the operation, as `WorkQ::set_mode` does.
fn set_then_wake(mode: &Current, slot: &Slot, policy: Policy) {
    mode.set(policy);
    if let Some(waker) = slot.take_waker() {
        waker.wake();
    }
}

#[test]
fn an_op_that_goes_to_sleep_hears_of_another_mode() {
    mode_is_set(register_then_ask, set_then_wake);
}

#[test]
fn mutant_that_sleeps_without_asking_for_the_mode_is_found() {
    mutant("deadlock", || {
        let just_sleep = |_: &Current, slot: &Slot, _: Policy, task: &Task| {
            slot.register(&task.waker());
            task.sleep();
        };
        mode_is_set(just_sleep, set_then_wake);
    });
}

#[test]
fn mutant_that_asks_for_the_mode_and_then_registers_is_found() {
    mutant("deadlock", || {
        let ask_then_register = |mode: &Current, slot: &Slot, seen: Policy, task: &Task| {
            let still = mode.is_still(seen);
            slot.register(&task.waker());
            if still {
                task.sleep();
            }
        };
        mode_is_set(ask_then_register, set_then_wake);
    });
}

#[test]
fn mutant_that_wakes_and_then_sets_the_mode_is_found() {
    mutant("deadlock", || {
        let wake_then_set = |mode: &Current, slot: &Slot, policy: Policy| {
            if let Some(waker) = slot.take_waker() {
                waker.wake();
            }
            mode.set(policy);
        };
        mode_is_set(register_then_ask, wake_then_set);
    });
}
