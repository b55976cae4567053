//! Two connected ends, with Jobs and receives from both sides at once.

use std::collections::VecDeque;
use std::mem;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::end::{End, Ended, Plan, Table};
use super::memory::{ALL, Memory, REMOTE};
use super::model::{Effect, Message};
use super::{Peers, watched};
use crate::rig::{AGAIN, Dice, check_refusal, pieces, wait_for};
use tokio_doca::device::contract::{Completion, EndpointState, Verb};
use tokio_doca::error::JobError;

/// The state of one side besides its [`End`].
pub(super) struct Side {
    /// The memory that the peer accesses, with a cell for each Job of the peer.
    pub(super) memory: Memory,
    /// The expected bytes of each cell of `memory`.
    pub(super) bytes: Vec<Vec<u8>>,
    pub(super) effects: Vec<Option<Effect>>,
    pub(super) incoming: VecDeque<Message>,
}

pub(super) struct Pair {
    pub(super) peers: Peers,
    pub(super) ends: [End; 2],
    pub(super) sides: Vec<Side>,
    pub(super) dice: Dice,
    pub(super) plan: Plan,
}

impl Plan {
    /// Makes a plan with cells of `cell` bytes, and as many Jobs and receives as the devices
    /// accept.
    pub(super) fn new(peers: &Peers, cell: usize) -> Plan {
        Plan {
            jobs: peers.depth(16),
            receives: peers.least(|caps| caps.max_recv_queue_size.into()).min(8) as u32,
            cell,
            permissions: REMOTE,
            // A moderate value, because adapters support minutes at most.
            rnr_timeout: 2 * peers.deadline,
            pooled_len: None,
        }
    }
}

/// Checks endpoint duty 5: an endpoint that listens contacts no peer and does not wait. Its peer
/// connects it by dialing. A device that cannot see whether the peer has come reports that it is
/// connected at once.
///
/// # Panics
///
/// Panics if either endpoint is not connected after the dial, if
/// [`changed`](tokio_doca::device::contract::EndpointConfig::changed) is not called, or if
/// operations do not work.
pub fn a_listener_is_connected_by_its_peer(peers: impl Into<Peers>) {
    watched("a_listener_is_connected_by_its_peer", peers, |peers| {
        for dials in [0, 1] {
            let mut pair = Pair::apart(peers, Plan::new(peers, 1024));
            pair.dial(dials);
            pair.accept_all();
            pair.works(0..pair.plan.jobs);
            pair.finish();
        }
    });
}

impl Pair {
    pub(super) fn new(peers: &Peers, plan: Plan) -> Pair {
        let mut pair = Pair::apart(peers, plan);
        pair.connect();
        pair
    }

    /// Makes a pair that is not connected.
    pub(super) fn apart(peers: &Peers, plan: Plan) -> Pair {
        let len = plan.jobs as usize * plan.cell;
        let side = |side| Side {
            memory: Memory::new(peers, side, len, ALL),
            bytes: vec![vec![0; plan.cell]; plan.jobs as usize],
            effects: (0..plan.jobs).map(|_| None).collect(),
            incoming: VecDeque::new(),
        };
        Pair {
            ends: [End::new(peers, 0, &plan), End::new(peers, 1, &plan)],
            sides: vec![side(0), side(1)],
            peers: peers.clone(),
            dice: Dice::new(plan.cell as u64),
            plan,
        }
    }

    pub(super) fn deadline(&self) -> Duration {
        self.peers.deadline
    }

    /// Returns the exports of both ends, which are in the state Init.
    pub(super) fn exports(&self) -> [Vec<u8>; 2] {
        [0, 1].map(|side| {
            let endpoint = self.ends[side].endpoint();
            let blob = endpoint
                .export()
                .expect("an endpoint in the state Init exports");
            assert!(blob.len() <= 1024, "a blob of {} bytes", blob.len());
            assert_eq!(
                endpoint.export().ok().as_ref(),
                Some(&blob),
                "a blob stays the same until the next reset"
            );
            blob
        })
    }

    /// Connects both ends, which are in the state Init.
    pub(super) fn connect(&mut self) {
        let blobs = self.exports();
        for side in [0, 1] {
            let end = &self.ends[side];
            assert_eq!(end.state(), EndpointState::Init);
            let deadline = Instant::now() + self.deadline();
            let connected = end.endpoint().connect(&blobs[1 - side], deadline);
            connected.expect("two endpoints of the device connect");
            assert_eq!(end.state(), EndpointState::Connected);
            self.wait_until_told(side);
        }
    }

