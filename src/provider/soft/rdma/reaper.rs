//! The state of a queue's reaper: doorbell pages, and the endpoints that the reaper polls without a
//! hint.
//!
//! These endpoints are the last few that got messages. Their peers need not send hints, since the
//! reaper finds the messages by itself.
#![expect(unsafe_code, reason = "does Jobs whose memory was lent")]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrayvec::ArrayVec;

use super::super::ports::{POLLS, Pollable, Ports, Progress, ReadySet};
use super::doorbell::{Bell, DoorbellOwner, DoorbellPage, DoorbellPages};
use super::messages::{MessageRing, Watch};
use super::state::Shared;
use crate::device::Completion;
use crate::error::{Error, Result};
use crate::sync::atomic::fence;

/// The maximum number of endpoints that are polled without a hint.
const POLLED: usize = 4;

/// The endpoints whose state has changed during one call.
pub(in super::super) type Changed = ArrayVec<Arc<Shared>, { POLLS + POLLED }>;

#[derive(Default)]
pub(in super::super) struct Reaper {
    pub(super) doorbells: DoorbellPages,
    polled: ArrayVec<PolledEndpoint, POLLED>,
    changed: Changed,
    turn: u32,
    /// The number of the port that is polled next if it is ready.
    pub(in super::super) next: u32,
}

struct PolledEndpoint {
    shared: Arc<Shared>,
    messages: Arc<MessageRing>,
    watch: Watch,
}

impl Reaper {
    /// Returns true if a poll would find messages or hints from peers.
    #[inline]
    pub(in super::super) fn finds(&mut self) -> bool {
        let finds = |polled: &PolledEndpoint| polled.watch.finds(&polled.messages);
        self.polled.iter().any(finds) || self.doorbells.has_hints()
    }

    /// Marks the endpoints as ready for which peers have left hints.
    #[inline]
    pub(in super::super) fn take_hints(&mut self, ready_set: &ReadySet) {
        let take = |page: &DoorbellPage| page.take_hints(|number| ready_set.set(number));
        self.doorbells.hinted(take);
    }

    /// Requests wake-ups from the peers of all endpoints. The caller polls afterwards.
    pub(in super::super) fn arm(&mut self) {
        self.doorbells.arm();
    }

    /// Removes doorbell pages without message rings.
    pub(in super::super) fn let_go_of_idle(&mut self) {
        self.doorbells.let_go_of_idle();
    }

    #[inline]
    pub(in super::super) fn next_turn(&mut self) -> u32 {
        self.turn = self.turn.wrapping_add(1);
        self.turn
    }

    /// Returns the endpoints whose state has changed since the last call, if there are any.
    #[inline]
    pub(in super::super) fn take_changed(&mut self) -> Option<Changed> {
        (!self.changed.is_empty()).then(|| std::mem::take(&mut self.changed))
    }

    /// Wakes the doorbell page with this key, whose bell has bytes to read. Returns a function that
    /// reads the bell, which the caller calls without a lock.
    pub(in super::super) fn rang(&mut self, key: u64) -> Option<impl FnOnce() + use<>> {
        let page = self.doorbells.rang(key)?;
        Some(move || page.read_bell())
    }

    /// Polls the endpoints that are polled without hints.
    ///
    /// # Safety
    ///
    /// As for `Queue::reap`.
    #[inline]
    pub(in super::super) unsafe fn poll_polled(
        &mut self,
        ready_set: &ReadySet,
        out: &mut [Completion],
    ) -> usize {
        let (mut filled, mut at) = (0, 0);
        while filled < out.len()
            && let Some(polled) = self.polled.get_mut(at)
        {
            at += 1;
            if !polled.watch.finds(&polled.messages) {
                continue;
            }
            // SAFETY: as the caller promises.
            let look = unsafe { polled.shared.serve(&mut out[filled..]) };
            filled += look.filled;
            if look.more {
                ready_set.set(polled.shared.number);
            }
            if polled.shared.has_changed() {
                self.changed.push(Arc::clone(&polled.shared));
            }
            match look.watch {
                Some(watch) => polled.watch = watch,
                None => {
                    at -= 1;
                    self.polled.swap_remove(at);
                }
            }
        }
        filled
    }

    /// Polls an endpoint without hints from now on, if it has just got a message.
    fn remember(&mut self, shared: &Arc<Shared>, traffic: bool) {
        let is_it = |polled: &PolledEndpoint| Arc::ptr_eq(&polled.shared, shared);
        if let Some(at) = self.polled.iter().position(is_it) {
            // The endpoint may have a new connection.
            self.polled.swap_remove(at);
        } else if !traffic {
            return;
        }
        let Some((messages, watch)) = shared.start_polling() else {
            return;
        };
        if self.polled.is_full() {
            let parked = self.polled.swap_remove(self.turn as usize % POLLED);
            parked.messages.set_parked(true);
            fence(Ordering::SeqCst);
            if parked.watch.finds(&parked.messages) {
                shared.ports.ready_set.set(parked.shared.number);
            }
        }
        let shared = Arc::clone(shared);
        self.polled.push(PolledEndpoint {
            shared,
            messages,
            watch,
        });
    }
}

impl Pollable<Reaper> for Shared {
    unsafe fn poll(self: Arc<Self>, reaper: &mut Reaper, out: &mut [Completion]) -> Progress {
        // SAFETY: as the caller promises.
        let look = unsafe { self.serve(out) };
        reaper.remember(&self, look.traffic);
        if self.has_changed() {
            reaper.changed.push(self);
        }
        Progress {
            filled: look.filled,
            more: look.more,
            finished: look.finished,
        }
    }

    fn give_back(&self, rested: bool) -> bool {
        // A thread that holds the lock uses the endpoint, so it is not idle.
        let Some(mut inner) = self.try_inner() else {
            return false;
        };
        let connection = inner.connection.as_mut();
        connection.is_some_and(|connection| connection.give_back(rested))
    }

    fn end(&self) {
        self.retire();
    }
}

impl Ports {
    /// Watches the bell of a doorbell page, once its socket has come. A wake-up makes the queue
    /// poll, and the end of the socket ends the connections of the page.
    pub(super) fn add_bell(&self, doorbell: &Arc<DoorbellPage>) -> Result<()> {
        let Bell::Socket(socket) = doorbell.bell() else {
            return Ok(());
        };
        let Some(socket) = socket.get() else {
            return Ok(());
        };
        self.listen_to_page(doorbell.key, socket)
            .and_then(|()| doorbell.watch_bell())
            .map_err(|errno| Error::os(None, "epoll_ctl", errno.into()))
    }
}

impl DoorbellOwner for Ports {
    fn mark_ready(&self, endpoint: u32) {
        Ports::mark_ready(self, endpoint);
    }

    /// Makes the next poll remove the doorbell page.
    fn note_idle(&self) {
        self.stale.store(true, Ordering::Relaxed);
    }
}
