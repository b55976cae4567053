//! Checks of endpoint duty 3: after a reset the endpoint touches no memory any more.

use std::time::Instant;

use super::end::{Plan, Table};
use super::pair::Pair;
use super::{Peers, watched};
use tokio_doca::device::contract::{EndpointState, Verb};
use tokio_doca::error::JobError;

const CELL: usize = 1024;

/// Checks endpoint duty 3: an endpoint is reset with Jobs and receives in flight. They end flushed,
/// and their memory is not touched any more. The peer enters the state Error, the old blob is
/// invalid, and both can connect again.
///
/// # Panics
///
/// Panics if memory is touched after the reset, if something in flight does not end or does not end
/// flushed, or if the endpoints do not reconnect.
pub fn a_reset_ends_all(peers: impl Into<Peers>) {
    watched("a_reset_ends_all", peers, |peers| {
        in_init(peers);
        for round in 0..10 {
            in_flight(peers, round);
        }
    });
}

/// Receives that wait for a connection must end too.
fn in_init(peers: &Peers) {
    let mut pair = Pair::apart(peers, Plan::new(peers, CELL));
    pair.post(0, 0, 100);
    pair.ends[0].endpoint().reset();
    let mut ended = Vec::new();
    pair.ends_of(0, &mut ended);
    assert!(
        ended[0].is_err_and(|error| error == JobError::flushed(error)),
        "endpoint duty 3: a receive that was reset ends flushed: {ended:?}"
    );
    pair.accept_all();
    pair.connect();
    pair.works(0..pair.plan.jobs);
    pair.finish();
}

fn in_flight(peers: &Peers, round: u32) {
    let mut pair = Pair::new(peers, Plan::new(peers, CELL));
    let plan = pair.plan;
    let old = pair.ends[0].endpoint().export();
    // Only this end posts receives: its messages to the peer stay in flight, and only Jobs before
    // them may complete.
    for index in 0..plan.receives {
        pair.post(0, index, CELL / 2);
    }
    let len = pair.longest();
    for index in 0..plan.jobs {
        let verb = match index % 4 {
            0 if index < round => Verb::Write(None),
            1 if index > 4 => Verb::Read,
            _ => Verb::Send(None),
        };
        pair.prepare(0, index, verb, len);
        // Messages to receives that the reset will remove.
        pair.prepare(1, index, Verb::Send(None), len);
    }
    let all: Vec<u32> = (0..plan.jobs).collect();
    if !round.is_multiple_of(2) {
        pair.submit(1, &all);
    }
    pair.submit(0, &all);
    let early: Vec<_> = (0..round).flat_map(|_| pair.ends[0].reap(1)).collect();
    let endpoint = pair.ends[0].endpoint().clone();
    endpoint.reset();
    // From here on no cell may be touched, whether it was reaped or not.
    for (table, cells) in [(Table::Jobs, plan.jobs), (Table::Receives, plan.receives)] {
        (0..cells).for_each(|index| pair.ends[0].fill(table, index));
    }
    let mut ended: Vec<_> = early.iter().map(|ended| ended.completion.result).collect();
    if round.is_multiple_of(2) {
        pair.submit_and_forget(1, &all);
    }
    pair.ends_of(0, &mut ended);
    for result in ended {
        assert!(
            result.is_ok() || result.is_err_and(|error| error == JobError::flushed(error)),
            "endpoint duty 3: what was accepted ends flushed, or had ended well: {result:?}"
        );
    }
    let what = "endpoint duty 3: the peer of one that was reset comes to the state Error, and what it had ends";
    pair.wait(what, |pair| {
        matches!(pair.ends[1].state(), EndpointState::Error(_)) && pair.is_idle(1)
    });
    let or_else = "endpoint duty 3: memory was touched after a reset";
    pair.ends[0].check_all(or_else);
    pair.ends[1].endpoint().reset();
    pair.wait(
        "endpoint duty 3: `reset` brings it to the state Init",
        |pair| pair.ends[1].was_told() && pair.ends[1].state() == EndpointState::Init,
    );
    let old = old.expect("a connected endpoint says what it exported");
    connects_anew(&mut pair, &old);
    // One Job only, so that the other cells that were in flight can still be checked.
    pair.works(0..1);
    pair.ends[0].check_all(or_else);
    pair.works(0..plan.jobs);
    pair.finish();
}

/// A blob that was exported before a reset must be refused, and a new one must connect.
fn connects_anew(pair: &mut Pair, old: &[u8]) {
    let deadline = Instant::now() + pair.deadline();
    let connected = pair.ends[1].endpoint().connect(old, deadline);
    assert!(
        connected.is_err() && pair.ends[1].state() == EndpointState::Init,
        "endpoint duty 3: what was exported before a reset is refused: {connected:?}"
    );
    pair.forget_messages();
    pair.connect();
}

impl Pair {
    /// Waits until nothing of an end is in flight, and appends the results to `ended`.
    fn ends_of(&mut self, side: usize, ended: &mut Vec<Result<u64, JobError>>) {
        let what = "endpoint duty 3: the completions of what was reset come";
        crate::rig::wait_for(self.deadline(), what, || {
            let [here, there] = self.reap();
            let ends = if side == 0 { here } else { there };
            ended.extend(ends.iter().map(|ended| ended.completion.result));
            self.is_idle(side)
        });
    }

    /// Submits Jobs on an end that may have failed already, or that will fail.
    fn submit_and_forget(&mut self, side: usize, indices: &[u32]) {
        let jobs: Vec<_> = indices
            .iter()
            .map(|&index| (index, self.job(side, index)))
            .collect();
        self.ends[side].submit(&jobs);
    }
}