    /// Makes one side dial, and the other listen.
    fn dial(&mut self, dials: usize) {
        let listens = 1 - dials;
        let blobs = self.exports();
        let deadline = Instant::now() + self.deadline();
        let listening = self.ends[listens].endpoint().listen(&blobs[dials]);
        listening.expect("an endpoint of the device listens for another one");
        let dialed = self.ends[dials].endpoint().dial(&blobs[listens], deadline);
        dialed.expect("an endpoint of the device dials one that listens");
        assert_eq!(self.ends[dials].state(), EndpointState::Connected);
        self.wait(
            "endpoint duty 5: one that listens is connected once its peer has come",
            |pair| pair.ends[listens].state() == EndpointState::Connected,
        );
        for side in [0, 1] {
            self.wait_until_told(side);
        }
    }

    /// Waits until `changed` was called for the current state.
    pub(super) fn wait_until_told(&mut self, side: usize) {
        self.wait(
            "`changed` is called when the state of an endpoint changes",
            |pair| pair.ends[side].was_told(),
        );
    }

    /// Waits until `came` returns true, while polling both queues. Nothing that should succeed may
    /// be in flight, because completions are not checked.
    pub(super) fn wait(&mut self, what: &str, mut came: impl FnMut(&mut Pair) -> bool) {
        wait_for(self.peers.deadline, what, || {
            self.reap();
            came(self)
        });
    }

    /// Divides `len` bytes of a cell into at most 4 pieces, and at most as many as the side's
    /// device accepts.
    pub(super) fn pieces(&mut self, side: usize, table: Table, len: usize) -> Vec<Range<usize>> {
        let caps = self.peers.caps(side);
        let longest = match table {
            Table::Jobs => caps.max_send_list_len.min(caps.max_read_list_len),
            Table::Receives => caps.max_recv_list_len,
        };
        if len == 0 {
            return Vec::new();
        }
        let count = 1 + self.dice.below((longest.min(4) as usize).min(len));
        pieces(0, len, count, &mut self.dice)
    }

    /// Submits prepared Jobs, in batches as large as the device takes.
    pub(super) fn submit(&mut self, side: usize, indices: &[u32]) {
        let mut jobs: Vec<_> = indices
            .iter()
            .map(|&index| (index, self.job(side, index)))
            .collect();
        let deadline = self.deadline();
        wait_for(deadline, AGAIN, || {
            let submitted = self.ends[side].submit(&jobs);
            for (index, _) in jobs.drain(..submitted.accepted) {
                self.announce(side, index);
            }
            let Some(why) = submitted.refused else {
                return true;
            };
            check_refusal(why);
            self.step();
            false
        });
    }

    /// Tries a prepared Job inline.
    pub(super) fn try_inline(&mut self, side: usize, index: u32) -> bool {
        let job = self.job(side, index);
        let answer = self.ends[side].try_inline(&job);
        match answer {
            Some(answer) => self.finished_inline(side, index, answer),
            None => self.was_not_begun(side, index),
        }
        answer.is_some()
    }

    /// Tries prepared Jobs inline, in one batch. Returns how many were finished.
    pub(super) fn try_inline_all(&mut self, side: usize, indices: &[u32]) -> usize {
        let jobs: Vec<_> = indices.iter().map(|&at| self.job(side, at)).collect();
        let answers = self.ends[side].try_inline_all(&jobs);
        for (&index, &answer) in indices.iter().zip(&answers) {
            self.finished_inline(side, index, answer);
        }
        for &index in &indices[answers.len()..] {
            self.was_not_begun(side, index);
        }
        answers.len()
    }

    fn finished_inline(&mut self, side: usize, index: u32, answer: Result<u64, JobError>) {
        self.announce(side, index);
        let token = self.ends[side].jobs[index as usize].token;
        self.job_is_over(side, index, &Completion::new(token, answer), "duty 4");
    }

    fn was_not_begun(&mut self, side: usize, index: u32) {
        let or_else = "duty 4: what was not answered inline was not begun";
        self.ends[side].check(Table::Jobs, index, or_else);
        self.check_remote(side, index, or_else);
    }

    /// Posts a receive with a capacity of at least `least` bytes.
    pub(super) fn post(&mut self, side: usize, index: u32, least: usize) {
        let room = least + self.dice.below(20);
        let pieces = self.pieces(side, Table::Receives, room);
        let posted = self.ends[side].post(index, pieces, room);
        posted.expect("a receive is taken in the states Init and Connected");
    }

