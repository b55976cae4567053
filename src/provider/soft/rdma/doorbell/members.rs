//! The message rings of a doorbell page: which endpoint has each of them, and those that are kept
//! for connections to come (ADR 0048).

use std::collections::VecDeque;
use std::sync::Arc;

use super::super::messages::{MessageRing, Shape, Side};

/// The maximum number of message rings that a doorbell page joins.
pub(in super::super) const RINGS: u32 = 64 * 64;

/// The maximum number of message rings that a page keeps.
const KEPT: usize = 8;

/// The endpoint of this side's queue for each message ring.
#[derive(Default)]
pub(super) struct Members {
    endpoints: Vec<Option<u32>>,
    /// For the host: the indices without a message ring.
    free: Vec<u32>,
    /// Message rings whose connections have ended in order, and their indices; the oldest comes
    /// first. If both sides have kept one for an index, it is the same one: each keeps none that
    /// the other has not joined, and a client that joins another one by that index drops it.
    kept: VecDeque<(u32, Arc<MessageRing>)>,
}

/// Returns true if a message ring has this shape, and the queue does not poll it any more for the
/// endpoint that had it.
fn has(ring: &Arc<MessageRing>, shape: Shape) -> bool {
    ring.shape() == shape && Arc::strong_count(ring) == 1
}

impl Members {
    /// Returns a new index for this endpoint, and the message ring that was kept for it. Returns
    /// `None` if the page is full.
    pub(super) fn admit(&mut self, endpoint: u32) -> Option<(u32, Option<Arc<MessageRing>>)> {
        let (index, oldest) = match self.free.pop() {
            Some(index) => (index, None),
            None if (self.endpoints.len() as u32) < RINGS => {
                self.endpoints.push(None);
                (self.endpoints.len() as u32 - 1, None)
            }
            None => {
                let (index, oldest) = self.kept.pop_front()?;
                (index, Some(oldest))
            }
        };
        self.endpoints[index as usize] = Some(endpoint);
        Some((index, oldest))
    }

    pub(super) fn admit_again(
        &mut self,
        endpoint: u32,
        index: u32,
        shape: Shape,
    ) -> Option<MessageRing> {
        let (_, ring) = self.take_kept(|of, ring| of == index && has(ring, shape))?;
        self.endpoints[index as usize] = Some(endpoint);
        Arc::into_inner(ring)
    }

    pub(super) fn offer(&mut self, shape: Shape) -> Option<(u32, MessageRing)> {
        let (index, ring) = self.take_kept(|_, ring| has(ring, shape))?;
        Some((index, Arc::into_inner(ring)?))
    }

    /// Returns the endpoint that had the index before, and the message ring that was kept for it.
    pub(super) fn join(
        &mut self,
        index: u32,
        endpoint: u32,
    ) -> (Option<u32>, Option<Arc<MessageRing>>) {
        let len = self.endpoints.len().max(index as usize + 1);
        self.endpoints.resize(len, None);
        let before = self.endpoints[index as usize].replace(endpoint);
        let stale = self.take_kept(|of, _| of == index);
        (before, stale.map(|(_, ring)| ring))
    }

    /// Returns the message ring that is not kept any longer.
    pub(super) fn leave(
        &mut self,
        index: u32,
        endpoint: u32,
        kept: Option<Arc<MessageRing>>,
        side: Side,
    ) -> Option<Arc<MessageRing>> {
        let had = self.endpoints[index as usize].take_if(|its| *its == endpoint);
        if had.is_none() {
            return kept;
        }
        let is_kept = kept.is_some();
        self.kept.extend(kept.map(|ring| (index, ring)));
        let oldest = match self.kept.len() > KEPT {
            true => self.kept.pop_front(),
            false => None,
        };
        if side == Side::Host {
            self.free.extend((!is_kept).then_some(index));
            self.free.extend(oldest.as_ref().map(|(index, _)| *index));
        }
        oldest.map(|(_, ring)| ring)
    }

    pub(super) fn endpoints(&self) -> Vec<Option<u32>> {
        self.endpoints.clone()
    }

    pub(super) fn endpoint(&self, index: u32) -> Option<u32> {
        self.endpoints.get(index as usize).copied().flatten()
    }

    /// Takes the first message ring of which `is` is true.
    fn take_kept(
        &mut self,
        is: impl Fn(u32, &Arc<MessageRing>) -> bool,
    ) -> Option<(u32, Arc<MessageRing>)> {
        let at = self
            .kept
            .iter()
            .position(|(index, ring)| is(*index, ring))?;
        self.kept.remove(at)
    }
}
