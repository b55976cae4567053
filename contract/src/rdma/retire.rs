//! Duty 6, of an endpoint and of its queue.
#![expect(unsafe_code, reason = "retires endpoints and queues")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::end::{End, Plan, Table};
use super::pair::Pair;
use super::{Peers, watched};
use crate::rig::Arena;
use tokio_doca::device::contract::{EndpointState, Queue, Segment, Verb};

const CELL: usize = 1024;

/// What `retire` is given: it tells when it is dropped, and spoils what nobody may touch any more.
struct Kept {
    drops: Arc<AtomicU32>,
    arena: Arc<Arena>,
    /// Where memory was in flight, and what is written there when the provider says that it is not
    /// any more.
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
    /// What is kept for the receives that are posted; their cells hold canaries once it is dropped.
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
    /// Retires an endpoint, with receives posted or without, and waits until what it keeps is
    /// dropped. What its Jobs answered is dropped.
    pub(super) fn retire_endpoint(&mut self, side: usize) {
        let drops = Arc::new(AtomicU32::new(0));
        let end = &mut self.ends[side];
        let keep = end.keep(&drops);
        let endpoint = end.endpoint.take().expect("it is retired once");
        // SAFETY: `keep` has the memory of all receives, and nobody posts any more: the handle is
        // gone.
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

    /// Retires both ends, with nothing in flight but receives, and looks what happened meanwhile.
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
            // SAFETY: nothing is in flight, `keep` holds the arena, and nobody submits or reaps any
            // more.
            unsafe { end.queue.retire(keep, 0) };
        }
        let deadline = self.peers.deadline;
        crate::rig::wait_for(
            deadline,
            "duty 6: `retire` of a queue drops what it keeps",
            || drops.load(Ordering::SeqCst) == 2,
        );
        self.check_all("duties 2, 4 and 6: memory was touched while nobody had it");
        for end in &mut self.ends {
            end.over = true;
        }
    }
}

/// Duty 6 and endpoint duty 2: who retires an endpoint has its receives' memory back, and the Jobs'
/// completions; its peer comes to the state Error, and its receives end.
///
/// # Panics
///
/// If what is kept is dropped never, or memory is touched after that, or if the peer does not hear
/// of it.
pub fn retired_receives_are_left_alone(peers: impl Into<Peers>) {
    watched("retired_receives_are_left_alone", peers, |peers| {
        // Never connected, and never used.
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
            // In every other round with messages under way to what is retired.
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
