//! Checks of duty 4: a Job that is answered inline is complete, with the answer of a submission.

use crate::rig::{Rig, Shape, Subject, depths, watched};

/// Checks duty 4: `try_inline` either moves all bytes and keeps nothing, or has not begun. Its
/// answer equals that of a submission of the same Job.
///
/// # Panics
///
/// Panics if an inline answer differs from a submitted one, if there is a completion as well, or if
/// memory is touched later.
pub fn inline_jobs_are_complete(subject: impl Into<Subject>) {
    watched("inline_jobs_are_complete", subject, |subject| {
        for depth in depths(subject) {
            for len in [1, 64, 4096, 300_000].map(|len| subject.within(len)) {
                let cell = 2 * (len + 512);
                let mut rig = Rig::new(subject, depth.min(7), cell);
                for index in 0..rig.depth() {
                    rig.prepare(index, &Shape::plain(cell, len));
                    let Some(answer) = rig.try_inline(index) else {
                        continue;
                    };
                    // A submitted Job's completion is checked against the same model
                    // (`Rig::answer`).
                    assert_eq!(
                        answer,
                        Ok(rig.answer(index)),
                        "duty 4: an inline answer equals a submitted one"
                    );
                    rig.refill(index);
                    assert_eq!(rig.reap(1), 0, "duty 4: an inline answer is not reaped too");
                }
                // Submits every second cell now. The memory of the others must stay unchanged until
                // the end.
                let some: Vec<u32> = (0..rig.depth()).step_by(2).collect();
                rig.round(&some, &Shape::plain(cell, len));
                rig.finish();
            }
        }
    });
}
