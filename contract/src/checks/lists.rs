//! Checks of duty 1 for lists: they are gathered and scattered in order, however they are cut.

use crate::rig::{Rig, Shape, Subject, watched};

const CELL: usize = 4096;
const LONGEST: u32 = 8;

/// Checks duty 1 with lists of 1 to 8 Segments on either side, as far as the capabilities allow. A
/// destination may have more capacity than is needed.
///
/// # Panics
///
/// Panics if bytes arrive in another place or order, or if a byte between the pieces changes.
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
