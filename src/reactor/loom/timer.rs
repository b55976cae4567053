//! Models of the real timer of a WorkQ, on a modelled clock. The timer wakes futures in time, and
//! signals for the alarm, although other threads set it meanwhile.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use ::loom::thread::JoinHandle;

use super::{Bed, WorkQ, on_a_workq};
use crate::reactor::waiting::Backoff;
use crate::reactor::workq::Shared;
use crate::sync::atomic::Ordering::SeqCst;
use crate::sync::loom::{Task, block_on, mutant, spawn};
use crate::sync::{WaitNode, Waiters};

/// Sleeps until the time `until`, in nanoseconds on the modelled clock.
fn nap(workq: &WorkQ, until: u64) {
    let mut nap = pin!(Backoff::until(workq.clone(), until));
    let slept = poll_fn(|cx| nap.as_mut().poll(cx));
    assert_eq!(block_on(pin!(slept)), Ok(()));
    assert!(workq.0.now() >= until);
}

impl Bed {
    fn spawn_on(&self, thread: impl FnOnce(&WorkQ) + Send + 'static) -> JoinHandle<()> {
        let workq = self.workq.clone();
        spawn(move || thread(&workq))
    }
}

/// Two futures sleep until different times, while the time passes.
fn two_nap(nap: fn(&WorkQ, u64), other: fn(&WorkQ, u64)) {
    on_a_workq(1, move |_| {
        let bed = Bed::new();
        bed.run([
            bed.spawn_on(move |workq| nap(workq, 100)),
            bed.spawn_on(move |workq| other(workq, 200)),
        ]);
    });
}

#[test]
#[ignore = "deep: .ci/soak loom"]
fn two_that_nap_are_woken_in_their_time() {
    two_nap(nap, nap);
}

fn enqueue(line: &Waiters, node: Pin<&WaitNode>, waker: &Waker) {
    // SAFETY: the WorkQ outlives the node, which is used with this list only.
    unsafe { line.enqueue(node, waker) };
}

#[test]
fn mutant_that_sets_the_timer_and_then_stands_in_line_is_found() {
    mutant("deadlock", || {
        two_nap(nap, |workq, until| {
            let (shared, task) = (&workq.0, Task::new());
            let node = pin!(WaitNode::new());
            while shared.now() < until {
                shared.timer.signal_at(&**shared, until).unwrap();
                enqueue(&shared.timer.line, node.as_ref(), &task.waker());
                task.sleep();
            }
        });
    });
}

#[test]
fn mutant_that_sleeps_until_its_time_and_sets_the_timer_once_is_found() {
    mutant("deadlock", || {
        two_nap(nap, |workq, until| {
            let (shared, task) = (&workq.0, Task::new());
            let node = pin!(WaitNode::new());
            for round in 0.. {
                if shared.now() >= until {
                    break;
                }
                enqueue(&shared.timer.line, node.as_ref(), &task.waker());
                if round == 0 {
                    shared.timer.signal_at(&**shared, until).unwrap();
                }
                task.sleep();
            }
        });
    });
}

/// An alarm is set while the timer signals for a future that sleeps until an earlier time.
fn alarm_is_set(set: fn(&Arc<Shared>)) {
    on_a_workq(1, move |_| {
        let bed = Bed::new();
        bed.run([
            bed.spawn_on(|workq| nap(workq, 100)),
            bed.spawn_on(move |workq| set(&workq.0)),
        ]);
        // The time has passed up to the last time that the timer was set to.
        assert!(bed.workq.0.timer.alarm_left().is_zero(), "the alarm rings");
    });
}

const DELAY: Duration = Duration::from_nanos(200);

#[test]
fn an_alarm_that_is_set_while_the_timer_rings_rings_too() {
    alarm_is_set(|shared| assert!(shared.timer.set_alarm(&**shared, DELAY)));
}

#[test]
fn mutant_that_sets_the_timer_and_then_the_alarm_is_found() {
    mutant("the alarm rings", || {
        alarm_is_set(|shared| {
            let due = shared.now() + DELAY.as_nanos() as u64;
            shared.timer.signal_at(&**shared, due).unwrap();
            shared.timer.alarm.store(due, SeqCst);
        });
    });
}