    /// Reaps both queues, and checks that everything that has ended did so correctly.
    pub(super) fn step(&mut self) {
        for side in [0, 1] {
            let at_most = 1 + self.dice.below(20);
            for ended in self.ends[side].reap(at_most) {
                self.settle(side, &ended);
            }
        }
    }

    /// Reaps both queues, and leaves the checks to the caller.
    pub(super) fn reap(&mut self) -> [Vec<Ended>; 2] {
        [0, 1].map(|side| self.ends[side].reap(8))
    }

    /// Runs until all Jobs of both sides have ended, and posts receives for their messages.
    pub(super) fn drain(&mut self) {
        self.drain_but("duty 1: each accepted Job completes", |pair| {
            let busy = |end: &End| end.in_flight(Table::Jobs) > 0;
            pair.ends.iter().any(busy) || pair.sides.iter().any(|side| !side.incoming.is_empty())
        });
    }

    fn drain_but(&mut self, what: &str, busy: impl Fn(&Pair) -> bool) {
        wait_for(self.deadline(), what, || {
            for side in [0, 1] {
                self.post_free(side);
            }
            self.step();
            !busy(self)
        });
    }

    /// Posts free receives for messages that are on their way.
    fn post_free(&mut self, side: usize) {
        let waiting = self.sides[side].incoming.len();
        let posted = self.ends[side].in_flight(Table::Receives);
        let free = |index: &u32| !self.ends[side].receives[*index as usize].in_flight;
        let free: Vec<u32> = (0..self.plan.receives).filter(free).collect();
        let missing = &free[..free.len().min(waiting.saturating_sub(posted))];
        // Posts them in one call or in several.
        for indices in missing.chunks(1 + self.dice.below(4)) {
            let place = |&index: &u32| {
                let room = self.plan.cell / 2 + self.dice.below(20);
                (index, self.pieces(side, Table::Receives, room), room)
            };
            let all = indices.iter().map(place).collect();
            let posted = self.ends[side].post_all(all);
            assert_eq!(
                posted.refused, None,
                "a receive is taken in the states Init and Connected"
            );
        }
    }

    /// Returns the length of the longest message that certainly fits into a cell and into a receive
    /// of [`Pair::post`].
    pub(super) fn longest(&self) -> usize {
        self.peers.within(self.plan.cell / 2)
    }

    /// Runs one operation for each index from both sides to its end, to check that the connection
    /// works. The kind of operation depends on the index.
    pub(super) fn works(&mut self, indices: Range<u32>) {
        for side in [0, 1] {
            for index in indices.clone() {
                let verb = self.verb(index as usize);
                self.prepare(side, index, verb, self.longest());
            }
            self.submit(side, &indices.clone().collect::<Vec<_>>());
        }
        self.drain();
    }

    /// Returns a send with this immediate, or without one if the devices do not have immediates.
    pub(super) fn message(&self, immediate: u32) -> Verb {
        let send_imm = self.peers.both(|caps| caps.send_imm);
        Verb::Send(send_imm.then_some(immediate))
    }

    /// Returns a kind of operation that the devices have, by number.
    pub(super) fn verb(&mut self, number: usize) -> Verb {
        let immediate = self.dice.below(1 << 32) as u32;
        let mut verbs = vec![
            Verb::Send(None),
            Verb::Write(None),
            Verb::Read,
            self.message(immediate),
        ];
        if self.peers.both(|caps| caps.write_imm) {
            verbs.push(Verb::Write(Some(self.dice.below(1 << 32) as u32)));
        }
        if self.peers.both(|caps| caps.atomics) {
            let add = self.dice.below(1 << 40) as u64;
            let (compare, swap) = (self.dice.below(1 << 30) as u64, !add);
            verbs.push(Verb::FetchAdd(add));
            verbs.push(Verb::CompareSwap { compare, swap });
        }
        verbs[number % verbs.len()]
    }

    /// Forgets messages that no receive will get.
    pub(super) fn forget_messages(&mut self) {
        self.sides.iter_mut().for_each(|side| side.incoming.clear());
    }

    /// Checks that no unused cell was touched, on either side.
    pub(super) fn check_all(&mut self, or_else: &str) {
        for side in [0, 1] {
            self.ends[side].check_all(or_else);
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        if !self.ends.iter().all(|end| end.over) {
            // A check has failed: the memory is leaked, like that of the ends.
            mem::forget(mem::take(&mut self.sides));
        }
    }
}
