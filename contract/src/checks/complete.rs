//! Checks of duties 1 and 2: each accepted Job completes once, and then the caller owns its memory.

use crate::rig::{Dice, Rig, Shape, Subject, depths, watched};

const CELL: usize = 4096;

/// Checks duty 1, with several depths, batch sizes and orders of Tokens.
///
/// # Panics
///
/// Panics if a Job completes twice or not at all, under another Token, with another length, or if
/// the wrong bytes are moved.
pub fn each_accepted_job_completes_once(subject: impl Into<Subject>) {
    watched("each_accepted_job_completes_once", subject, |subject| {
        for depth in depths(subject) {
            let mut rig = Rig::new(subject, depth, CELL);
            let mut order: Vec<u32> = (0..depth).collect();
            let mut batch = 1;
            while batch <= depth as usize {
                rig.dice.shuffle(&mut order);
                let len = subject.within(1 + rig.dice.below(CELL / 2 - 64));
                rig.round(&order[..batch], &Shape::plain(CELL, len));
                // The batch sizes are 1, 2, 3, 5, 8, ... and the depth itself.
                let next = batch + batch.div_ceil(2);
                batch = match batch {
                    last if last == depth as usize => break,
                    _ => next.min(depth as usize),
                };
            }
            // Uses every index again, under new Tokens: a second completion of an earlier round now
            // has a stale Token.
            rig.round(&order, &Shape::plain(CELL, subject.within(100)));
            if subject.is_copy() {
                rig.round(&order, &Shape::plain(CELL, 0));
                rig.round(&order, &Shape::lists(CELL, 0, 0, 0, 0, &mut Dice::new(1)));
            }
            rig.finish();
        }
    });
}

/// Checks duty 2: the memory of completed Jobs is reused at once while other Jobs are in flight.
///
/// # Panics
///
/// Panics if a completed Job's memory changes, before or after `retire`.
pub fn completed_memory_is_left_alone(subject: impl Into<Subject>) {
    watched("completed_memory_is_left_alone", subject, |subject| {
        for depth in depths(subject) {
            let mut rig = Rig::new(subject, depth, CELL);
            let shape = Shape::plain(CELL, subject.within(CELL / 2 - 64));
            for step in 0..200 {
                let index = step % depth;
                while rig.is_in_flight(index) {
                    rig.wait_until_reaped(1);
                }
                rig.prepare(index, &shape);
                rig.submit_all(&[index]);
            }
            rig.drain();
            rig.finish();
        }
    });
}
