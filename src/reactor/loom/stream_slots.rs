//! Models of the slots that streams may hold: a stream waits in line for a slot, and another stream
//! gives one back.

use std::pin::{Pin, pin};
use std::sync::Arc;

use crate::reactor::entry_table::Wanted;
use crate::reactor::tables::StreamSlots;
use crate::sync::WaitNode;
use crate::sync::loom::{Task, check, mutant, spawn};

/// The depth of the WorkQ: two slots, of which streams may hold one.
const DEPTH: u32 = 2;

/// A stream has the only slot, and gives it back. `streams` other streams want the slot, each for
/// one job.
fn all_have_one(
    streams: usize,
    wait: impl Fn(&StreamSlots, Pin<&WaitNode>, &Task) + Copy + Send + Sync + 'static,
    give_back: impl Fn(&StreamSlots) + Copy + Send + Sync + 'static,
) {
    check(3, move || {
        let slots = Arc::new(StreamSlots::new(DEPTH));
        assert!(slots.take() && !slots.take());
        let stream = || {
            let slots = Arc::clone(&slots);
            spawn(move || {
                {
                    let (node, task) = (pin!(WaitNode::new()), Task::new());
                    wait(&slots, node.as_ref(), &task);
                }
                assert_eq!(slots.available(), 0);
                give_back(&slots);
            })
        };
        let streams: Vec<_> = (0..streams).map(|_| stream()).collect();
        give_back(&slots);
        for stream in streams {
            stream.join().unwrap();
        }
        assert!(slots.line.is_empty());
        assert_eq!(slots.available(), 1);
    });
}

/// Gives the slot back and notifies, as `Shared::give_stream_slot_back` and `notify_line` do.
fn give_then_notify(slots: &StreamSlots) {
    slots.give_back();
    notify(slots);
}

fn notify(slots: &StreamSlots) {
    if !slots.line.is_empty() {
        let room = slots.available();
        slots
            .line
            .notify_and_wake(|who| room.saturating_sub(who.notified).min(who.waiting));
    }
}

fn enqueue(slots: &StreamSlots, node: Pin<&WaitNode>, task: &Task) {
    // SAFETY: the caller's line outlives the node.
    unsafe { slots.line.enqueue(node, &task.waker()) };
}

/// Takes a slot as `StreamSlotWaiter::poll` and `Sends::poll_send` do: leaves the line once a slot
/// is free, and takes the slot then. If another stream was faster, waits in line again.
fn enqueue_then_look(slots: &StreamSlots, node: Pin<&WaitNode>, task: &Task) {
    loop {
        enqueue(slots, node, task);
        if slots.available() > 0 {
            notify(slots);
            if slots.line.is_notified(node) {
                slots.line.leave(node);
                notify(slots);
                if slots.take() {
                    return;
                }
                continue;
            }
        }
        task.sleep();
    }
}

#[test]
fn a_stream_in_line_gets_the_slot_that_another_one_gives_back() {
    all_have_one(1, enqueue_then_look, give_then_notify);
}

#[test]
fn streams_in_line_have_the_only_slot_in_turn() {
    all_have_one(2, enqueue_then_look, give_then_notify);
}

#[test]
fn mutant_stream_that_looks_and_then_enqueues_is_found() {
    let look_then_enqueue = |slots: &StreamSlots, node: Pin<&WaitNode>, task: &Task| {
        while !slots.take() {
            enqueue(slots, node, task);
            task.sleep();
        }
        slots.line.leave(node);
    };
    mutant("deadlock", || {
        all_have_one(1, look_then_enqueue, give_then_notify);
    });
}

#[test]
fn mutant_that_notifies_and_then_gives_the_slot_back_is_found() {
    let notify_then_give = |slots: &StreamSlots| {
        notify(slots);
        slots.give_back();
    };
    mutant("deadlock", || {
        all_have_one(1, enqueue_then_look, notify_then_give);
    });
}

/// A stream that was notified leaves the line without a slot, and does not notify the next stream
/// in line.
#[test]
fn mutant_stream_that_takes_the_notification_along_is_found() {
    let one_gives_up = |is_passed_on: bool| {
        check(3, move || {
            let slots = Arc::new(StreamSlots::new(DEPTH));
            assert!(slots.take());
            let impatient = {
                let slots = Arc::clone(&slots);
                spawn(move || {
                    let (node, task) = (pin!(WaitNode::new()), Task::new());
                    enqueue(&slots, node.as_ref(), &task);
                    slots.line.leave(node.as_ref());
                    if is_passed_on {
                        notify(&slots);
                    }
                })
            };
            let giver = {
                let slots = Arc::clone(&slots);
                spawn(move || give_then_notify(&slots))
            };
            {
                let (node, task) = (pin!(WaitNode::new()), Task::new());
                enqueue_then_look(&slots, node.as_ref(), &task);
            }
            giver.join().unwrap();
            impatient.join().unwrap();
            assert!(slots.line.is_empty());
        });
    };
    one_gives_up(true);
    mutant("deadlock", || one_gives_up(false));
}
