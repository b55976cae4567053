//! [`Entries`], numbered entries such as receives and runs; only those that were woken are polled.
//!
//! Each entry has a waker, which adds the entry's number to the list of ready entries, and signals
//! the caller's own loop if the loop has armed.
//!
//! ```text
//!   add --> ready --- poll --> polled --> over: handed out
//!             ^                  |
//!             +--- waker --- (asleep)
//! ```

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};

use crate::reactor::events::Driven;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, lock};

/// The entries that the caller's own loop polls.
pub(in crate::reactor) struct Entries<E> {
    slots: Mutex<Slots<E>>,
    ready: Arc<Ready>,
}

struct Slots<E> {
    slots: Vec<EntrySlot<E>>,
    free: Vec<u32>,
}

struct EntrySlot<E> {
    user_data: u64,
    state: State<E>,
    bell: Arc<EntryWaker>,
}

enum State<E> {
    Free,
    Waiting(E),
    /// A thread polls the entry.
    Polled,
    /// A thread polls the entry, which was woken meanwhile.
    PolledAgain,
}

#[derive(Default)]
struct Ready(Mutex<VecDeque<u32>>);

/// The waker of an entry. Each index has one waker, which later entries of that index use again.
struct EntryWaker {
    index: u32,
    /// The entry's number is in the list of ready entries.
    queued: AtomicBool,
    ready: Arc<Ready>,
    driven: Weak<dyn Driven>,
}

impl Wake for EntryWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.queued.swap(true, Ordering::SeqCst) {
            return;
        }
        lock(&self.ready.0).push_back(self.index);
        // The loop is signalled after the number was added to the list: pairs with `arm`.
        if let Some(driven) = self.driven.upgrade() {
            driven.fire();
        }
    }
}

impl<E> Entries<E> {
    pub(in crate::reactor) fn new() -> Entries<E> {
        Entries {
            slots: Mutex::new(Slots {
                slots: Vec::new(),
                free: Vec::new(),
            }),
            ready: Arc::default(),
        }
    }

    /// Returns true if no entry waits to be polled.
    pub(in crate::reactor) fn none_ready(&self) -> bool {
        lock(&self.ready.0).is_empty()
    }

    /// Adds an entry, which the next `poll` polls. `driven` is the WorkQ whose loop polls it;
    /// `user_data` is handed out with the entry's result.
    pub(in crate::reactor) fn add<T: Driven>(&self, driven: &Arc<T>, user_data: u64, entry: E) {
        let mut slots = lock(&self.slots);
        let index = slots.free.pop().unwrap_or_else(|| {
            let index = slots.slots.len() as u32;
            let bell = Arc::new(EntryWaker {
                index,
                queued: AtomicBool::new(false),
                ready: Arc::clone(&self.ready),
                driven: Arc::<T>::downgrade(driven),
            });
            slots.slots.push(EntrySlot {
                user_data,
                state: State::Free,
                bell,
            });
            index
        });
        let slot = &mut slots.slots[index as usize];
        (slot.user_data, slot.state) = (user_data, State::Waiting(entry));
        let bell = Arc::clone(&slot.bell);
        drop(slots);
        bell.wake();
    }

    /// Polls the ready entries, at most once each, and passes the results of those that have
    /// completed to `handle`. Returns the number of completed entries.
    pub(in crate::reactor) fn poll<T>(
        &self,
        mut poll: impl FnMut(&mut E, &mut Context<'_>) -> Poll<T>,
        mut handle: impl FnMut(u64, T),
    ) -> usize {
        let (mut handed, mut left) = (0, lock(&self.ready.0).len());
        while left > 0
            && let Some(index) = self.next()
        {
            left -= 1;
            let Some((mut entry, waker)) = self.take(index) else {
                continue;
            };
            // If the poll panics, in a provider or in a `Drop` of the application's types, the
            // entry is freed.
            let slot = Polled(self, index);
            match poll(&mut entry, &mut Context::from_waker(&waker)) {
                Poll::Pending => {
                    std::mem::forget(slot);
                    self.put_back(index, entry);
                }
                Poll::Ready(end) => {
                    std::mem::forget(slot);
                    let user_data = self.end(index);
                    drop(entry);
                    handed += 1;
                    handle(user_data, end);
                }
            }
        }
        handed
    }

    fn next(&self) -> Option<u32> {
        lock(&self.ready.0).pop_front()
    }

    /// Takes the entry out of the table to poll it.
    fn take(&self, index: u32) -> Option<(E, Waker)> {
        let mut slots = lock(&self.slots);
        let slot = &mut slots.slots[index as usize];
        // From here on a wake-up queues the entry again. This is a swap and not a store: the poll
        // must see what a thread did before its wake-up was merged into an earlier one.
        slot.bell.queued.swap(false, Ordering::SeqCst);
        match std::mem::replace(&mut slot.state, State::Polled) {
            State::Waiting(entry) => Some((entry, Waker::from(Arc::clone(&slot.bell)))),
            State::Polled | State::PolledAgain => {
                slot.state = State::PolledAgain;
                None
            }
            // The waker was called for an entry that has completed.
            State::Free => {
                slot.state = State::Free;
                None
            }
        }
    }

    fn put_back(&self, index: u32, entry: E) {
        let mut slots = lock(&self.slots);
        let slot = &mut slots.slots[index as usize];
        let again = matches!(slot.state, State::PolledAgain);
        slot.state = State::Waiting(entry);
        let bell = again.then(|| Arc::clone(&slot.bell));
        drop(slots);
        bell.into_iter().for_each(EntryWaker::wake);
    }

    /// Frees the entry. Returns its `user_data`.
    fn end(&self, index: u32) -> u64 {
        let mut slots = lock(&self.slots);
        let slot = &mut slots.slots[index as usize];
        slot.state = State::Free;
        let user_data = slot.user_data;
        slots.free.push(index);
        user_data
    }
}

/// A guard of an entry that is being polled: dropping it frees the entry.
struct Polled<'a, E>(&'a Entries<E>, u32);

impl<E> Drop for Polled<'_, E> {
    fn drop(&mut self) {
        self.0.end(self.1);
    }
}
