//! Checks of endpoint duty 4: messages are pulled one by one from endpoints without posted
//! receives.

use std::ops::Range;

use super::end::{Plan, Table};
use super::pair::Pair;
use super::{Peers, watched};
use crate::rig::wait_for;
use tokio_doca::device::contract::{Completion, EndpointState};
use tokio_doca::error::{ErrorKind, Reason};

const CELL: usize = 1024;
/// Larger than a packet.
const LARGE: usize = 64 << 10;
const STEPS: usize = 300;

/// Checks endpoint duty 4 for an endpoint with a `pooled_len`:
///
/// - Each message is taken whole, once, and in order.
/// - The peer has exactly the credits that the endpoint has granted. A credit permits it to send
///   one message.
/// - After [`has_message`](tokio_doca::device::contract::Endpoint::has_message) has returned false,
///   the endpoint calls `changed` once a message comes.
/// - The messages of a peer that has left can still be taken. A reset drops them.
///
/// A device whose `max_pooled_len` is 0 has no such endpoints, and passes.
///
/// # Panics
///
/// Panics if a message is lost, changed, taken twice or out of order, if a notification is missing,
/// or if a message uses a credit that was not granted.
pub fn pooled_messages_are_taken_in_order(peers: impl Into<Peers>) {
    watched("pooled_messages_are_taken_in_order", peers, |peers| {
        if peers.least(|caps| caps.max_pooled_len as u64) == 0 {
            return;
        }
        for cell in [CELL, LARGE] {
            at_random(peers, cell);
        }
        credits_are_kept(peers);
        who_asked_is_told(peers);
        who_kept_up_is_told(peers);
        what_is_too_long_stays(peers);
        the_last_messages_are_taken(peers);
        a_reset_drops_messages(peers);
    });
}

fn pair(peers: &Peers, cell: usize) -> Pair {
    let room = peers.least(|caps| caps.max_pooled_len as u64).min(cell / 2);
    let plan = Plan::new(peers, cell);
    // Fewer credits than Jobs, if there are several Jobs, so that the last one waits.
    let credits = 1 << (plan.jobs / 2).max(1).ilog2();
    let plan = Plan {
        pooled_len: Some(room),
        receives: plan.receives.min(credits),
        ..plan
    };
    Pair::new(peers, plan)
}

impl Pair {
    /// Sends messages by the Jobs with these indices.
    fn send(&mut self, side: usize, indices: Range<u32>, len: usize) {
        for index in indices.clone() {
            let verb = self.message(index);
            self.prepare(side, index, verb, len);
        }
        self.submit(side, &indices.collect::<Vec<_>>());
    }

    /// Takes a message if there is one. Returns true if there was.
    fn take(&mut self, side: usize) -> bool {
        let room = self.plan.cell / 2;
        let pieces = self.pieces(side, Table::Receives, room);
        let taken = self.ends[side].take(0, pieces, room);
        let taken = taken.expect("endpoint duty 4: a message that fits is taken");
        let Some((arrival, len)) = taken else {
            return false;
        };
        let token = self.ends[side].receives[0].token;
        self.receive_is_over(side, 0, &Completion::received(token, arrival, len));
        true
    }

    /// Reaps both queues and checks the results, until `holds` returns true.
    fn step_until(&mut self, what: &str, holds: impl Fn(&Pair) -> bool) {
        let deadline = self.deadline();
        wait_for(deadline, what, || {
            self.step();
            holds(self)
        });
    }

    /// Runs until all Jobs have ended and all messages were taken, and checks them.
    fn settle_all(&mut self) {
        let deadline = self.deadline();
        let what = "endpoint duty 4: each message is there to be taken";
        wait_for(deadline, what, || {
            self.step();
            for side in [0, 1] {
                while self.take(side) {}
            }
            let idle = |side: usize| {
                self.ends[side].in_flight(Table::Jobs) == 0 && self.sides[side].incoming.is_empty()
            };
            idle(0) && idle(1)
        });
    }
}

/// Runs random operations of all kinds from both sides at once, inline and submitted.
fn at_random(peers: &Peers, cell: usize) {
    let mut pair = pair(peers, cell);
    for _ in 0..STEPS * CELL / cell + 20 {
        let side = pair.dice.below(2);
        let index = pair.dice.below(pair.plan.jobs as usize) as u32;
        if !pair.ends[side].jobs[index as usize].in_flight {
            let number = pair.dice.below(7);
            let verb = pair.verb(number);
            let most = [1, 65, pair.longest() + 1][pair.dice.below(3)];
            let len = pair.dice.below(most);
            pair.prepare(side, index, verb, len);
            if pair.dice.below(2) == 0 || !pair.try_inline(side, index) {
                pair.submit(side, &[index]);
            }
        }
        let other = pair.dice.below(2);
        if pair.dice.below(3) > 0 {
            pair.take(other);
        }
        pair.step();
    }
    pair.settle_all();
    pair.finish();
}

