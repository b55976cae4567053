//! [`Board`], the completed jobs of a run: the state that a run shares with the slots of its jobs.
//!
//! A slot holds a reference to the board, so that a run that is dropped or forgotten leaves nothing
//! dangling. The reaper adds each completion to the board, and wakes the run if it sleeps. The run
//! takes all completions at once when it is polled. One waker serves all nodes.
//!
//! The reaper adds a completion under the lock that `register` takes as well. Either the run finds
//! the completion when it checks once more, or the reaper finds the run asleep. Wakers are cloned,
//! dropped and woken outside the lock.

use std::mem;
use std::task::Waker;

use crate::reactor::{self, Outcome};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, discard, lock, wake};

/// A node, and the outcome of its job.
pub(super) type End = (u32, Outcome);

pub(super) struct Board {
    /// True if a job has completed since the last [`Board::take`]. It is read without the lock.
    any: AtomicBool,
    state: Mutex<BoardState>,
}

struct BoardState {
    /// The completions since the last [`Board::take`]. The capacity is the number of nodes, since
    /// each node has at most one job in flight.
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

    /// Returns true if there are completions that were not taken yet.
    #[inline(always)]
    pub(super) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Moves all completions into `ends`, which must be empty, with the number of nodes as its
    /// capacity.
    pub(super) fn take(&self, ends: &mut Vec<End>) {
        let mut state = lock(&self.state);
        mem::swap(&mut state.ends, ends);
        // The task that polls needs no wake-up.
        state.asleep = false;
        self.any.store(false, Ordering::Release);
    }

    /// Stores `waker`, to be woken at the next completion. The caller must check [`Board::any`]
    /// once more afterwards.
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

    /// Drops the waker, since the run no longer sleeps.
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
