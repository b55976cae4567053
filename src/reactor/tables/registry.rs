//! The tables of a WorkQ beside that of its Slots, receives and waits: the upper part of a Token
//! says which.

use std::sync::Arc;

use arrayvec::ArrayVec;

use crate::device::Completion;
use crate::error::{Error, ErrorKind, Result};
use crate::reactor::gate::Deferred;
use crate::reactor::places::{Ends, Places};
use crate::reactor::slots::{BATCH, Leftovers, Notify};
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{BriefMutex, lock};

/// The most tables: 0 represents the Slots, and the last number for no Token at all.
pub(crate) const TABLES: usize = 4094;

/// Called when the state of an Rdma has changed.
pub(in crate::reactor) type Changed = Arc<dyn Fn() + Send + Sync>;

pub(in crate::reactor) struct Registry {
    entries: BriefMutex<Vec<TableEntry>>,
    /// Ops that sleep, of all tables.
    asleep: Arc<AtomicUsize>,
    /// How many watch the state of an Rdma.
    watched: Arc<AtomicUsize>,
}

/// While this lives, the device is to ring for changes of the state of an Rdma.
#[derive(Debug)]
pub(in crate::reactor) struct Watching(Arc<AtomicUsize>);

impl Watching {
    fn new(watched: &Arc<AtomicUsize>) -> Watching {
        watched.fetch_add(1, Ordering::SeqCst);
        Watching(Arc::clone(watched))
    }
}

impl Clone for Watching {
    fn clone(&self) -> Watching {
        Watching::new(&self.0)
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What has a number.
#[derive(Default)]
struct TableEntry {
    of: Option<(Arc<dyn Places>, Option<Changed>)>,
    /// Places that were taken under this number by those before.
    posted: u64,
}

/// What a new table is made with: its number, how many Tokens that had, so that none is used twice,
/// and who sleeps.
pub(in crate::reactor) struct Numbered {
    pub(in crate::reactor) number: u32,
    pub(in crate::reactor) posted: u64,
    pub(in crate::reactor) asleep: Arc<AtomicUsize>,
}

impl Registry {
    pub(in crate::reactor) fn new() -> Registry {
        Registry {
            entries: BriefMutex::new(Vec::new()),
            asleep: Arc::default(),
            watched: Arc::default(),
        }
    }

    /// Has the device ring for changes of the state of an Rdma.
    pub(in crate::reactor) fn watch(&self) -> Watching {
        Watching::new(&self.watched)
    }

    /// Returns true if the device is to ring for changes of the state of an Rdma.
    pub(in crate::reactor) fn any_watched(&self) -> bool {
        self.watched.load(Ordering::SeqCst) > 0
    }

    /// Returns a new table, of an Rdma, which hears of changes, or of a sync event.
    pub(in crate::reactor) fn add<T: Places + 'static>(
        &self,
        changed: Option<Changed>,
        make: impl FnOnce(Numbered) -> T,
    ) -> Result<Arc<T>> {
        let mut entries = lock(&self.entries);
        let free = entries.iter().position(|entry| entry.of.is_none());
        let index = free.unwrap_or(entries.len());
        if index == TABLES {
            let text = format!("the WorkQ has {TABLES} of them, as many as can be: build another");
            return Err(Error::new(ErrorKind::Full, None, text));
        }
        if free.is_none() {
            entries.push(TableEntry::default());
        }
        let entry = &mut entries[index];
        let table = Arc::new(make(Numbered {
            number: index as u32 + 1,
            posted: entry.posted,
            asleep: Arc::clone(&self.asleep),
        }));
        entry.of = Some((Arc::clone(&table) as _, changed));
        Ok(table)
    }

    /// Returns true if the context of a table is still there.
    pub(in crate::reactor) fn has(&self, table: &impl Places) -> bool {
        let index = table.number() as usize - 1;
        let of = &lock(&self.entries)[index].of;
        let is_it =
            |(other, _): &(Arc<dyn Places>, _)| std::ptr::addr_eq(Arc::as_ptr(other), table);
        of.as_ref().is_some_and(is_it)
    }

    /// Its context is gone.
    pub(in crate::reactor) fn forget(&self, table: &impl Places) {
        let index = table.number() as usize - 1;
        let mut entries = lock(&self.entries);
        entries[index].posted = table.posted();
        let of = entries[index].of.take();
        drop(entries);
        drop(of);
        if self.any_asleep() {
            // An Op that was forgotten sleeps for ever, and nobody shall arm for it.
            table.wake_all();
        }
    }

    /// Returns true if an Op sleeps that has a place.
    pub(in crate::reactor) fn any_asleep(&self) -> bool {
        self.asleep.load(Ordering::SeqCst) > 0
    }

    /// Returns how many of them sleep, for a guess.
    pub(in crate::reactor) fn asleep(&self) -> usize {
        self.asleep.load(Ordering::Relaxed)
    }

    /// Reaper: what had these places, all of one table, has completed. The context may have gone
    /// while the device's queue had them. Adds as many to notify as there are completions, at most.
    #[inline]
    pub(in crate::reactor) fn complete(
        &self,
        completions: &[Completion],
        rest: &mut Leftovers,
        to_notify: &mut ArrayVec<Notify, BATCH>,
    ) {
        let mut ends = Ends {
            to_notify,
            rest,
            freed: false,
        };
        let entries = lock(&self.entries);
        let entry = completions.first().and_then(|completion| {
            let index = (completion.token.table() as usize).checked_sub(1)?;
            entries.get(index)?.of.as_ref()
        });
        match entry {
            Some((table, _)) => {
                table.complete(completions, &mut ends);
                if ends.freed {
                    to_notify.push(Notify::Line(Deferred::new(Arc::clone(table))));
                }
            }
            None => completions.iter().for_each(|each| ends.add(each, None)),
        }
    }

    /// Calls `f` for every table, with no lock held.
    pub(in crate::reactor) fn each(&self, f: impl Fn(&dyn Places, Option<&Changed>)) {
        for index in 0.. {
            let entries = lock(&self.entries);
            let Some(entry) = entries.get(index) else {
                return;
            };
            let of = entry.of.clone();
            drop(entries);
            if let Some((table, changed)) = of {
                f(&*table, changed.as_ref());
            }
        }
    }

    /// Makes all Ops that have a place, or wait for one, poll again.
    pub(in crate::reactor) fn wake_all(&self) {
        self.each(|table, changed| {
            table.wake_all();
            if let Some(changed) = changed {
                changed();
            }
        });
    }
}
