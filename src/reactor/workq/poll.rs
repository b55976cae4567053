//! The poll of one queue by an operation that waits busily, which may end its own job without a
//! turn.

use std::mem::forget;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::shared::Shared;
use super::turn::SignalOnDrop;
use crate::device::Queue;
use crate::reactor::gate::Inside;
use crate::reactor::slots::{Awaited, InFlight, OwnRest};
use crate::sync::discard;

impl Shared {
    /// Polls one queue as `poll_queue_for` does, for no operation. Returns true if this thread has
    /// reaped something.
    pub(in crate::reactor) fn poll_queue(&self, queue: &Arc<dyn Queue>, looks: usize) -> bool {
        let polled = self.poll_queue_for(queue, looks, None::<&InFlight<'_>>);
        polled.is_some()
    }

    /// Polls one queue, up to `looks` times, and takes a turn if that finds something. Returns
    /// `Some` if this thread has reaped something. If another thread is in the gate, a queue that
    /// polls only in `reap` is left to later polls of the caller. Any other queue has found
    /// something by then, so the other thread is asked to reap it.
    ///
    /// If the completion of `own`, the operation that polls, is all that there is to handle, this
    /// ends the operation without a turn, and returns its end.
    #[inline(always)]
    pub(in crate::reactor) fn poll_queue_for<A: Awaited>(
        &self,
        queue: &Arc<dyn Queue>,
        looks: usize,
        own: Option<&A>,
    ) -> Option<Option<A::End>> {
        let polls_in_reap = queue.polls_in_reap();
        if !polls_in_reap && !queue.ready_within(looks) {
            return None;
        }
        let unheard = SignalOnDrop(self);
        let reaped = self.gate.try_enter().map(|mut inside| {
            let reaped = Shared::reap_from(queue, inside.completions(), looks);
            (inside, reaped)
        });
        forget(unheard);
        let Some((inside, reaped)) = reaped else {
            if !polls_in_reap {
                self.turn();
            }
            return None;
        };
        if reaped == 0 {
            if let Err(inside) = inside.leave() {
                self.turn_inside(inside, 0);
            }
            return None;
        }
        Some(self.end_own(inside, reaped, own))
    }

    /// Ends the operation that polls, if its completion is all that there is to handle. Otherwise
    /// takes a turn.
    #[inline(always)]
    fn end_own<A: Awaited>(
        &self,
        mut inside: Inside<'_>,
        reaped: usize,
        own: Option<&A>,
    ) -> Option<A::End> {
        let is_all = reaped == 1
            && self.requests.load(Ordering::Relaxed) == 0
            && self.queues().nth(1).is_none();
        let (completions, mut rest) = (&inside.completions()[..1], OwnRest::new());
        // A closure (`and_then`) would cost a call.
        let end = match own {
            Some(own) if is_all => own.end(&completions[0], &mut rest),
            _ => None,
        };
        let Some(end) = end else {
            self.turn_inside(inside, reaped);
            return None;
        };
        self.counts.completed(completions);
        let (outside, owes) = match inside.leave() {
            Ok(outside) => (outside, false),
            Err(inside) => (inside.leave_now(), true),
        };
        while let Some(last) = rest.pop() {
            discard(last.open(&outside));
        }
        // As in `Turn::notify`. The caller lists the slot as free, and notifies the line.
        if self.pause.is_on() {
            self.resume(false);
        }
        if owes {
            self.turn();
        }
        own.inspect(|own| own.free());
        Some(end)
    }
}
