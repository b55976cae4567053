//! A toy of the slot, with ways to get it wrong, since the real slot has no such switches.

use std::sync::Arc;
use std::task::Waker;

use crate::sync::UnsafeCell;
use crate::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use crate::sync::loom::{Task, check, mutant, spawn};

/// The lines of a slot in which waker, completion and drop meet. `wrong` selects a way to get them
/// wrong.
struct Toy {
    phase: AtomicU64,
    target: UnsafeCell<Option<Waker>>,
    wrong: Wrong,
}

#[derive(Clone, Copy, PartialEq)]
enum Wrong {
    Nothing,
    /// `register` does not wake if the reaper has taken the old waker.
    SilentRegister,
    /// `register` writes the cell without claiming it.
    UnclaimedRegister,
    /// `complete` sets the phase to Done before it takes the waker.
    DoneTooEarly,
    /// `abandon` loads and stores, without an exchange.
    LookAndStore,
    /// `complete` gives up the cell with Relaxed instead of Release.
    RelaxedDone,
}

const PENDING: u64 = 0;
const REGISTERING: u64 = 1;
const COMPLETING: u64 = 2;
const DONE: u64 = 3;
const ORPHAN: u64 = 4;
const FREE: u64 = 5;

// SAFETY: the phase says who may access the cell. Loom must find that the wrong variants break
// this.
unsafe impl Send for Toy {}
// SAFETY: as for Send: the phase says who may access the cell.
unsafe impl Sync for Toy {}

impl Toy {
    fn new(wrong: Wrong) -> Arc<Toy> {
        Arc::new(Toy {
            phase: AtomicU64::new(PENDING),
            target: UnsafeCell::new(None),
            wrong,
        })
    }

    fn step(&self, from: u64, to: u64) -> bool {
        let stepped = self.phase.compare_exchange(from, to, AcqRel, Acquire);
        stepped.is_ok()
    }

    fn replace(&self, waker: Option<Waker>) -> Option<Waker> {
        self.target.with_mut(|target| {
            // SAFETY: the phase says that the caller owns the cell.
            unsafe { std::ptr::replace(target, waker) }
        })
    }

    fn take(&self) -> bool {
        let done = self.phase.load(Acquire) == DONE;
        if done {
            drop(self.replace(None));
            self.phase.store(FREE, Release);
        }
        done
    }

    fn register(&self, waker: &Waker) {
        if self.wrong == Wrong::UnclaimedRegister {
            drop(self.replace(Some(waker.clone())));
        } else if self.step(PENDING, REGISTERING) {
            let old = self.replace(Some(waker.clone()));
            self.step(REGISTERING, PENDING);
            drop(old);
        } else if self.wrong != Wrong::SilentRegister && self.phase.load(Acquire) == COMPLETING {
            waker.wake_by_ref();
        }
    }

    fn abandon(&self) -> bool {
        if self.wrong == Wrong::LookAndStore {
            let done = self.phase.load(Acquire) == DONE;
            self.phase.store(if done { FREE } else { ORPHAN }, Release);
            return done;
        }
        if self.step(PENDING, ORPHAN) || self.step(COMPLETING, ORPHAN) {
            return false;
        }
        self.take()
    }

    fn complete(&self) -> bool {
        let mut phase = self.phase.load(Acquire);
        loop {
            let next = match phase {
                PENDING if self.wrong != Wrong::DoneTooEarly => COMPLETING,
                PENDING | REGISTERING => DONE,
                _ => {
                    self.phase.store(FREE, Release);
                    return true;
                }
            };
            match self.phase.compare_exchange(phase, next, AcqRel, Acquire) {
                Ok(REGISTERING) => return false,
                Ok(_) => break,
                Err(seen) => phase = seen,
            }
        }
        let target = self.replace(None);
        let order = match self.wrong {
            Wrong::RelaxedDone => Relaxed,
            _ => Release,
        };
        if self.wrong != Wrong::DoneTooEarly
            && self
                .phase
                .compare_exchange(COMPLETING, DONE, order, Relaxed)
                .is_err()
        {
            self.phase.store(FREE, Release);
            return true;
        }
        if let Some(waker) = target {
            waker.wake();
        }
        false
    }
}

fn toy_is_awaited(wrong: Wrong) {
    check(4, move || {
        let toy = Toy::new(wrong);
        let reaper = {
            let toy = Arc::clone(&toy);
            spawn(move || toy.complete())
        };
        if !toy.take() {
            toy.register(Waker::noop());
            let task = Task::new();
            loop {
                if toy.take() {
                    break;
                }
                toy.register(&task.waker());
                if toy.take() {
                    break;
                }
                task.sleep();
            }
        }
        assert!(!reaper.join().unwrap());
    });
}

fn toy_is_dropped(wrong: Wrong) {
    check(4, move || {
        let toy = Toy::new(wrong);
        let reaper = {
            let toy = Arc::clone(&toy);
            spawn(move || toy.complete())
        };
        let by_drop = toy.abandon();
        assert!(by_drop ^ reaper.join().unwrap(), "freed by exactly one");
    });
}

#[test]
fn the_toy_slot_is_right() {
    toy_is_awaited(Wrong::Nothing);
    toy_is_dropped(Wrong::Nothing);
}

#[test]
fn mutant_that_registers_silently_while_the_old_waker_is_taken_is_found() {
    mutant("deadlock", || toy_is_awaited(Wrong::SilentRegister));
}

#[test]
fn mutant_that_writes_the_waker_unclaimed_is_found() {
    mutant("Causality violation", || {
        toy_is_awaited(Wrong::UnclaimedRegister)
    });
}

#[test]
fn mutant_that_is_done_before_it_takes_the_waker_is_found() {
    mutant("Causality violation", || {
        toy_is_awaited(Wrong::DoneTooEarly)
    });
}

#[test]
fn mutant_that_gives_the_slot_up_relaxed_is_found() {
    mutant("Causality violation", || toy_is_awaited(Wrong::RelaxedDone));
}

#[test]
fn mutant_that_drops_by_look_and_store_is_found() {
    mutant("exactly one", || toy_is_dropped(Wrong::LookAndStore));
}
