//! Models of the caller's own loop: the ring of slots whose jobs have completed, and the mark that
//! the loop has armed.

use std::sync::Arc;

use super::{complete, held};
use crate::reactor::slots::{Completed, Finished, Outcome, ResultKind, Slot, Target};
use crate::sync::atomic::{AtomicBool, Ordering::SeqCst};
use crate::sync::loom::{Task, TrackedCell, check, mutant, spawn};
use crate::sync::seq_cst_order;

#[test]
fn what_ended_comes_out_of_the_ring_once_and_whole() {
    check(3, || {
        // There are two slots. Slot 0 is used twice, and has another entry of the ring the second
        // time.
        let both = Arc::new((Finished::new(2), [TrackedCell::new(), TrackedCell::new()]));
        let finisher = |slot: u32| {
            let both = Arc::clone(&both);
            spawn(move || {
                both.1[slot as usize].write();
                both.0.push(slot);
            })
        };
        let other = finisher(1);
        both.1[0].write();
        both.0.push(0);
        let taker = {
            let both = Arc::clone(&both);
            spawn(move || {
                let slot = both.0.pop();
                if let Some(slot) = slot {
                    both.1[slot as usize].write();
                }
                slot
            })
        };
        let mut seen: Vec<u32> = both.0.pop().into_iter().collect();
        seen.iter().for_each(|&slot| both.1[slot as usize].write());
        seen.extend(taker.join().unwrap());
        if seen.contains(&0) {
            both.1[0].write();
            both.0.push(0);
            seen.retain(|&slot| slot != 0);
        }
        other.join().unwrap();
        seen.extend(std::iter::from_fn(|| both.0.pop()));
        seen.sort_unstable();
        assert_eq!(seen, [0, 1]);
        assert!(both.0.is_empty());
    });
}

#[test]
fn mutant_that_puts_a_slot_in_and_then_writes_it_is_found() {
    mutant("Causality violation", || {
        check(3, || {
            let both = Arc::new((Finished::new(1), TrackedCell::new()));
            let finisher = {
                let both = Arc::clone(&both);
                spawn(move || {
                    both.0.push(0);
                    both.1.write();
                })
            };
            if both.0.pop().is_some() {
                both.1.write();
            }
            finisher.join().unwrap();
        });
    });
}

/// The caller's own loop with one job, whose completion another thread collects. No device signals.
struct OwnLoop {
    slot: Slot,
    generation: u32,
    finished: Finished,
    armed: AtomicBool,
    /// Models the event handle, and the thread that sleeps on it.
    task: Task,
}

// SAFETY: a Task is a waker and the state by which one thread sleeps.
unsafe impl Sync for OwnLoop {}

impl OwnLoop {
    /// Wakes the loop if it has armed, as `Shared::fire` does.
    fn fire(&self) {
        if self.armed.load(SeqCst) && self.armed.swap(false, SeqCst) {
            self.task.waker().wake();
        }
    }

    /// Marks the loop as armed, as the real `OwnLoop::mark` does.
    fn mark(&self) {
        self.armed.store(true, SeqCst);
        seq_cst_order();
    }

    /// Collects the completion, as `Table::complete` and `Shared::fire` do.
    fn collect(&self) {
        let completed = complete(&self.slot, self.generation, Ok(7));
        assert!(matches!(completed, Completed::Deliver));
        self.finished.push(0);
        self.fire();
    }

    fn take(&self) -> Option<(u64, Outcome)> {
        self.finished
            .pop()
            .map(|_| self.slot.take_posted_alone().unwrap())
    }

    /// Arms and then checks the ring, as `WorkQ::arm` does.
    fn arm(&self) {
        self.mark();
        if !self.finished.is_empty() {
            self.fire();
        }
    }

    /// Takes a finished job, or arms again, as `WorkQ::progress` does.
    fn progress(&self) -> Option<(u64, Outcome)> {
        loop {
            let armed = self.armed.swap(false, SeqCst);
            let taken = self.take();
            if taken.is_some() || !armed {
                return taken;
            }
            self.mark();
            if self.finished.is_empty() {
                return None;
            }
        }
    }
}

fn own_loop(wait: fn(&OwnLoop) -> Option<(u64, Outcome)>, collect: fn(&OwnLoop)) {
    check(4, move || {
        let slot = Slot::new();
        let generation = slot.fill_alone(held(), Some(Target::Caller(u64::MAX, ResultKind::Bytes)));
        let own = Arc::new(OwnLoop {
            slot,
            generation,
            finished: Finished::new(1),
            armed: AtomicBool::new(false),
            task: Task::new(),
        });
        let collector = {
            let own = Arc::clone(&own);
            spawn(move || collect(&own))
        };
        let taken = loop {
            if let Some(taken) = wait(&own) {
                break taken;
            }
            own.task.sleep();
        };
        assert_eq!(taken, (u64::MAX, Ok(7)));
        collector.join().unwrap();
        assert!(own.finished.is_empty());
    });
}

fn arm_then_wait(own: &OwnLoop) -> Option<(u64, Outcome)> {
    let taken = own.progress();
    if taken.is_none() {
        own.arm();
    }
    taken
}

fn arm_then_progress(own: &OwnLoop) -> Option<(u64, Outcome)> {
    own.arm();
    own.progress()
}

#[test]
fn a_loop_that_armed_hears_of_what_somebody_else_collected() {
    own_loop(arm_then_wait, OwnLoop::collect);
    own_loop(arm_then_progress, OwnLoop::collect);
}

#[test]
fn mutant_loop_that_arms_without_a_look_is_found() {
    mutant("deadlock", || {
        let wait = |own: &OwnLoop| {
            let taken = own.progress();
            if taken.is_none() {
                own.mark();
            }
            taken
        };
        own_loop(wait, OwnLoop::collect);
    });
}

#[test]
fn mutant_progress_that_ends_the_arm_without_a_look_is_found() {
    mutant("deadlock", || {
        let wait = |own: &OwnLoop| {
            own.arm();
            let armed = own.armed.swap(false, SeqCst);
            let taken = own.take();
            if taken.is_none() && armed {
                own.mark();
            }
            taken
        };
        own_loop(wait, OwnLoop::collect);
    });
}

#[test]
fn mutant_that_fires_and_then_delivers_is_found() {
    mutant("deadlock", || {
        let collect = |own: &OwnLoop| {
            let completed = complete(&own.slot, own.generation, Ok(7));
            assert!(matches!(completed, Completed::Deliver));
            own.fire();
            own.finished.push(0);
        };
        own_loop(arm_then_wait, collect);
    });
}
