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
    /// For the host: the indices without a message ring, and the number of the latest one.
    free: Vec<u32>,
    latest: u32,
    /// Message rings whose connections have ended in order; the oldest comes first.
    kept: VecDeque<Kept>,
}

/// A message ring that is kept. Both sides know it by its number, which no other one of the page
/// has ever had. Its index may have had another one since.
struct Kept {
    index: u32,
    number: u32,
    ring: Arc<MessageRing>,
}

/// Returns true if a message ring has this shape, and the queue does not poll it any more for the
/// endpoint that had it.
fn has(ring: &Arc<MessageRing>, shape: Shape) -> bool {
    ring.shape() == shape && Arc::strong_count(ring) == 1
}

impl Members {
    /// Returns a new index for this endpoint, the number of its new message ring, and the one that
    /// was kept for the index. Returns `None` if the page is full. After
    /// 2^32 - 1 message rings the number is 0, and they are not kept.
    pub(super) fn admit(&mut self, endpoint: u32) -> Option<(u32, u32, Option<Arc<MessageRing>>)> {
        let (index, oldest) = match self.free.pop() {
            Some(index) => (index, None),
            None if (self.endpoints.len() as u32) < RINGS => {
                self.endpoints.push(None);
                (self.endpoints.len() as u32 - 1, None)
            }
            None => {
                let oldest = self.kept.pop_front()?;
                (oldest.index, Some(oldest.ring))
            }
        };
        self.endpoints[index as usize] = Some(endpoint);
        let number = self.latest.checked_add(1).unwrap_or(0);
        self.latest = self.latest.max(number);
        Some((index, number, oldest))
    }

    pub(super) fn admit_again(
        &mut self,
        endpoint: u32,
        number: u32,
        shape: Shape,
    ) -> Option<(u32, MessageRing)> {
        let Kept { index, ring, .. } =
            self.take_kept(|kept| kept.number == number && has(&kept.ring, shape))?;
        self.endpoints[index as usize] = Some(endpoint);
        Some((index, Arc::into_inner(ring)?))
    }

    /// Returns a message ring that was kept, and its number.
    pub(super) fn offer(&mut self, shape: Shape) -> Option<(u32, MessageRing)> {
        let kept = self.take_kept(|kept| has(&kept.ring, shape))?;
        Some((kept.number, Arc::into_inner(kept.ring)?))
    }

    /// Returns the endpoint that had the index before.
    pub(super) fn join(&mut self, index: u32, endpoint: u32) -> Option<u32> {
        let len = self.endpoints.len().max(index as usize + 1);
        self.endpoints.resize(len, None);
        self.endpoints[index as usize].replace(endpoint)
    }

    /// Returns the message ring that is not kept any longer.
    pub(super) fn leave(
        &mut self,
        index: u32,
        endpoint: u32,
        kept: Option<(u32, Arc<MessageRing>)>,
        side: Side,
    ) -> Option<Arc<MessageRing>> {
        let had = self.endpoints[index as usize].take_if(|its| *its == endpoint);
        if had.is_none() {
            return kept.map(|(_, ring)| ring);
        }
        let is_kept = kept.is_some();
        self.kept.extend(kept.map(|(number, ring)| Kept {
            index,
            number,
            ring,
        }));
        let oldest = match self.kept.len() > KEPT {
            true => self.kept.pop_front(),
            false => None,
        };
        if side == Side::Host {
            self.free.extend((!is_kept).then_some(index));
            self.free.extend(oldest.as_ref().map(|kept| kept.index));
        }
        oldest.map(|kept| kept.ring)
    }

    pub(super) fn endpoints(&self) -> Vec<Option<u32>> {
        self.endpoints.clone()
    }

    pub(super) fn endpoint(&self, index: u32) -> Option<u32> {
        self.endpoints.get(index as usize).copied().flatten()
    }

    /// Takes the first message ring of which `is` is true.
    fn take_kept(&mut self, is: impl Fn(&Kept) -> bool) -> Option<Kept> {
        let at = self.kept.iter().position(is)?;
        self.kept.remove(at)
    }
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::super::messages::Memory;
    use super::*;

    const SHAPE: Shape = Shape { host: 4, guest: 4 };

    /// Returns one end of a message ring.
    #[expect(unsafe_code, reason = "makes memory for it")]
    fn ring(side: Side) -> Arc<MessageRing> {
        let len = SHAPE.len().unwrap();
        let (_, mapping) = crate::provider::soft::fabric::Arena::create(len).unwrap();
        // SAFETY: nothing else reaches the memory.
        let memory = Arc::new(unsafe { Memory::new(mapping, len) });
        Arc::new(MessageRing::new(memory, SHAPE, side))
    }

    /// A guest has offered a message ring. Before the host gets the request, another connection has
    /// come and gone at the same index, so that the host has kept another one there.
    #[test]
    fn a_ring_is_known_by_its_number_and_not_by_its_index() {
        let (mut host, mut guest) = (Members::default(), Members::default());
        let mut connect = |host: &mut Members, endpoint| {
            let (index, number, _) = host.admit(endpoint).unwrap();
            guest.join(index, endpoint);
            (index, number)
        };
        let (index, first) = connect(&mut host, 1);
        host.leave(index, 1, Some((first, ring(Side::Host))), Side::Host);
        guest.leave(index, 1, Some((first, ring(Side::Guest))), Side::Guest);
        let (offered, _ring) = guest.offer(SHAPE).unwrap();
        assert_eq!(offered, first);
        // The host keeps eight others, and drops the first one.
        let others: Vec<_> = (0..KEPT as u32)
            .map(|at| (at, host.admit(at).unwrap()))
            .collect();
        for (at, (index, number, _)) in others {
            host.leave(index, at, Some((number, ring(Side::Host))), Side::Host);
        }
        let (again, second, _) = host.admit(2).unwrap();
        assert_eq!(again, index);
        host.leave(again, 2, Some((second, ring(Side::Host))), Side::Host);
        assert!(host.admit_again(3, offered, SHAPE).is_none());
        assert_eq!(host.admit_again(3, second, SHAPE).unwrap().0, index);
    }

    #[test]
    fn the_last_number_is_followed_by_none() {
        let mut host = Members {
            latest: u32::MAX - 1,
            ..Members::default()
        };
        assert_eq!(host.admit(1).unwrap().1, u32::MAX);
        assert_eq!(host.admit(2).unwrap().1, 0);
        assert_eq!(host.admit(3).unwrap().1, 0);
    }
}
