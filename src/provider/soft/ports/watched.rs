//! Ports that may have something to do without being ready: sync events that wait for a counter
//! which another process may change.
//!
//! The other process also sends a wake-up, which makes the port ready once it is read. But while no
//! thread sleeps, no thread reads wake-ups: instead the reaper asks a few of these ports in turn.

use super::ready_set::ReadySet;
use crate::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use crate::sync::{Mutex, lock, try_lock};

/// The number of ports that are asked in one go.
const ASKED: usize = 4;

pub(super) struct PolledPorts<P> {
    list: Mutex<List<P>>,
    /// The length of the list.
    len: AtomicUsize,
}

struct List<P> {
    ports: Vec<(u32, P)>,
    /// For each port number, the port's index in the list plus one; 0 if it is not listed.
    indices: Vec<usize>,
    next: usize,
}

impl<P> PolledPorts<P> {
    pub(super) fn new() -> PolledPorts<P> {
        let list = List {
            ports: Vec::new(),
            indices: Vec::new(),
            next: 0,
        };
        PolledPorts {
            list: Mutex::new(list),
            len: AtomicUsize::new(0),
        }
    }

    /// Reserves capacity for port numbers below `ports`, so that `add` allocates nothing.
    pub(super) fn reserve(&self, ports: usize) {
        let mut list = lock(&self.list);
        let (len, known) = (list.ports.len(), list.indices.len());
        list.ports.reserve(ports.saturating_sub(len));
        list.indices.resize(known.max(ports), 0);
    }

    pub(super) fn add(&self, number: u32, port: P) {
        let mut list = lock(&self.list);
        if list.indices[number as usize] == 0 {
            list.ports.push((number, port));
            list.indices[number as usize] = list.ports.len();
            self.len.store(list.ports.len(), SeqCst);
        }
    }

    pub(super) fn remove(&self, number: u32) {
        let mut list = lock(&self.list);
        let index = std::mem::take(&mut list.indices[number as usize]);
        let Some(at) = index.checked_sub(1) else {
            return;
        };
        let gone = list.ports.swap_remove(at);
        if let Some(&(moved, _)) = list.ports.get(at) {
            list.indices[moved as usize] = index;
        }
        self.len.store(list.ports.len(), SeqCst);
        drop(list);
        // This may drop the port, which takes other locks.
        drop(gone);
    }

    /// Asks the next few ports, and marks those that are due as ready. Returns true if any was due.
    #[inline]
    pub(super) fn ask(&self, ready_set: &ReadySet, is_due: fn(&P) -> bool) -> bool {
        self.len.load(SeqCst) > 0 && self.ask_some(ready_set, is_due)
    }

    fn ask_some(&self, ready_set: &ReadySet, is_due: fn(&P) -> bool) -> bool {
        let Some(mut list) = try_lock(&self.list) else {
            // Another thread is already asking.
            return false;
        };
        let List { ports, next, .. } = &mut *list;
        let mut found = false;
        for _ in 0..ASKED.min(ports.len()) {
            *next = (*next + 1) % ports.len();
            let (number, port) = &ports[*next];
            if is_due(port) {
                ready_set.set(*number);
                found = true;
            }
        }
        found
    }

    /// Removes all ports.
    pub(super) fn clear(&self) {
        let mut list = lock(&self.list);
        let ports = std::mem::take(&mut list.ports);
        list.indices.fill(0);
        self.len.store(0, SeqCst);
        drop(list);
        drop(ports);
    }
}
