//! Who looks, and at what: the endpoints that have something to do.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrayvec::ArrayVec;

use super::doorbell::Links;
use super::messages::{Channel, Watch};
use super::ports::Ports;
use super::state::Shared;
use crate::device::Completion;
use crate::sync::atomic::fence;

/// Endpoints that are looked at without a hint.
const HOT: usize = 4;
/// Endpoints whose change is told after one look.
const CHANGES: usize = 16;

type Changed = ArrayVec<Arc<Shared>, CHANGES>;

/// What whoever looks works on.
#[derive(Default)]
pub(super) struct Reaper {
    pub(super) links: Links,
    pub(super) hot: ArrayVec<Hot, HOT>,
    turn: u32,
}

pub(super) struct Hot {
    pub(super) shared: Arc<Shared>,
    pub(super) channel: Arc<Channel>,
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
                self.raised.set(shared.number);
            }
        }
        for link in reaper.links.iter() {
            if link.is_hinted() {
                link.take_hints(|number| self.raised.set(number));
            }
        }
        let mut filled = 0;
        reaper.turn = reaper.turn.wrapping_add(1);
        // In turn, so that neither waits for the other for ever.
        for first in [reaper.turn % 2, (reaper.turn + 1) % 2] {
            if first == 0 {
                // SAFETY: as the caller promises.
                filled += unsafe { self.look_at_hot(reaper, &mut out[filled..], &mut changed) };
            } else {
                // SAFETY: as above.
                filled += unsafe { self.look_at_raised(reaper, &mut out[filled..], &mut changed) };
            }
        }
        if self.stale.load(Ordering::Relaxed) && self.stale.swap(false, Ordering::Relaxed) {
            reaper.links.let_go_of_idle();
        }
        self.raised.pass_on();
        if self.raised.is_armed() {
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
    unsafe fn look_at_hot(
        &self,
        reaper: &mut Reaper,
        out: &mut [Completion],
        changed: &mut Changed,
    ) -> usize {
        let (mut filled, mut at) = (0, 0);
        while filled < out.len()
            && let Some(hot) = reaper.hot.get_mut(at)
        {
            at += 1;
            if !hot.watch.finds(&hot.channel) {
                continue;
            }
            // SAFETY: as the caller promises.
            let look = unsafe { hot.shared.look(&mut out[filled..]) };
            filled += look.filled;
            if look.more {
                self.raised.set(hot.shared.number);
            }
            if hot.shared.has_changed() {
                changed.push(Arc::clone(&hot.shared));
            }
            match look.watch {
                Some(watch) => hot.watch = watch,
                None => {
                    at -= 1;
                    reaper.hot.swap_remove(at);
                }
            }
        }
        filled
    }

    /// Looks at those that were raised, or hinted at.
    ///
    /// # Safety
    ///
    /// As for `reap`.
    #[expect(unsafe_code, reason = "does Jobs whose memory was lent")]
    unsafe fn look_at_raised(
        &self,
        reaper: &mut Reaper,
        out: &mut [Completion],
        changed: &mut Changed,
    ) -> usize {
        let mut filled = 0;
        while filled < out.len() && changed.remaining_capacity() > HOT {
            let Some(number) = self.raised.take() else {
                break;
            };
            let Some(shared) = self.endpoint(number) else {
                continue;
            };
            // SAFETY: as the caller promises.
            let look = unsafe { shared.look(&mut out[filled..]) };
            filled += look.filled;
            if look.more {
                self.raised.set(number);
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
            .hot
            .iter()
            .position(|hot| Arc::ptr_eq(&hot.shared, shared));
        if let Some(at) = known {
            // It may have another connection.
            reaper.hot.swap_remove(at);
        } else if !traffic {
            return;
        }
        let Some((channel, watch)) = shared.warm_up() else {
            return;
        };
        if reaper.hot.is_full() {
            let cold = reaper.hot.swap_remove(reaper.turn as usize % HOT);
            cold.channel.set_cold(true);
            fence(Ordering::SeqCst);
            if cold.watch.finds(&cold.channel) {
                self.raised.set(cold.shared.number);
            }
        }
        let shared = Arc::clone(shared);
        reaper.hot.push(Hot {
            shared,
            channel,
            watch,
        });
    }
}
