//! Checks of endpoint duty 2: a failure puts the endpoint into the state Error, and all accepted
//! Jobs and receives end.

use std::time::Duration;

use super::end::{Ended, Plan, Table};
use super::memory::REMOTE;
use super::pair::Pair;
use super::{Peers, watched};
use tokio_doca::device::Access;
use tokio_doca::device::contract::{EndpointState, Verb};
use tokio_doca::error::{ErrorKind, JobError};

const CELL: usize = 1024;
/// Longer than a hiccup of a busy machine, and short enough for a test.
const RNR: Duration = Duration::from_millis(300);

impl Pair {
    /// Returns true if nothing of an end is in flight.
    pub(super) fn is_idle(&self, side: usize) -> bool {
        let end = &self.ends[side];
        end.in_flight(Table::Jobs) == 0 && end.in_flight(Table::Receives) == 0
    }

    /// Accepts any contents of all cells: memory of failed Jobs and receives is unspecified.
    pub(super) fn accept_all(&mut self) {
        let (jobs, receives) = (self.plan.jobs, self.plan.receives);
        for end in &mut self.ends {
            (0..jobs).for_each(|index| end.fill(Table::Jobs, index));
            (0..receives).for_each(|index| end.fill(Table::Receives, index));
        }
        self.forget_messages();
    }

    /// Waits until the ends in `sides` are in the state Error, have called `changed`, and have
    /// nothing in flight. Returns all that ended on both sides meanwhile.
    pub(super) fn until_failed(&mut self, sides: &[usize]) -> [Vec<Ended>; 2] {
        let mut all = [Vec::new(), Vec::new()];
        let what = "endpoint duty 2: the endpoint comes to the state Error, `changed` is called, and all that was accepted ends";
        crate::rig::wait_for(self.deadline(), what, || {
            for (all, more) in all.iter_mut().zip(self.reap()) {
                all.extend(more);
            }
            let over = |&side: &usize| {
                let failed = matches!(self.ends[side].state(), EndpointState::Error(_));
                failed && self.is_idle(side) && self.ends[side].was_told()
            };
            sides.iter().all(over)
        });
        all
    }

    pub(super) fn cause(&self, side: usize) -> JobError {
        match self.ends[side].state() {
            EndpointState::Error(cause) => cause,
            other => {
                panic!("endpoint duty 2: a failed endpoint stays in the state Error: {other:?}")
            }
        }
    }

    /// Checks that the endpoint refuses a Job or flushes it, and refuses a receive and an export.
    fn refuses_everything(&mut self, side: usize) {
        let flushed = JobError::flushed(self.cause(side));
        let refused =
            "endpoint duty 2: what comes in the state Error ends flushed, with the first cause";
        self.prepare(side, 0, Verb::Write(None), 1);
        let job = self.job(side, 0);
        let alone = self.ends[side].try_inline(&job);
        let together = self.ends[side].try_inline_all(&[job, job]);
        for answer in alone.into_iter().chain(together) {
            assert_eq!(answer, Err(flushed), "{refused}");
        }
        let submitted = self.ends[side].submit(&[(0, job)]);
        match submitted.refused {
            Some(why) => assert_eq!(why, flushed, "{refused}"),
            None => {
                let all = self.until_failed(&[side]);
                assert_eq!(all[side][0].completion.result, Err(flushed), "{refused}");
            }
        }
        self.check_remote(
            side,
            0,
            "endpoint duty 2: a Job was carried out in the state Error",
        );
        let posted = self.ends[side].post(0, Vec::new(), 0);
        assert_eq!(posted, Err(flushed), "{refused}");
        let exported = self.ends[side]
            .endpoint()
            .export()
            .err()
            .map(|error| error.kind());
        assert_eq!(
            exported,
            Some(ErrorKind::BadState),
            "nothing is exported in the state Error"
        );
    }

    /// Resets both ends, reconnects them, and checks that all operations work with the same memory.
    pub(super) fn recover(&mut self) {
        self.reset_both();
        self.works(0..self.plan.jobs);
    }

