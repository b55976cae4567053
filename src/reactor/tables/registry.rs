//! [`Registry`], the tables of a WorkQ for receives and waits, apart from the table of its slots.
//! The upper part of a Token is the number of its table.

use std::sync::Arc;

use arrayvec::ArrayVec;

use crate::device::Completion;
use crate::error::{Error, ErrorKind, Result};
use crate::reactor::entry_table::{Ends, EntryTable};
use crate::reactor::gate::Deferred;
use crate::reactor::slots::{BATCH, Leftovers, Notify};
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{BriefMutex, lock};

/// The maximum number of tables in a [`Registry`]. They are numbered from 1; table 0 is the table
/// of the slots. 4,095 is not used, since `u64::MAX` must not be a Token.
pub(crate) const TABLES: usize = 4094;

/// A function that is called each time that the state of an Rdma may have changed.
pub(in crate::reactor) type Changed = Arc<dyn Fn() + Send + Sync>;

pub(in crate::reactor) struct Registry {
    entries: BriefMutex<Vec<TableEntry>>,
    /// The number of tables, that is of `entries` with a table.
    pub(in crate::reactor) tables: AtomicUsize,
    /// The number of operations of all tables that sleep.
    asleep: Arc<AtomicUsize>,
    /// The number of watchers of the state of an Rdma.
    watched: Arc<AtomicUsize>,
}

/// A guard: while it lives, the device shall signal changes of the state of an Rdma.
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

/// The registry's entry for one table number: the table that has the number, if one does.
#[derive(Default)]
struct TableEntry {
    of: Option<(Arc<dyn EntryTable>, Option<Changed>)>,
    /// The number of receives or waits that earlier tables with this number have posted.
    posted: u64,
}

/// The identity of a new table: its number, the number of Tokens that were already issued under it
/// (so that none is used twice), and the WorkQ's count of operations that sleep.
pub(in crate::reactor) struct Numbered {
    pub(in crate::reactor) number: u32,
    pub(in crate::reactor) posted: u64,
    pub(in crate::reactor) asleep: Arc<AtomicUsize>,
}

impl Registry {
    pub(in crate::reactor) fn new() -> Registry {
        Registry {
            entries: BriefMutex::new(Vec::new()),
            tables: AtomicUsize::new(0),
            asleep: Arc::default(),
            watched: Arc::default(),
        }
    }

    /// Makes the device signal changes of the state of an Rdma for as long as the result lives.
    pub(in crate::reactor) fn watch(&self) -> Watching {
        Watching::new(&self.watched)
    }

    /// Returns true if the device shall signal changes of the state of an Rdma.
    pub(in crate::reactor) fn any_watched(&self) -> bool {
        self.watched.load(Ordering::SeqCst) > 0
    }

    /// Adds a table for an Rdma or for a sync event. An Rdma passes `changed`, which is called each
    /// time its state may have changed.
    pub(in crate::reactor) fn add<T: EntryTable + 'static>(
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
        self.tables.fetch_add(1, Ordering::Relaxed);
        Ok(table)
    }

    /// Returns true if the context of a table still exists.
    pub(in crate::reactor) fn has(&self, table: &impl EntryTable) -> bool {
        let index = table.number() as usize - 1;
        let of = &lock(&self.entries)[index].of;
        let is_it =
            |(other, _): &(Arc<dyn EntryTable>, _)| std::ptr::addr_eq(Arc::as_ptr(other), table);
        of.as_ref().is_some_and(is_it)
    }

    /// Removes the table of a context that is being dropped.
    pub(in crate::reactor) fn forget(&self, table: &impl EntryTable) {
        let index = table.number() as usize - 1;
        let mut entries = lock(&self.entries);
        entries[index].posted = table.posted();
        let of = entries[index].of.take();
        self.tables.fetch_sub(1, Ordering::Relaxed);
        drop(entries);
        drop(of);
        if self.any_asleep() {
            // An operation that was forgotten (`mem::forget`) would count as asleep for ever, so
            // that threads would arm for it.
            table.wake_all();
        }
    }

    /// Returns true if an operation of a table sleeps.
    pub(in crate::reactor) fn any_asleep(&self) -> bool {
        self.asleep.load(Ordering::SeqCst) > 0
    }

    /// Returns the approximate number of operations of all tables that sleep.
    pub(in crate::reactor) fn asleep(&self) -> usize {
        self.asleep.load(Ordering::Relaxed)
    }

    /// Passes completions, all of entries of one table, to that table; for the reaper. The table's
    /// context may have been dropped while the completions were in the device's queue. Adds at most
    /// one element per completion to `to_notify`.
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

    /// Calls `f` for every table, without holding a lock.
    pub(in crate::reactor) fn each(&self, f: impl Fn(&dyn EntryTable, Option<&Changed>)) {
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

    /// Makes all operations that have an entry, or wait for one, poll again.
    pub(in crate::reactor) fn wake_all(&self) {
        self.each(|table, changed| {
            table.wake_all();
            if let Some(changed) = changed {
                changed();
            }
        });
    }
}
