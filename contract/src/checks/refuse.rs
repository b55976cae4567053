//! Checks of duty 3: the device never sees a Job that was not accepted, and accepts no Job of an
//! unknown kind.

use crate::rig::{Rig, Shape, Subject, watched};
use tokio_doca::error::ErrorKind;

const CELL: usize = 4096;

/// Checks duty 3: a refused Job moves nothing, never completes, and can be submitted again.
///
/// `refuse_next` must make the device refuse a Job of the next batch, temporarily.
///
/// # Panics
///
/// Panics if nothing is refused, or if a refused Job leaves a trace.
pub fn a_refused_job_was_never_seen(subject: impl Into<Subject>, refuse_next: &mut dyn FnMut()) {
    let subject = &subject.into();
    let depth = subject.max_depth().min(8);
    let batch: Vec<u32> = (0..depth).collect();
    for round in 0..20 {
        let mut rig = Rig::new(subject, depth, CELL);
        for &index in &batch {
            rig.prepare(index, &Shape::plain(CELL, subject.within(1000)));
        }
        refuse_next();
        let submitted = rig.submit(&batch);
        assert!(
            submitted.refused.is_some(),
            "`refuse_next` did not make the device refuse: the check proves nothing"
        );
        rig.drain();
        // In every other round the refused Jobs are submitted again, under the same Tokens.
        if round % 2 == 1 {
            rig.submit_all(&batch[submitted.accepted..]);
            rig.drain();
            if subject.in_parts() {
                // A later digest shows what the sessions have hashed.
                rig.round(&batch, &Shape::plain(CELL, subject.within(100)));
            }
        }
        rig.finish();
    }
}

/// Checks duty 3: a job of an unknown kind is refused together with all jobs behind it, and none of
/// these has an effect. The job before it is executed.
///
/// # Panics
///
/// Panics if the job is accepted or refused for another reason, or if a job behind it is executed.
pub fn a_job_of_an_unknown_kind_is_refused(subject: impl Into<Subject>) {
    watched("a_job_of_an_unknown_kind_is_refused", subject, |subject| {
        let mut rig = Rig::new(subject, subject.max_depth().min(3), CELL);
        if rig.depth() < 3 {
            return;
        }
        for index in [0, 1] {
            rig.prepare(index, &Shape::plain(CELL, subject.within(1000)));
        }
        let submitted = rig.submit_round_a_foreign_one();
        let refused = submitted.refused.map(|error| error.kind());
        let found = (submitted.accepted, refused);
        // A device that is full for a moment may refuse before it reaches the unknown job.
        assert!(
            found == (1, Some(ErrorKind::NotSupported)) || found == (0, Some(ErrorKind::Again)),
            "duty 3: a job of a kind that is not known is refused, and not {found:?}"
        );
        rig.drain();
        rig.finish();
    });
}