/// One message more than there are credits must wait until a message is taken.
fn credits_are_kept(peers: &Peers) {
    let mut pair = pair(peers, CELL);
    let credits = pair.plan.receives;
    if credits < pair.plan.jobs {
        for round in 0..3 {
            pair.send(0, 0..credits + 1, 1 + 100 * round);
            pair.step_until("endpoint duty 4: a message with a credit is sent", |pair| {
                pair.ends[0].in_flight(Table::Jobs) == 1
            });
            for _ in 0..20 {
                pair.step();
            }
            assert_eq!(
                pair.ends[0].in_flight(Table::Jobs),
                1,
                "endpoint duty 4: a message without a credit waits"
            );
            assert!(
                pair.take(1),
                "endpoint duty 4: a message that was sent is there"
            );
            pair.step_until("endpoint duty 4: a credit is lent anew", |pair| {
                pair.ends[0].in_flight(Table::Jobs) == 0
            });
            pair.settle_all();
        }
    }
    pair.finish();
}

fn who_asked_is_told(peers: &Peers) {
    let mut pair = pair(peers, CELL);
    for round in 0..20 {
        assert!(
            !pair.ends[1].has_message(),
            "endpoint duty 4: nothing was sent"
        );
        let before = pair.ends[1].tells();
        pair.send(0, 0..1, 100 * (round % 4));
        pair.step_until(
            "endpoint duty 4: `changed` is called when a message has come that was asked for",
            |pair| pair.ends[1].tells() > before,
        );
        assert!(
            pair.ends[1].has_message(),
            "endpoint duty 4: it was told of a message"
        );
        pair.settle_all();
    }
    pair.finish();
}

/// Sends more messages than there are credits, of which the receiver has waited only for the first.
fn who_kept_up_is_told(peers: &Peers) {
    let mut pair = pair(peers, CELL);
    for round in 0..2 * pair.plan.receives as usize + 1 {
        let before = pair.ends[1].tells();
        pair.send(0, 0..1, 1 + round);
        if round == 0 {
            pair.step_until("endpoint duty 4: it is told of the first message", |pair| {
                pair.ends[1].tells() > before
            });
        }
        wait_for(
            pair.deadline(),
            "endpoint duty 4: a message has come",
            || {
                for ended in pair.ends[0].reap(8) {
                    pair.settle(0, &ended);
                }
                let is_met = pair.ends[0].in_flight(Table::Jobs) == 0;
                is_met && pair.take(1)
            },
        );
    }
    assert!(
        !pair.ends[1].has_message(),
        "endpoint duty 4: nothing was sent"
    );
    let before = pair.ends[1].tells();
    pair.send(0, 0..1, 5);
    pair.step_until(
        "endpoint duty 4: `changed` is called for who took messages without a look",
        |pair| pair.ends[1].tells() > before,
    );
    pair.settle_all();
    pair.finish();
}

fn what_is_too_long_stays(peers: &Peers) {
    let mut pair = pair(peers, CELL);
    let len = peers.within(100);
    pair.send(0, 0..1, len);
    pair.step_until("endpoint duty 4: a message has come", |pair| {
        pair.ends[1].has_message()
    });
    if len > 1 {
        let piece = std::iter::once(0..len - 1).collect();
        let taken = pair.ends[1].take(0, piece, len - 1);
        let reason = taken.map_err(|error| error.reason());
        assert_eq!(
            reason,
            Err(Reason::ReceiveTooSmall),
            "endpoint duty 4: a message that does not fit is not taken"
        );
        pair.ends[1].check(Table::Receives, 0, "duty 1: and not copied");
    }
    pair.settle_all();
    pair.finish();
}

fn the_last_messages_are_taken(peers: &Peers) {
    let mut pair = pair(peers, CELL);
    let count = pair.plan.receives.min(3);
    pair.send(0, 0..count, 300);
    pair.step_until("endpoint duty 4: a message with a credit is sent", |pair| {
        pair.ends[0].in_flight(Table::Jobs) == 0
    });
    pair.ends[0].endpoint().reset();
    for _ in 0..count {
        pair.wait(
            "endpoint duty 4: the messages of a peer that has left are taken",
            |pair| pair.take(1),
        );
    }
    pair.wait("endpoint duty 4: then the state turns to Error", |pair| {
        matches!(pair.ends[1].state(), EndpointState::Error(_))
    });
    let EndpointState::Error(cause) = pair.ends[1].state() else {
        unreachable!("it has waited for that");
    };
    let expected = [ErrorKind::ConnectionReset, ErrorKind::ConnectionAborted];
    assert!(expected.contains(&cause.kind()), "{cause}");
    pair.ends[1].endpoint().reset();
    pair.forget_messages();
    pair.connect();
    pair.send(0, 0..1, 10);
    pair.settle_all();
    pair.finish();
}

fn a_reset_drops_messages(peers: &Peers) {
    let mut pair = pair(peers, CELL);
    pair.send(0, 0..1, 10);
    pair.step_until("endpoint duty 4: a message has come", |pair| {
        pair.ends[1].has_message()
    });
    pair.ends[1].endpoint().reset();
    assert!(
        !pair.ends[1].has_message(),
        "endpoint duty 4: a reset drops messages"
    );
    pair.wait("endpoint duty 3: the peer's state turns to Error", |pair| {
        matches!(pair.ends[0].state(), EndpointState::Error(_))
    });
    pair.ends[0].endpoint().reset();
    pair.forget_messages();
    pair.connect();
    pair.send(0, 0..1, 20);
    pair.settle_all();
    pair.finish();
}
