//! Checks of duty 6 for an endpoint and its queue.
#![expect(unsafe_code, reason = "retires endpoints and queues")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::end::{End, Plan, Table};
use super::pair::Pair;
use super::{Peers, watched};
use crate::rig::Arena;
use tokio_doca::device::contract::{EndpointState, Queue, Segment, Verb};

const CELL: usize = 1024;

/// The argument of `retire`. When dropped, it counts that and overwrites memory that nothing may
/// touch.
struct Kept {
    drops: Arc<AtomicU32>,
    arena: Arc<Arena>,
    /// The offsets of memory that was in flight, and the bytes that are written there on the drop,
    /// when the provider declares that nothing is in flight.
    canaries: Vec<(usize, Vec<u8>)>,
    #[expect(dead_code, reason = "they are kept")]
    lists: Vec<Box<[Segment]>>,
    #[expect(dead_code, reason = "it is kept")]
    queue: Arc<dyn Queue>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        for (at, canary) in &self.canaries {
            self.arena.write(*at, canary);
        }
        self.drops.fetch_add(1, Ordering::SeqCst);
    }
}

impl End {
    /// Makes the argument of `retire` for the posted receives. Their cells are expected to hold the
    /// canaries, which are written when it is dropped.
    fn keep(&mut self, drops: &Arc<AtomicU32>) -> Arc<Kept> {
        let posted = (0..self.receives.len()).filter(|&index| self.receives[index].in_flight);
        let posted: Vec<u32> = posted.map(|index| index as u32).collect();
        let canary = |index: u32| {
            let len = self.receives[index as usize].bytes.len();
            (self.at(Table::Receives, index), vec![0x11; len])
        };
        let canaries: Vec<_> = posted.iter().map(|&index| canary(index)).collect();
        for (index, (_, canary)) in posted.iter().zip(&canaries) {
            self.receives[*index as usize].bytes.clone_from(canary);
        }
        Arc::new(Kept {
            drops: Arc::clone(drops),
            arena: Arc::clone(&self.arena),
            canaries,
            lists: self.take_lists(),
            queue: Arc::clone(&self.queue),
        })
    }
}

impl Pair {
    /// Retires an endpoint, with or without posted receives, and waits until the argument of
    /// `retire` is dropped. The answers of its Jobs are ignored.
    pub(super) fn retire_endpoint(&mut self, side: usize) {
        let drops = Arc::new(AtomicU32::new(0));
        let end = &mut self.ends[side];
        let keep = end.keep(&drops);
        let endpoint = end.endpoint.take().expect("it is retired once");
        // SAFETY: `keep` has the memory of all receives, and nothing posts any more, because the
        // handle is taken out.
        unsafe { endpoint.retire(keep) };
        drop(endpoint);
        self.wait(
            "duty 6: `retire` of an endpoint drops what it keeps",
            |pair| drops.load(Ordering::SeqCst) > 0 && pair.ends[side].in_flight(Table::Jobs) == 0,
        );
        assert_eq!(
            drops.load(Ordering::SeqCst),
            1,
            "duty 6: what `retire` keeps is dropped once"
        );
        for receive in &mut self.ends[side].receives {
            receive.in_flight = false;
        }
    }

    /// Retires both ends, with only receives in flight, and checks what happened meanwhile.
    pub(super) fn finish(mut self) {
        for side in [0, 1] {
            if self.ends[side].endpoint.is_some() {
                self.retire_endpoint(side);
            }
        }
        let late: usize = self.reap().iter().map(Vec::len).sum();
        assert_eq!(
            late, 0,
            "duty 6: no completions of receives come after `retire`"
        );
        let drops = Arc::new(AtomicU32::new(0));
        for end in &mut self.ends {
            let keep = end.keep(&drops);
            // SAFETY: nothing is in flight, `keep` holds the arena, and nothing submits or reaps
            // any more.
            unsafe { end.queue.retire(keep, 0) };
        }
        let deadline = self.peers.deadline;
        crate::rig::wait_for(
            deadline,
            "duty 6: `retire` of a queue drops what it keeps",
            || drops.load(Ordering::SeqCst) == 2,
        );
        self.check_all("duties 2, 4 and 6: memory was touched while no job had it");
        for end in &mut self.ends {
            end.over = true;
        }
    }
}

/// Checks duty 6 and endpoint duty 2: retiring an endpoint returns its receives' memory, and its
/// Jobs complete. Its peer enters the state Error, and the peer's receives end.
///
/// # Panics
///
/// Panics if the argument of `retire` is never dropped, if memory is touched after that, or if the
/// peer does not detect the end.
pub fn retired_receives_are_left_alone(peers: impl Into<Peers>) {
    watched("retired_receives_are_left_alone", peers, |peers| {
        // This pair is never connected and never used.
        Pair::apart(peers, Plan::new(peers, CELL)).finish();
        let mut apart = Pair::apart(peers, Plan::new(peers, CELL));
        apart.post(0, 0, 100);
        apart.finish();
        for round in 0..10 {
            let mut pair = Pair::new(peers, Plan::new(peers, CELL));
            pair.works(0..pair.plan.jobs);
            for index in 0..pair.plan.receives {
                for side in [0, 1] {
                    if !pair.ends[side].receives[index as usize].in_flight {
                        pair.post(side, index, CELL / 2);
                    }
                }
            }
            // In every other round, messages are on their way to the endpoint that is retired.
            let len = pair.longest();
            for index in 0..pair.plan.jobs {
                pair.prepare(1, index, Verb::Send(None), len);
            }
            if round % 2 == 1 {
                pair.submit(1, &(0..pair.plan.jobs).collect::<Vec<_>>());
            }
            pair.retire_endpoint(0);
            pair.wait(
                "endpoint duty 2: the peer of an endpoint that was retired comes to the state Error",
                |pair| matches!(pair.ends[1].state(), EndpointState::Error(_)) && pair.is_idle(1),
            );
            let or_else =
                "duty 6: a receive's memory was touched after `retire` dropped what it kept";
            for index in 0..pair.plan.receives {
                pair.ends[0].check(Table::Receives, index, or_else);
            }
            pair.accept_all();
            pair.finish();
        }
    });
}
