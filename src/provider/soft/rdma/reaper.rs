//! Who looks, and at what: the endpoints that have something to do.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrayvec::ArrayVec;

use super::doorbell::DoorbellPages;
use super::messages::{MessageRing, Watch};
use super::ports::Ports;
use super::state::Shared;
use crate::device::Completion;
use crate::sync::atomic::fence;

/// Endpoints that are looked at without a hint.
const POLLED: usize = 4;
/// Endpoints whose change is told after one look.
const CHANGES: usize = 16;

type Changed = ArrayVec<Arc<Shared>, CHANGES>;

/// What whoever looks works on.
#[derive(Default)]
pub(super) struct Reaper {
    pub(super) doorbells: DoorbellPages,
    pub(super) polled: ArrayVec<Polled, POLLED>,
    turn: u32,
}

pub(super) struct Polled {
    pub(super) shared: Arc<Shared>,
    pub(super) messages: Arc<MessageRing>,
    pub(super) watch: Watch,
}

impl Ports {
    /// Looks at the endpoints that have something to do.
    ///
    /// # Safety
    ///
    /// As for `Queue::reap`.
    #[expect(unsafe_code, reason = "does Jobs whose memory was lent")]
    pub(in super::super) unsafe fn reap(&self, out: &mut [Completion]) -> usize {
        let mut changed = Changed::new();
        let mut guard = self.reaper();
        let reaper = &mut *guard;
        if self.is_due() {
            self.due.store(u64::MAX, Ordering::SeqCst);
            let endpoints = self.endpoints();
            for shared in endpoints.iter().flatten() {
                self.ready_set.set(shared.number);
            }
        }
        for doorbell in reaper.doorbells.iter() {
            if doorbell.is_hinted() {
                doorbell.take_hints(|number| self.ready_set.set(number));
            }
        }
        let mut filled = 0;
        reaper.turn = reaper.turn.wrapping_add(1);
        // In turn, so that neither waits for the other for ever.
        for first in [reaper.turn % 2, (reaper.turn + 1) % 2] {
            if first == 0 {
                // SAFETY: as the caller promises.
                filled += unsafe { self.look_at_polled(reaper, &mut out[filled..], &mut changed) };
            } else {
                // SAFETY: as above.
                filled += unsafe { self.look_at_ready(reaper, &mut out[filled..], &mut changed) };
            }
        }
        if self.stale.load(Ordering::Relaxed) && self.stale.swap(false, Ordering::Relaxed) {
            reaper.doorbells.let_go_of_idle();
        }
        self.ready_set.pass_on();
        if self.ready_set.is_armed() {
            // Whoever sleeps knows nothing of the Jobs that began to wait since.
            self.set_timer();
        }
        drop(guard);
        for shared in &changed {
            shared.tell();
        }
        filled
    }

    /// Looks at those that are looked at without a hint.
    ///
    /// # Safety
    ///
    /// As for `reap`.
    #[expect(unsafe_code, reason = "does Jobs whose memory was lent")]
    #[inline]
    unsafe fn look_at_polled(
        &self,
        reaper: &mut Reaper,
        out: &mut [Completion],
        changed: &mut Changed,
    ) -> usize {
        let (mut filled, mut at) = (0, 0);
        while filled < out.len()
            && let Some(polled) = reaper.polled.get_mut(at)
        {
            at += 1;
            if !polled.watch.finds(&polled.messages) {
                continue;
            }
            // SAFETY: as the caller promises.
            let look = unsafe { polled.shared.look(&mut out[filled..]) };
            filled += look.filled;
            if look.more {
                self.ready_set.set(polled.shared.number);
            }
            if polled.shared.has_changed() {
                changed.push(Arc::clone(&polled.shared));
            }
            match look.watch {
                Some(watch) => polled.watch = watch,
                None => {
                    at -= 1;
                    reaper.polled.swap_remove(at);
                }
            }
        }
        filled
    }

    /// Looks at those that were ready, or hinted at.
    ///
    /// # Safety
    ///
    /// As for `reap`.
    #[expect(unsafe_code, reason = "does Jobs whose memory was lent")]
    unsafe fn look_at_ready(
        &self,
        reaper: &mut Reaper,
        out: &mut [Completion],
        changed: &mut Changed,
    ) -> usize {
        let mut filled = 0;
        while filled < out.len() && changed.remaining_capacity() > POLLED {
            let Some(number) = self.ready_set.take() else {
                break;
            };
            let Some(shared) = self.endpoint(number) else {
                continue;
            };
            // SAFETY: as the caller promises.
            let look = unsafe { shared.look(&mut out[filled..]) };
            filled += look.filled;
            if look.more {
                self.ready_set.set(number);
            }
            if look.over {
                self.endpoints()[number as usize] = None;
            }
            self.remember(reaper, &shared, look.traffic);
            if shared.has_changed() {
                changed.push(shared);
            }
            if look.more {
                break;
            }
        }
        filled
    }

    /// Who got a message is looked at without a hint from now on.
    fn remember(&self, reaper: &mut Reaper, shared: &Arc<Shared>, traffic: bool) {
        let known = reaper
            .polled
            .iter()
            .position(|polled| Arc::ptr_eq(&polled.shared, shared));
        if let Some(at) = known {
            // It may have another connection.
            reaper.polled.swap_remove(at);
        } else if !traffic {
            return;
        }
        let Some((messages, watch)) = shared.start_polling() else {
            return;
        };
        if reaper.polled.is_full() {
            let parked = reaper.polled.swap_remove(reaper.turn as usize % POLLED);
            parked.messages.set_parked(true);
            fence(Ordering::SeqCst);
            if parked.watch.finds(&parked.messages) {
                self.ready_set.set(parked.shared.number);
            }
        }
        let shared = Arc::clone(shared);
        reaper.polled.push(Polled {
            shared,
            messages,
            watch,
        });
    }
}