    /// Checks the completions of a table: some succeed, then one fails with `cause`, and all later
    /// ones are flushed. Without a `cause`, each succeeds or is flushed.
    fn flushed_after(ended: &[Ended], table: Table, cause: Option<JobError>, first: JobError) {
        let of_table = ended.iter().filter(|ended| ended.table == table);
        let mut failed = cause.is_none();
        let flushed = JobError::flushed(first);
        for Ended { completion, .. } in of_table {
            match completion.result {
                Ok(_) => assert!(
                    !failed || cause.is_none(),
                    "endpoint duty 2: {completion:?} ended well after one that failed"
                ),
                Err(error) if !failed && Some(error) == cause => failed = true,
                Err(error) => assert_eq!(
                    error, flushed,
                    "endpoint duty 2: {table:?} that were accepted end flushed, with the first cause ({first})"
                ),
            }
        }
        assert!(
            failed,
            "endpoint duty 2: what failed ends with the cause that the state names"
        );
    }
}

/// Checks endpoint duty 2 and the flushing of later operations, for two failures: no receive is
/// posted within `rnr_timeout`, and a message is longer than its receive. Then both sides are reset
/// and reconnect.
///
/// # Panics
///
/// Panics if a failure is not reported or has another cause, if later operations are not flushed
/// but executed or accepted, or if a reset does not restore the endpoint.
pub fn failures_flush_what_is_behind_them(peers: impl Into<Peers>) {
    watched("failures_flush_what_is_behind_them", peers, |peers| {
        for _ in 0..2 {
            no_receive(peers);
            too_long(peers);
        }
    });
}

/// The first Jobs succeed, one waits for a receive in vain, and all Jobs behind it must be flushed.
fn no_receive(peers: &Peers) {
    let plan = Plan::new(peers, CELL);
    let mut pair = Pair::new(
        peers,
        Plan {
            rnr_timeout: RNR,
            ..plan
        },
    );
    pair.works(0..plan.jobs);
    // A receive that is still posted would take a later message.
    pair.recover();
    for index in 0..plan.receives {
        pair.post(0, index, 10);
    }
    let write = plan.jobs / 3;
    for index in 0..plan.jobs {
        let verb = match index {
            _ if index == write => pair.message(1),
            _ if index < write => Verb::Write(None),
            _ => pair.verb(index as usize),
        };
        pair.prepare(0, index, verb, 8);
    }
    pair.submit(0, &(0..plan.jobs).collect::<Vec<_>>());
    let ended = pair.until_failed(&[0]);
    let cause = pair.cause(0);
    assert_eq!(
        cause.kind(),
        ErrorKind::TimedOut,
        "endpoint duty 2: a message without a receive fails after rnr_timeout: {cause}"
    );
    Pair::flushed_after(&ended[0], Table::Jobs, Some(cause), cause);
    Pair::flushed_after(&ended[0], Table::Receives, None, cause);
    for index in write + 1..plan.jobs {
        let or_else = "endpoint duty 2: a Job behind one that failed was carried out";
        pair.check_remote(0, index, or_else);
    }
    pair.refuses_everything(0);
    pair.recover();
    pair.finish();
}

/// A message is longer than its receive: both must fail.
fn too_long(peers: &Peers) {
    if peers.within(2) < 2 {
        return;
    }
    let mut pair = Pair::new(peers, Plan::new(peers, CELL));
    let posted = pair.ends[1].post(0, std::iter::once(17..18).collect(), 1);
    posted.expect("a receive is taken in the state Connected");
    for index in 1..pair.plan.receives {
        pair.post(1, index, CELL / 2);
    }
    pair.prepare(0, 0, Verb::Send(None), pair.longest());
    pair.submit(0, &[0]);
    let ended = pair.until_failed(&[0, 1]);
    for (side, table) in [(0, Table::Jobs), (1, Table::Receives)] {
        let cause = pair.cause(side);
        assert_eq!(
            cause.kind(),
            ErrorKind::InvalidValue,
            "endpoint duty 2: a message longer than its receive fails on both sides: {cause}"
        );
        Pair::flushed_after(&ended[side], table, Some(cause), cause);
    }
    // The bytes for which the receive had capacity may have been written.
    let room = pair.ends[1].at(Table::Receives, 0) + 17;
    pair.ends[1].receives[0].bytes[17] = pair.ends[1].arena.read(room, 1)[0];
    pair.check_all("duty 1: a message that was too long was written beside its receive");
    pair.refuses_everything(0);
    pair.refuses_everything(1);
    pair.recover();
    pair.finish();
}

