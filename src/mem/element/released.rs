//! Futures that wait until no Lease on an element is left.
//!
//! The futures are in one list of the process, by the address of their element, since the thread
//! that gives back the last Lease cannot reach the element afterwards. That thread reads the list
//! only if the element's word says that a future waits, so that other Leases pay nothing.
//!
//! A future enters the list, under the list's lock, before it sets the word's bit. So either it
//! sees that no Lease is held, or the caller that gives the last one back sees the bit, and finds
//! the future in the list. An address may belong to another element by then: a future that is woken
//! in vain checks its element, and waits on.

use std::collections::BTreeMap;
use std::task::{Poll, Waker};

use super::element::Handle;
use crate::mem::ranges::LeaseWord;
use crate::sync::{EachProcess, Mutex, Process, discard, lock, wake};

/// The futures that wait, by the address of their element.
pub(in crate::mem) struct Watches(Mutex<List>);

struct List {
    /// The wakers, by the element's address and the future's number.
    wakers: BTreeMap<(usize, u64), Waker>,
    /// The number that the last future in the list was given.
    last: u64,
}

static WATCHES: EachProcess<Watches> = EachProcess::new(Watches::new);

/// Wakes the futures that wait for the element at this address, on which no Lease is left.
#[cold]
pub(super) fn released(element: usize) {
    WATCHES.get().released(element);
}

impl Watches {
    pub(in crate::mem) fn new() -> Watches {
        // A child of fork(2) counts from elsewhere, so that it reuses no number of a future that it
        // inherits.
        let last = u64::from(Process::current().distinct()) << 32;
        let wakers = BTreeMap::new();
        Watches(Mutex::new(List { wakers, last }))
    }

    /// Returns true if no Lease on the element is held. Otherwise `waker` is woken when the last
    /// one ends. `future` is the future's number, and 0 before its first poll.
    pub(in crate::mem) fn poll(
        &self,
        element: usize,
        word: &LeaseWord,
        future: &mut u64,
        waker: &Waker,
    ) -> bool {
        if !word.is_leased() {
            self.leave(element, word, *future);
            return true;
        }
        self.enter(element, future, waker);
        if word.watch() {
            return false;
        }
        self.leave(element, word, *future);
        true
    }

    /// Adds the future to the list, or replaces its waker there.
    pub(in crate::mem) fn enter(&self, element: usize, future: &mut u64, waker: &Waker) {
        let waker = waker.clone();
        let mut list = lock(&self.0);
        if *future == 0 {
            list.last += 1;
            *future = list.last;
        }
        let before = list.wakers.insert((element, *future), waker);
        drop(list);
        discard(before);
    }

    /// Removes the future from the list.
    pub(in crate::mem) fn leave(&self, element: usize, word: &LeaseWord, future: u64) {
        if future == 0 {
            return;
        }
        let mut list = lock(&self.0);
        let gone = list.wakers.remove(&(element, future));
        if list.of(element).is_none() {
            word.unwatch();
        }
        drop(list);
        discard(gone);
    }

    pub(in crate::mem) fn released(&self, element: usize) {
        let mut woken = Vec::new();
        let mut list = lock(&self.0);
        while let Some(future) = list.of(element) {
            woken.extend(list.wakers.remove(&future));
        }
        drop(list);
        woken.into_iter().for_each(wake);
    }
}

impl List {
    /// Returns a future that waits for this element.
    fn of(&self, element: usize) -> Option<(usize, u64)> {
        let of_it = (element, 0)..=(element, u64::MAX);
        let (&future, _) = self.wakers.range(of_it).next()?;
        Some(future)
    }
}

/// A future that waits until an element has no Lease. It keeps the element alive.
pub(in crate::mem) struct Watch {
    handle: Handle,
    /// The future's number in the list, or 0 before its first poll.
    future: u64,
}

impl Watch {
    pub(in crate::mem) fn new(handle: Handle) -> Watch {
        Watch { handle, future: 0 }
    }

    pub(in crate::mem) fn poll(&mut self, waker: &Waker) -> Poll<()> {
        let (element, word) = (self.handle.0.address(), &self.handle.word);
        match WATCHES.get().poll(element, word, &mut self.future, waker) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.future != 0 {
            let (element, word) = (self.handle.0.address(), &self.handle.word);
            WATCHES.get().leave(element, word, self.future);
        }
    }
}
