//! Checks of duty 6: `retire` keeps its argument exactly until nothing is in flight.

use crate::rig::{Rig, Shape, Subject, depths, watched};

const CELL: usize = 1024;
/// Large enough that some Jobs are still in flight when the queue is retired.
const LARGE: usize = 64 << 10;

/// Checks duty 6: `retire` drops its argument at once if the queue is idle or has only completions
/// that were not reaped. If Jobs are in flight, it drops it after the last. From then on the device
/// does not touch their memory.
///
/// # Panics
///
/// Panics if the argument of `retire` is dropped early, late or never.
pub fn retire_keeps_until_nothing_is_in_flight(subject: impl Into<Subject>) {
    watched(
        "retire_keeps_until_nothing_is_in_flight",
        subject,
        |subject| {
            for depth in depths(subject) {
                Rig::new(subject, depth, CELL).finish();
                retire_after(subject, depth, 2);
                retire_unreaped(subject, depth);
                for reaped in [0, 1, 1, 2, depth / 4, depth / 2] {
                    retire_in_flight(subject, depth.min(32), reaped);
                }
            }
        },
    );
}

fn retire_after(subject: &Subject, depth: u32, rounds: usize) {
    let mut rig = Rig::new(subject, depth, CELL);
    let all: Vec<u32> = (0..depth).collect();
    for _ in 0..rounds {
        rig.round(&all, &Shape::plain(CELL, subject.within(100)));
    }
    rig.finish();
}

fn retire_unreaped(subject: &Subject, depth: u32) {
    let mut rig = Rig::new(subject, depth, CELL);
    if subject.event_driven() {
        rig.arm();
    }
    rig.prepare(0, &Shape::plain(CELL, subject.within(100)));
    rig.submit_all(&[0]);
    if subject.event_driven() {
        rig.wait_for_signal("duty 5: armed, and a Job completed");
    }
    rig.retire().check();
}

fn retire_in_flight(subject: &Subject, depth: u32, reaped: u32) {
    let mut rig = Rig::new(subject, depth, LARGE);
    let all: Vec<u32> = (0..depth).collect();
    for &index in &all {
        rig.prepare(index, &Shape::plain(LARGE, subject.within(LARGE / 2 - 64)));
    }
    rig.hurried = true;
    rig.submit_all(&all);
    rig.wait_until_reaped(reaped);
    let retired = rig.retire();
    // These Jobs give the device time to touch the first queue's memory, which it must not do.
    let mut other = Rig::new(subject, 1, CELL);
    for _ in 0..4 {
        other.round(&[0], &Shape::plain(CELL, subject.within(100)));
    }
    other.finish();
    retired.check();
}
