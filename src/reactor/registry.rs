//! The tables of receives of a WorkQ: the upper part of a Token says which.

use std::sync::Arc;

use super::receives::{Ended, Receives};
use super::target::Told;
use crate::device::Completion;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{Mutex, lock, wake};

/// The most tables: 0 stands for the Slots, and the last number for no Token at all.
const TABLES: usize = 4094;

/// What is told whatever an Rdma could be asked about: that its state has changed.
pub(super) type Changed = Arc<dyn Fn() + Send + Sync>;

pub(super) struct Registry {
    entries: Mutex<Vec<Entry>>,
    /// Ops that sleep, of all tables.
    asleep: Arc<AtomicUsize>,
    /// Somebody has asked to be told of changes of the state.
    watched: AtomicBool,
}

/// What has a number.
#[derive(Default)]
struct Entry {
    of: Option<(Arc<Receives>, Changed)>,
    /// Receives that were posted under this number by those before.
    posted: u64,
}

impl Registry {
    pub(super) fn new() -> Registry {
        Registry {
            entries: Mutex::new(Vec::new()),
            asleep: Arc::default(),
            watched: AtomicBool::new(false),
        }
    }

    /// Somebody is to be told of changes of the state.
    pub(super) fn watch(&self) {
        self.watched.store(true, Ordering::SeqCst);
    }

    /// Whether somebody is.
    pub(super) fn any_watched(&self) -> bool {
        self.watched.load(Ordering::SeqCst)
    }

    /// A table of so many receives.
    pub(super) fn add(&self, size: u32, changed: Changed) -> Result<Arc<Receives>> {
        let mut entries = lock(&self.entries);
        let free = entries.iter().position(|entry| entry.of.is_none());
        let index = free.unwrap_or(entries.len());
        if index == TABLES {
            let text = format!("the WorkQ has {TABLES} of them, as many as can be: build another");
            return Err(Error::new(ErrorKind::Full, "RdmaBuilder::attach", text));
        }
        if free.is_none() {
            entries.push(Entry::default());
        }
        let entry = &mut entries[index];
        let (number, asleep) = (index as u32 + 1, Arc::clone(&self.asleep));
        let receives = Arc::new(Receives::new(number, size, entry.posted, asleep));
        entry.of = Some((Arc::clone(&receives), changed));
        Ok(receives)
    }

    /// The Rdma is gone.
    pub(super) fn forget(&self, receives: &Receives) {
        let index = receives.number() as usize - 1;
        let mut entries = lock(&self.entries);
        entries[index].posted = receives.posted();
        let of = entries[index].of.take();
        drop(entries);
        drop(of);
        if self.any_asleep() {
            // An Op that was forgotten sleeps for ever, and nobody shall arm for it.
            receives.nudge(wake);
        }
    }

    /// Whether an Op that waits for a message sleeps.
    pub(super) fn any_asleep(&self) -> bool {
        self.asleep.load(Ordering::SeqCst) > 0
    }

    /// A receive is over; answers whom to tell. False if it named none that is posted: the Rdma may have gone, and its
    /// receives been in the device's queue.
    pub(super) fn complete(&self, completion: &Completion, tell: impl FnMut(Told)) -> bool {
        let entries = lock(&self.entries);
        let entry = (completion.token.table() as usize)
            .checked_sub(1)
            .and_then(|index| entries.get(index));
        let Some((receives, _)) = entry.and_then(|entry| entry.of.as_ref()) else {
            return false;
        };
        let Some(Ended {
            waker,
            lease,
            freed,
        }) = receives.complete(completion)
        else {
            return false;
        };
        let line = freed.then(|| Told::Line(Arc::clone(receives)));
        drop(entries);
        drop(lease);
        let waker = waker.map(Told::Waker);
        waker.into_iter().chain(line).for_each(tell);
        true
    }

    /// Calls `f` for every table, with no lock held.
    pub(super) fn each(&self, f: impl Fn(&Receives, &Changed)) {
        for index in 0.. {
            let entries = lock(&self.entries);
            let Some(entry) = entries.get(index) else {
                return;
            };
            let of = entry.of.clone();
            drop(entries);
            if let Some((receives, changed)) = of {
                f(&receives, &changed);
            }
        }
    }

    /// Makes all Ops that wait for a message, or for a place, poll again.
    pub(super) fn nudge(&self) {
        self.each(|receives, _| receives.nudge(wake));
    }
}
