//! The message rings of a doorbell page: the endpoint of each ring, and the rings that are kept for
//! later connections (ADR 0048).

use std::collections::VecDeque;
use std::sync::Arc;

use super::super::messages::{MessageRing, Shape, Side};

/// The maximum number of message rings of a doorbell page.
pub(in super::super) const RINGS: u32 = 64 * 64;

/// The maximum number of message rings that a page keeps.
const KEPT: usize = 8;

/// The endpoints of this side's queue that use the message rings of a page.
#[derive(Default)]
pub(super) struct Members {
    /// For each index, the endpoint and the number of its message ring; `None` if no endpoint uses
    /// it.
    endpoints: Vec<Option<(u32, u32)>>,
    /// The free indices, and the number of the latest message ring (`latest`): on the host only.
    free: Vec<u32>,
    latest: u32,
    /// Message rings whose connections were closed properly by at least one side; the oldest comes
    /// first.
    kept: VecDeque<Kept>,
}

/// A message ring that is kept. Both sides know it by its number, which is unique in the page. Its
/// index may have been used by another ring since.
struct Kept {
    index: u32,
    number: u32,
    ring: Arc<MessageRing>,
}

/// Returns true if a message ring has this shape, and the queue no longer polls it for its former
/// endpoint.
fn has(ring: &Arc<MessageRing>, shape: Shape) -> bool {
    ring.shape() == shape && Arc::strong_count(ring) == 1
}

impl Members {
    /// Assigns an index to this endpoint. Returns the index, the number of the new message ring,
    /// and a message ring that was kept and had this index. Returns `None` if the page is full.
    /// After 2^32 - 1 message rings the number is always 0, and rings are not kept.
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
        let number = self.latest.checked_add(1).unwrap_or(0);
        self.latest = self.latest.max(number);
        self.endpoints[index as usize] = Some((endpoint, number));
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
        self.endpoints[index as usize] = Some((endpoint, number));
        Some((index, Arc::into_inner(ring)?))
    }

    /// Takes a message ring of this shape that was kept, and returns its number too.
    pub(super) fn offer(&mut self, shape: Shape) -> Option<(u32, MessageRing)> {
        let kept = self.take_kept(|kept| has(&kept.ring, shape))?;
        Some((kept.number, Arc::into_inner(kept.ring)?))
    }

    /// Stores the endpoint of this index, unless the host has since given the index to a newer
    /// message ring. Returns the endpoint that lost the index or did not get it.
    pub(super) fn join(&mut self, (index, number): (u32, u32), endpoint: u32) -> Option<u32> {
        let len = self.endpoints.len().max(index as usize + 1);
        self.endpoints.resize(len, None);
        let its = &mut self.endpoints[index as usize];
        // The numbers have run out if the number is 0, so it is not compared.
        if its.is_some_and(|(_, newer)| newer > number && number != 0) {
            return Some(endpoint);
        }
        its.replace((endpoint, number)).map(|(before, _)| before)
    }

    /// Removes the endpoint of the message ring with this index and number. Returns a message ring
    /// that is not kept any longer.
    pub(super) fn leave(
        &mut self,
        (index, number): (u32, u32),
        endpoint: u32,
        kept: Option<Arc<MessageRing>>,
        side: Side,
    ) -> Option<Arc<MessageRing>> {
        let had = self.endpoints[index as usize].take_if(|its| *its == (endpoint, number));
        if had.is_none() {
            return kept;
        }
        // A ring without a number is not kept, since the peer could not name it.
        let (kept, dropped) = if number == 0 {
            (None, kept)
        } else {
            (kept, None)
        };
        let is_kept = kept.is_some();
        self.kept.extend(kept.map(|ring| Kept {
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
        oldest.map(|kept| kept.ring).or(dropped)
    }

    pub(super) fn endpoints(&self) -> Vec<Option<u32>> {
        let number = |its: &Option<(u32, u32)>| its.map(|(endpoint, _)| endpoint);
        self.endpoints.iter().map(number).collect()
    }

    pub(super) fn endpoint(&self, index: u32) -> Option<u32> {
        let (endpoint, _) = (*self.endpoints.get(index as usize)?)?;
        Some(endpoint)
    }

    /// Takes the most recent kept message ring for which `is` returns true: the peer keeps that
    /// ring longest.
    fn take_kept(&mut self, is: impl Fn(&Kept) -> bool) -> Option<Kept> {
        let at = self.kept.iter().rposition(is)?;
        self.kept.remove(at)
    }
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::super::tests::messages;
    use super::*;

    const SHAPE: Shape = Shape { host: 4, guest: 4 };

    /// Returns one end of a message ring.
    fn ring(side: Side) -> Arc<MessageRing> {
        let (host, guest, _) = messages(SHAPE);
        Arc::new(match side {
            Side::Host => host,
            Side::Guest => guest,
        })
    }

    /// A guest has offered a message ring. Before the host gets the request, another connection
    /// comes and goes at the same index, so that the host has kept another ring for that index.
    #[test]
    fn a_ring_is_known_by_its_number_and_not_by_its_index() {
        let (mut host, mut guest) = (Members::default(), Members::default());
        let mut connect = |host: &mut Members, endpoint| {
            let (index, number, _) = host.admit(endpoint).unwrap();
            guest.join((index, number), endpoint);
            (index, number)
        };
        let (index, first) = connect(&mut host, 1);
        host.leave((index, first), 1, Some(ring(Side::Host)), Side::Host);
        guest.leave((index, first), 1, Some(ring(Side::Guest)), Side::Guest);
        let (offered, _ring) = guest.offer(SHAPE).unwrap();
        assert_eq!(offered, first);
        // The host keeps eight others, and drops the first one.
        let others: Vec<_> = (0..KEPT as u32)
            .map(|at| (at, host.admit(at).unwrap()))
            .collect();
        for (at, (index, number, _)) in others {
            host.leave((index, number), at, Some(ring(Side::Host)), Side::Host);
        }
        let (again, second, _) = host.admit(2).unwrap();
        assert_eq!(again, index);
        host.leave((again, second), 2, Some(ring(Side::Host)), Side::Host);
        assert!(host.admit_again(3, offered, SHAPE).is_none());
        assert_eq!(host.admit_again(3, second, SHAPE).unwrap().0, index);
    }

    /// A guest that learns of its first connection only after the next one at the same index does
    /// not take the index.
    #[test]
    fn who_joins_late_takes_no_index_from_a_newer_endpoint() {
        let (mut host, mut guest) = (Members::default(), Members::default());
        let (index, first, _) = host.admit(1).unwrap();
        host.leave((index, first), 1, None, Side::Host);
        let (again, second, _) = host.admit(1).unwrap();
        assert_eq!(again, index);
        assert_eq!(guest.join((index, second), 7), None);
        assert_eq!(guest.join((index, first), 8), Some(8));
        // The end of another connection of the same endpoint does not remove the index either.
        guest.leave((index, first), 8, None, Side::Guest);
        guest.leave((index, first), 7, None, Side::Guest);
        assert_eq!(guest.endpoint(index), Some(7));
        guest.leave((index, second), 7, None, Side::Guest);
        assert_eq!(guest.endpoint(index), None);
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
