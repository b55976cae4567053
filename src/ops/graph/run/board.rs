//! The ended jobs of a run: what the run shares with the slots of its jobs.
//!
//! A slot counts a reference to the board, so that a run that is dropped or forgotten leaves
//! nothing dangling. The reaper writes each end down, and wakes the run if it sleeps. The run takes
//! all ends at once when it is polled. One waker serves all nodes.
//!
//! The reaper writes an end under the lock that `register` takes as well: either the run finds it
//! when it asks once more, or the reaper finds the run asleep. Wakers are cloned, dropped and woken
//! outside the lock.

use std::mem;
use std::task::Waker;

use crate::reactor::{self, Outcome};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, discard, lock, wake};

/// A node, and the outcome of its job.
pub(super) type End = (u32, Outcome);

pub(super) struct Board {
    /// True if a job has ended since the last [`Board::take`]. It is read without the lock.
    any: AtomicBool,
    state: Mutex<BoardState>,
}

struct BoardState {
    /// Has the capacity of the number of nodes; each node has at most one job in flight.
    ends: Vec<End>,
    waker: Option<Waker>,
    asleep: bool,
}

impl Board {
    pub(super) fn new(nodes: usize) -> Board {
        Board {
            any: AtomicBool::new(false),
            state: Mutex::new(BoardState {
                ends: Vec::with_capacity(nodes),
                waker: None,
                asleep: false,
            }),
        }
    }

    /// Returns whether a job has ended whose end was not taken yet.
    #[inline(always)]
    pub(super) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Takes all ends. `ends` is empty and has the capacity of the number of nodes.
    pub(super) fn take(&self, ends: &mut Vec<End>) {
        let mut state = lock(&self.state);
        mem::swap(&mut state.ends, ends);
        // The task that polls needs no wake-up.
        state.asleep = false;
        self.any.store(false, Ordering::Release);
    }

    /// Has the next end wake `waker`. The caller must ask [`Board::any`] once more afterwards.
    pub(super) fn register(&self, waker: &Waker) {
        let mut state = lock(&self.state);
        if state
            .waker
            .as_ref()
            .is_some_and(|known| known.will_wake(waker))
        {
            state.asleep = true;
            return;
        }
        drop(state);
        let new = waker.clone();
        let mut state = lock(&self.state);
        state.asleep = true;
        let old = state.waker.replace(new);
        drop(state);
        discard(old);
    }

    /// Forgets the waker: the run no longer sleeps.
    pub(super) fn forget_waker(&self) {
        let mut state = lock(&self.state);
        state.asleep = false;
        let old = state.waker.take();
        drop(state);
        discard(old);
    }
}

impl reactor::Run for Board {
    fn completed(&self, node: u32, outcome: Outcome) {
        let mut state = lock(&self.state);
        debug_assert!(state.ends.len() < state.ends.capacity(), "one end a node");
        state.ends.push((node, outcome));
        self.any.store(true, Ordering::Release);
        let asleep = mem::take(&mut state.asleep);
        let waker = if asleep { state.waker.take() } else { None };
        drop(state);
        if let Some(waker) = waker {
            wake(waker);
        }
    }
}
