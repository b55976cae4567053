//! Where the ends of a run's Jobs are told: what the run and the Slots of its Jobs share.
//!
//! A Slot counts the board, so that a run that was dropped or forgotten dangles nowhere. Whoever reaps writes an end down
//! and wakes the run, if it sleeps; the run takes all ends at once when it is polled. One waker is for all nodes.
//!
//! An end is written under the lock that `register` takes as well: either the run finds it when it looks once more, or the
//! writer finds the run asleep. Wakers are cloned, dropped and woken outside the lock.

use std::mem;
use std::task::Waker;

use crate::reactor::{self, Outcome};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, discard, lock, wake};

/// A node, and how its Job ended.
pub(super) type End = (u32, Outcome);

pub(super) struct Board {
    /// Something was told: read without the lock.
    any: AtomicBool,
    told: Mutex<Told>,
}

struct Told {
    /// As long as there are nodes, each of which has one Job in flight at most.
    ends: Vec<End>,
    waker: Option<Waker>,
    asleep: bool,
}

impl Board {
    pub(super) fn new(nodes: usize) -> Board {
        Board {
            any: AtomicBool::new(false),
            told: Mutex::new(Told {
                ends: Vec::with_capacity(nodes),
                waker: None,
                asleep: false,
            }),
        }
    }

    /// Whether an end was told that was not taken yet.
    #[inline(always)]
    pub(super) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Takes all ends. `ends` is empty, and as long as there are nodes.
    pub(super) fn take(&self, ends: &mut Vec<End>) {
        let mut told = lock(&self.told);
        mem::swap(&mut told.ends, ends);
        // Whoever polls needs no wake-up.
        told.asleep = false;
        self.any.store(false, Ordering::Release);
    }

    /// The next end wakes this. [`Board::any`] must be asked once more afterwards.
    pub(super) fn register(&self, waker: &Waker) {
        let mut told = lock(&self.told);
        if told
            .waker
            .as_ref()
            .is_some_and(|known| known.will_wake(waker))
        {
            told.asleep = true;
            return;
        }
        drop(told);
        let new = waker.clone();
        let mut told = lock(&self.told);
        told.asleep = true;
        let old = told.waker.replace(new);
        drop(told);
        discard(old);
    }

    /// Nobody waits any more.
    pub(super) fn forget_waker(&self) {
        let mut told = lock(&self.told);
        told.asleep = false;
        let old = told.waker.take();
        drop(told);
        discard(old);
    }
}

impl reactor::Run for Board {
    fn completed(&self, node: u32, outcome: Outcome) {
        let mut told = lock(&self.told);
        debug_assert!(told.ends.len() < told.ends.capacity(), "one end a node");
        told.ends.push((node, outcome));
        self.any.store(true, Ordering::Release);
        let asleep = mem::take(&mut told.asleep);
        let waker = if asleep { told.waker.take() } else { None };
        drop(told);
        if let Some(waker) = waker {
            wake(waker);
        }
    }
}
