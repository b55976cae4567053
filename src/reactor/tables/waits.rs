//! [`WaitTable`], the waits of one sync event. Waits do not count against the depth of the WorkQ.
//!
//! ```text
//!          fill             complete          take
//!   Free ------> Waiting ------------> Done ------> Free
//!                  |                    |
//!                  +---- Op dropped ----+---------> Free
//! ```
//!
//! Unlike a receive, a wait can be recalled: an operation that is dropped frees its entry, and a
//! later completion from the device names an old generation. One lock guards the table; no code of
//! the application runs while it is held.

use std::sync::Arc;
use std::task::Waker;

use super::registry::Numbered;
use crate::device::{Completion, Token};
use crate::reactor::entry_table::{Ended, Ends, EntryTable, Wanted};
use crate::reactor::slots::Outcome;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{Mutex, Waiters, discard, lock, wake};

/// An operation's hold on a wait: the index of its entry, and the generation of the entry's use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::reactor) struct Ticket {
    index: u32,
    generation: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Free,
    Waiting,
    Done(Outcome),
}

struct WaitSlot {
    phase: Phase,
    generation: u32,
    waker: Option<Waker>,
}

struct Table {
    slots: Box<[WaitSlot]>,
    free: Vec<u32>,
    /// The number of waits that were ever begun. The lower half is the generation of the next wait.
    posted: u64,
}

/// The waits of one sync event.
pub(in crate::reactor) struct WaitTable {
    number: u32,
    /// The number of operations that sleep, summed over all tables of the WorkQ.
    asleep: Arc<AtomicUsize>,
    /// `completed[i]` is set once wait `i` has completed, so that its operation can check without
    /// the lock.
    completed: Box<[AtomicBool]>,
    free: AtomicUsize,
    line: Waiters,
    table: Mutex<Table>,
}

impl WaitTable {
    pub(in crate::reactor) fn new(size: u32, numbered: Numbered) -> WaitTable {
        let Numbered {
            number,
            posted,
            asleep,
        } = numbered;
        let slot = |_| WaitSlot {
            phase: Phase::Free,
            generation: 0,
            waker: None,
        };
        WaitTable {
            number,
            asleep,
            completed: (0..size).map(|_| AtomicBool::new(false)).collect(),
            free: AtomicUsize::new(size as usize),
            line: Waiters::new(),
            table: Mutex::new(Table {
                slots: (0..size).map(slot).collect(),
                free: (0..size).rev().collect(),
                posted,
            }),
        }
    }

    pub(in crate::reactor) fn size(&self) -> usize {
        self.completed.len()
    }

    /// Returns the Token by which a device knows a wait.
    pub(in crate::reactor) fn token(&self, ticket: Ticket) -> Token {
        Token::new(self.number, ticket.index, ticket.generation)
    }

    /// Takes a free entry. The device may see the wait from here on.
    pub(in crate::reactor) fn fill(&self) -> Option<Ticket> {
        let mut table = lock(&self.table);
        let index = table.free.pop()?;
        self.free.fetch_sub(1, Ordering::SeqCst);
        let generation = table.posted as u32;
        table.posted += 1;
        self.completed[index as usize].store(false, Ordering::Relaxed);
        let slot = &mut table.slots[index as usize];
        debug_assert_eq!(slot.phase, Phase::Free);
        (slot.phase, slot.generation) = (Phase::Waiting, generation);
        Some(Ticket { index, generation })
    }

    /// Takes the outcome of the wait, for the operation, and frees the entry. Returns `None` if the
    /// wait has not completed. On `Some`, the caller notifies the next waiter in line.
    #[inline]
    pub(in crate::reactor) fn take(&self, ticket: Ticket) -> Option<Outcome> {
        if !self.completed[ticket.index as usize].load(Ordering::Acquire) {
            return None;
        }
        let mut table = lock(&self.table);
        let Phase::Done(outcome) = table.slots[ticket.index as usize].phase else {
            return None;
        };
        self.free(&mut table, ticket.index);
        Some(outcome)
    }

    /// Stores the operation's waker, to be woken once the wait has completed. The operation must
    /// call `take` once more afterwards.
    pub(in crate::reactor) fn register(&self, ticket: Ticket, waker: &Waker) {
        let waker = waker.clone();
        let mut table = lock(&self.table);
        let slot = &mut table.slots[ticket.index as usize];
        let old = match slot.phase {
            Phase::Waiting => {
                let old = slot.waker.replace(waker);
                if old.is_none() {
                    self.asleep.fetch_add(1, Ordering::SeqCst);
                }
                old
            }
            _ => Some(waker),
        };
        drop(table);
        discard(old);
    }

    /// Frees the entry of an operation that stops waiting. The caller notifies the next waiter in
    /// line.
    pub(in crate::reactor) fn leave(&self, ticket: Ticket) {
        let mut table = lock(&self.table);
        let waker = self.wakened(&mut table.slots[ticket.index as usize]);
        self.free(&mut table, ticket.index);
        drop(table);
        discard(waker);
    }

    fn free(&self, table: &mut Table, index: u32) {
        table.slots[index as usize].phase = Phase::Free;
        table.free.push(index);
        self.free.fetch_add(1, Ordering::SeqCst);
    }

    /// Takes the waker of an entry, whose operation then no longer counts as asleep.
    fn wakened(&self, slot: &mut WaitSlot) -> Option<Waker> {
        let waker = slot.waker.take();
        if waker.is_some() {
            self.asleep.fetch_sub(1, Ordering::SeqCst);
        }
        waker
    }
}

impl Wanted for WaitTable {
    fn line(&self) -> &Waiters {
        &self.line
    }

    fn available(&self) -> usize {
        self.free.load(Ordering::SeqCst)
    }
}

impl EntryTable for WaitTable {
    fn number(&self) -> u32 {
        self.number
    }

    fn posted(&self) -> u64 {
        lock(&self.table).posted
    }

    fn complete(&self, completions: &[Completion], ends: &mut Ends<'_>) {
        let mut table = lock(&self.table);
        let mut complete = |completion: &Completion| {
            let (index, generation) = (completion.token.index(), completion.token.generation());
            let slot = table.slots.get_mut(index as usize)?;
            if slot.phase != Phase::Waiting || slot.generation != generation {
                return None;
            }
            slot.phase = Phase::Done(completion.result);
            let waker = self.wakened(slot);
            self.completed[index as usize].store(true, Ordering::Release);
            Some(Ended {
                waker,
                ..Ended::default()
            })
        };
        for completion in completions {
            ends.add(completion, complete(completion));
        }
    }

    fn wake_all(&self) {
        for index in 0..self.size() {
            let waker = self.wakened(&mut lock(&self.table).slots[index]);
            waker.into_iter().for_each(wake);
        }
        self.line.wake_all();
    }
}
