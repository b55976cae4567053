//! Jobs as a queue takes them: of one kind in a batch.

use crate::device::{AccelJob, Job, ShaJob, Token};

/// A Job of the Subject's kind.
pub(super) enum AnyJob {
    Copy(Job),
    Accel(AccelJob),
    Sha(ShaJob),
}

pub(super) enum Batch {
    Copies(Vec<(Token, Job)>),
    Accel(Vec<(Token, AccelJob)>),
    Hashes(Vec<(Token, ShaJob)>),
}

impl Batch {
    pub(super) fn of(jobs: impl Iterator<Item = (Token, AnyJob)>) -> Batch {
        let (mut copies, mut accel, mut hashes) = (Vec::new(), Vec::new(), Vec::new());
        for (token, job) in jobs {
            match job {
                AnyJob::Copy(job) => copies.push((token, job)),
                AnyJob::Accel(job) => accel.push((token, job)),
                AnyJob::Sha(job) => hashes.push((token, job)),
            }
        }
        match (&copies[..], &accel[..], &hashes[..]) {
            (_, [], []) => Batch::Copies(copies),
            ([], _, []) => Batch::Accel(accel),
            ([], [], _) => Batch::Hashes(hashes),
            _ => unreachable!("a batch is of its subject's kind"),
        }
    }
}
