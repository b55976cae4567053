//! Endpoint duty 1, and duties 1 to 4 for its Jobs: each ends once, in order, and has done what it
//! says.

use super::end::{Plan, Table};
use super::pair::Pair;
use super::{Peers, watched};
use tokio_doca::device::contract::Verb;

const CELL: usize = 1024;
/// Longer than any packet.
const LARGE: usize = 64 << 10;
const STEPS: usize = 400;

/// Duties 1 to 4 and endpoint duty 1: all kinds of operations, of both sides at once, in batches
/// and inline, on lists, with nothing to move, and of many packets.
///
/// # Panics
///
/// If a Job or receive completes twice, not at all, out of order or with another answer, if a byte
/// too few or too many is written, or one of a Job that is over.
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

/// So that who panics says which it is.
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
        // In one batch, or each by itself as far as the dice say.
        let together = pair.dice.below(3) == 0;
        let mut submitted = Vec::new();
        for &index in &free[..batch] {
            let number = pair.dice.below(7);
            let verb = pair.verb(number);
            // Nothing, a little, or much.
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
    // Again with every Token: a second completion of an earlier round is stale now.
    pair.works(0..plan.jobs);
    pair.finish();
}

/// Endpoint duty 1: what is sent before there is a receive waits for it, in order, within
/// `rnr_timeout`; and so does what is behind it. What is posted before the connection is there is
/// not lost.
///
/// # Panics
///
/// If a Job fails, or a message is lost.
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
            // Those that are there are used up, and some Jobs wait.
            for _ in 0..pair.dice.below(50) {
                pair.step();
            }
            pair.drain();
            assert_eq!(pair.ends[0].in_flight(Table::Jobs), 0);
        }
        pair.finish();
    });
}
