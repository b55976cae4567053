//! Checks of endpoint duty 1, and of duties 1 to 4 for its Jobs: each ends once, in order, with the
//! right effect.

use super::end::{Plan, Table};
use super::pair::Pair;
use super::{Peers, watched};
use tokio_doca::device::contract::Verb;

const CELL: usize = 1024;
/// Larger than any packet.
const LARGE: usize = 64 << 10;
const STEPS: usize = 400;

/// Checks duties 1 to 4 and endpoint duty 1 with all kinds of operations: from both sides at once,
/// in batches and inline, on lists, without data, and with many packets.
///
/// # Panics
///
/// Panics if a Job or receive completes twice, not at all, out of order or with another answer, or
/// if wrong bytes or bytes of a completed Job are written.
pub fn remote_operations_complete_in_order(peers: impl Into<Peers>) {
    watched("remote_operations_complete_in_order", peers, |peers| {
        each_kind_alone(peers);
        for jobs in [1, 2, 16] {
            let plan = Plan::new(peers, CELL);
            let jobs = peers.depth(jobs);
            at_random(peers, Plan { jobs, ..plan }, STEPS);
        }
        let large = Plan {
            jobs: peers.depth(6),
            ..Plan::new(peers, LARGE)
        };
        at_random(peers, large, STEPS / 8);
    });
}

/// Tests each kind of operation alone, so that a panic names the kind.
fn each_kind_alone(peers: &Peers) {
    let mut pair = Pair::new(peers, Plan::new(peers, CELL));
    for number in 0..7 {
        for side in [0, 1] {
            for len in [0, 1, 8, 100, CELL / 2] {
                let verb = pair.verb(number);
                pair.prepare(side, 0, verb, len);
                pair.submit(side, &[0]);
                pair.drain();
            }
        }
    }
    pair.finish();
}

fn at_random(peers: &Peers, plan: Plan, steps: usize) {
    let mut pair = Pair::new(peers, plan);
    for _ in 0..steps {
        let side = pair.dice.below(2);
        let free: Vec<u32> = (0..plan.jobs)
            .filter(|&index| !pair.ends[side].jobs[index as usize].in_flight)
            .collect();
        let batch = pair.dice.below(free.len() + 1);
        // Tries the Jobs inline in one batch, or some one by one, as the dice decide.
        let together = pair.dice.below(3) == 0;
        let mut submitted = Vec::new();
        for &index in &free[..batch] {
            let number = pair.dice.below(7);
            let verb = pair.verb(number);
            // The length is zero, small, or large.
            let most = [1, 65, pair.longest() + 1][pair.dice.below(3)];
            let len = pair.dice.below(most);
            pair.prepare(side, index, verb, len);
            let alone = !together && submitted.is_empty() && pair.dice.below(2) > 0;
            if !alone || !pair.try_inline(side, index) {
                submitted.push(index);
            }
        }
        if together {
            let finished = pair.try_inline_all(side, &submitted);
            submitted.drain(..finished);
        }
        pair.submit(side, &submitted);
        let other = pair.dice.below(2);
        let receive = pair.dice.below(plan.receives as usize) as u32;
        if !pair.ends[other].receives[receive as usize].in_flight {
            pair.post(other, receive, CELL.max(plan.cell) / 2);
        }
        pair.step();
    }
    pair.drain();
    // Uses every index again, under new Tokens: a second completion of an earlier round now has a
    // stale Token.
    pair.works(0..plan.jobs);
    pair.finish();
}

/// Checks endpoint duty 1: a message that is sent before there is a receive waits for it within
/// `rnr_timeout`, and so do the Jobs behind it, in order. A receive that is posted before the
/// connection exists is not lost.
///
/// # Panics
///
/// Panics if a Job fails, or if a message is lost.
pub fn receives_may_come_late(peers: impl Into<Peers>) {
    watched("receives_may_come_late", peers, |peers| {
        let mut pair = Pair::apart(peers, Plan::new(peers, CELL));
        for index in 0..pair.plan.receives {
            pair.post(1, index, CELL / 2);
        }
        pair.connect();
        let many = pair.plan.jobs;
        for round in 0..20 {
            for index in 0..many {
                let verb = match (round + index) % 3 {
                    0 => pair.message(index),
                    1 => Verb::Send(None),
                    _ => Verb::Write(None),
                };
                let len = pair.dice.below(pair.longest() + 1);
                pair.prepare(0, index, verb, len);
            }
            pair.submit(0, &(0..many).collect::<Vec<_>>());
            // No receives are posted here: the earlier ones are used up, and some Jobs wait.
            for _ in 0..pair.dice.below(50) {
                pair.step();
            }
            pair.drain();
            assert_eq!(pair.ends[0].in_flight(Table::Jobs), 0);
        }
        pair.finish();
    });
}