/// Checks that an endpoint executes the operations of its peer that it permits. It must not execute
/// any other operation, and such an operation must end the connection on both sides.
///
/// # Panics
///
/// Panics if an operation that is not permitted is executed, or if one that is permitted fails.
pub fn permissions_are_kept(peers: impl Into<Peers>) {
    watched("permissions_are_kept", peers, |peers| {
        for without in [Access::RDMA_WRITE, Access::RDMA_READ, Access::RDMA_ATOMIC] {
            permissions_but(peers, without);
        }
    });
}

/// Returns each operation of these peers, with the permission that it needs.
fn needs(peers: &Peers) -> Vec<(Access, Verb)> {
    let swap = Verb::CompareSwap {
        compare: 0,
        swap: 1,
    };
    let mut kinds = vec![
        (Access::empty(), Verb::Send(None)),
        (Access::RDMA_WRITE, Verb::Write(None)),
        (Access::RDMA_READ, Verb::Read),
    ];
    if peers.both(|caps| caps.write_imm) {
        kinds.push((Access::RDMA_WRITE, Verb::Write(Some(3))));
    }
    if peers.both(|caps| caps.atomics) {
        kinds.push((Access::RDMA_ATOMIC, Verb::FetchAdd(2)));
        kinds.push((Access::RDMA_ATOMIC, swap));
    }
    kinds
}

fn permissions_but(peers: &Peers, without: Access) {
    let permissions = REMOTE - without;
    let plan = Plan::new(peers, CELL);
    let mut pair = Pair::new(
        peers,
        Plan {
            permissions,
            ..plan
        },
    );
    for end in &pair.ends {
        let said = end.endpoint().peer_permissions();
        assert!(
            said.contains(permissions),
            "an endpoint says that its peer permits {said:?}, which permits {permissions:?}"
        );
    }
    let (denied, permitted): (Vec<_>, Vec<_>) = needs(peers)
        .into_iter()
        .partition(|(needs, _)| *needs == without);
    for (_, verb) in permitted {
        pair.prepare(0, 0, verb, 8);
        pair.submit(0, &[0]);
        pair.drain();
    }
    for (_, verb) in denied {
        for inline in [false, true] {
            for side in [0, 1] {
                pair.post_if_free(side, 0);
            }
            pair.prepare(0, 0, verb, 8);
            let job = pair.job(0, 0);
            let answer = inline.then(|| pair.ends[0].try_inline(&job)).flatten();
            if answer.is_none() {
                pair.submit(0, &[0]);
            }
            let ended = pair.until_failed(&[0, 1]);
            let cause = pair.cause(0);
            assert_eq!(
                cause.kind(),
                ErrorKind::NotPermitted,
                "endpoint duty 2: {verb:?} without the permission of the peer's endpoint: {cause}"
            );
            match answer {
                Some(answer) => assert_eq!(answer, Err(cause), "duty 4: {verb:?}"),
                None => Pair::flushed_after(&ended[0], Table::Jobs, Some(cause), cause),
            }
            Pair::flushed_after(&ended[0], Table::Receives, None, cause);
            Pair::flushed_after(&ended[1], Table::Receives, None, pair.cause(1));
            let or_else = format!("{verb:?} was carried out, and the endpoint does not permit it");
            pair.check_remote(0, 0, &or_else);
            pair.reset_both();
        }
    }
    pair.finish();
}

impl Pair {
    fn post_if_free(&mut self, side: usize, index: u32) {
        if !self.ends[side].receives[index as usize].in_flight {
            self.post(side, index, CELL / 2);
        }
    }

    /// Resets and reconnects both ends as `recover`, but without operations: not all may be
    /// permitted.
    fn reset_both(&mut self) {
        for end in &self.ends {
            end.endpoint().reset();
        }
        self.wait(
            "endpoint duty 3: a reset endpoint is in the state Init, and what it had ends",
            |pair| {
                [0, 1]
                    .iter()
                    .all(|&side| pair.ends[side].was_told() && pair.is_idle(side))
            },
        );
        self.accept_all();
        self.connect();
    }
}
