//! Duty 4: what is answered inline is over, and equals what a submission answers.

use crate::rig::{Rig, Shape, Subject, depths, watched};

/// Duty 4: `try_inline` moves all and keeps nothing, or has not begun; a submission of the same
/// answers the same.
///
/// # Panics
///
/// If an inline answer differs from a submitted one, comes as a completion too, or touches memory
/// later.
pub fn inline_answers_are_over(subject: impl Into<Subject>) {
    watched("inline_answers_are_over", subject, |subject| {
        for depth in depths(subject) {
            for len in [1, 64, 4096, 100_000].map(|len| subject.within(len)) {
                let cell = 2 * (len + 512);
                let mut rig = Rig::new(subject, depth.min(7), cell);
                for index in 0..rig.depth() {
                    rig.prepare(index, &Shape::plain(cell, len));
                    let Some(answer) = rig.try_inline(index) else {
                        continue;
                    };
                    // `submit` checks that its answer is this one.
                    assert_eq!(
                        answer,
                        Ok(rig.answer(index)),
                        "duty 4: an inline answer equals a submitted one"
                    );
                    rig.refill(index);
                    assert_eq!(rig.reap(1), 0, "duty 4: an inline answer is not reaped too");
                }
                // Every second one is submitted now; the others stay as they are until the end.
                let some: Vec<u32> = (0..rig.depth()).step_by(2).collect();
                rig.round(&some, &Shape::plain(cell, len));
                rig.finish();
            }
        }
    });
}
