//! Checks of duty 3: the device never sees an operation that was not accepted.

use super::Peers;
use super::end::{Plan, Table};
use super::pair::Pair;

const CELL: usize = 1024;

/// Checks duty 3: a refused operation moves nothing, sends no message, never completes, and can be
/// submitted again.
///
/// `refuse_next` must make the device refuse a Job of the next batch, temporarily.
///
/// # Panics
///
/// Panics if nothing is refused, or if a refused operation leaves a trace.
pub fn a_refused_operation_was_never_seen(peers: impl Into<Peers>, refuse_next: &mut dyn FnMut()) {
    let peers = &peers.into();
    for round in 0..20 {
        let mut pair = Pair::new(peers, Plan::new(peers, CELL));
        let batch: Vec<u32> = (0..pair.plan.jobs).collect();
        let mut jobs = Vec::new();
        for &index in &batch {
            let verb = pair.verb(index as usize + round);
            pair.prepare(0, index, verb, 8);
            jobs.push((index, pair.job(0, index)));
        }
        refuse_next();
        let submitted = pair.ends[0].submit(&jobs);
        assert!(
            submitted.refused.is_some(),
            "`refuse_next` did not make the device refuse: the check proves nothing"
        );
        let (accepted, refused) = batch.split_at(submitted.accepted);
        for &index in accepted {
            pair.announce(0, index);
        }
        pair.drain();
        for &index in refused {
            let or_else = "duty 3: a Job that was refused was carried out";
            pair.ends[0].check(Table::Jobs, index, or_else);
            pair.check_remote(0, index, or_else);
        }
        // In every other round the refused operations are submitted again, under the same Tokens.
        if round % 2 == 1 {
            pair.submit(0, refused);
            pair.drain();
        }
        pair.works(0..1);
        pair.finish();
    }
}
