//! Duty 1 for lists: gathered and scattered in order, however they are cut.

use crate::rig::{Rig, Shape, Subject, watched};

const CELL: usize = 4096;
const LONGEST: u32 = 8;

/// Duty 1: lists of 1 to 8 Segments on either side, as far as the capabilities go; a destination
/// may have more room than is needed.
///
/// # Panics
///
/// If bytes arrive in another place or order, or a byte between the pieces changes.
pub fn lists_are_gathered_and_scattered(subject: impl Into<Subject>) {
    watched("lists_are_gathered_and_scattered", subject, |subject| {
        let longest = subject.max_list_len().min(LONGEST) as usize;
        let longest = subject.within(longest);
        let depth = subject.max_depth().min(16);
        let mut rig = Rig::new(subject, depth, CELL);
        for from in 1..=longest {
            for to in 1..=longest {
                let mut all: Vec<u32> = (0..depth).collect();
                rig.dice.shuffle(&mut all);
                for &index in &all {
                    let len = subject.within(longest + rig.dice.below(1500));
                    let room = rig.dice.below(40);
                    let shape = Shape::lists(CELL, len, from, to, room, &mut rig.dice);
                    rig.prepare(index, &shape);
                }
                rig.submit_all(&all);
                rig.drain();
            }
        }
        rig.finish();
    });
}
