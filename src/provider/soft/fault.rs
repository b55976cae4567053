//! Faults on request: users test their own services with them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::engine::Engines;
use crate::error::ErrorKind;

/// What shall happen to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// Nothing: this job is let through.
    Pass,
    /// It fails with this kind and vendor code; nothing is copied.
    Error(ErrorKind, u64),
    /// It is done that much later. Jobs behind it are not held up.
    Delay(Duration),
    /// The queue says that it is full, once.
    QueueFull,
}

/// The script of a provider's devices: each job takes the next entry; when none is left, all is well again.
///
/// While there is a script, or a [`Hold`], no job is done inline.
#[derive(Clone)]
pub struct Faults(Arc<Script>);

pub(super) struct Script {
    entries: Mutex<VecDeque<Fault>>,
    /// How many entries are left, and how many Holds there are: read without the lock.
    left: AtomicUsize,
    holds: AtomicUsize,
    /// Copies up to so many bytes run inline: none while there is a script or a Hold.
    inline_limit: AtomicUsize,
    unscripted_limit: usize,
    engines: Engines,
}

impl Faults {
    pub(super) fn new(inline_limit: usize) -> Faults {
        Faults(Arc::new(Script {
            inline_limit: AtomicUsize::new(inline_limit),
            unscripted_limit: inline_limit,
            entries: Mutex::default(),
            left: AtomicUsize::new(0),
            holds: AtomicUsize::new(0),
            engines: Engines::default(),
        }))
    }

    /// Appends to the script.
    pub fn push(&self, fault: Fault) {
        let mut entries = self.entries();
        entries.push_back(fault);
        self.changed(&entries);
    }

    /// How many entries are left.
    pub fn left(&self) -> usize {
        self.0.left.load(Ordering::SeqCst)
    }

    /// Forgets the script.
    pub fn clear(&self) {
        let mut entries = self.entries();
        entries.clear();
        self.changed(&entries);
    }

    /// Holds all jobs up that have not begun, until the Hold is dropped: they are in flight, and nothing moves.
    #[must_use = "the jobs go on when the Hold is dropped"]
    pub fn hold(&self) -> Hold {
        let entries = self.entries();
        self.0.holds.fetch_add(1, Ordering::SeqCst);
        self.changed(&entries);
        drop(entries);
        Hold(self.clone())
    }

    fn entries(&self) -> MutexGuard<'_, VecDeque<Fault>> {
        self.0
            .entries
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self, entries: &VecDeque<Fault>) {
        let script = &self.0;
        script.left.store(entries.len(), Ordering::SeqCst);
        let free = entries.is_empty() && !self.is_held();
        let limit = if free { script.unscripted_limit } else { 0 };
        script.inline_limit.store(limit, Ordering::SeqCst);
    }

    /// Copies up to so many bytes run inline now.
    #[inline]
    pub(super) fn inline_limit(&self) -> usize {
        self.0.inline_limit.load(Ordering::Relaxed)
    }

    pub(super) fn engines(&self) -> &Engines {
        &self.0.engines
    }

    #[inline]
    pub(super) fn is_held(&self) -> bool {
        self.0.holds.load(Ordering::SeqCst) != 0
    }

    /// The entry for the next job: taken when it is submitted.
    pub(super) fn next(&self) -> Fault {
        if self.0.left.load(Ordering::SeqCst) == 0 {
            return Fault::Pass;
        }
        let mut entries = self.entries();
        let fault = entries.pop_front();
        self.changed(&entries);
        fault.unwrap_or(Fault::Pass)
    }
}

/// Holds the jobs of a provider's devices up. Dropping it lets them go on.
pub struct Hold(Faults);

impl Drop for Hold {
    fn drop(&mut self) {
        let entries = self.0.entries();
        self.0.0.holds.fetch_sub(1, Ordering::SeqCst);
        self.0.changed(&entries);
        drop(entries);
        self.0.engines().wake_all();
    }
}
