//! A span of `tracing` for each job that a device has, from its submission to its completion.
//!
//! They lie apart from the Slots: a job that nobody traces pays for two comparisons. A span opens
//! before its job is submitted, and closes outside of the gate, since a subscriber is code of the
//! application's. Jobs that are finished inline have none.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tracing::Span;
use tracing::level_filters::{LevelFilter, STATIC_MAX_LEVEL};

use crate::device::{Device, Job, Token};
use crate::reactor::slots::Outcome;
use crate::sync::{lock, log};

/// The spans of the jobs in flight on one WorkQ.
#[derive(Default)]
pub(super) struct JobSpans {
    /// A job was traced since the WorkQ was built. A completion of it, which comes after its
    /// submission, sees this set.
    any: AtomicBool,
    spans: Mutex<Spans>,
}

#[derive(Default)]
struct Spans {
    open: HashMap<u64, Span>,
    /// Their jobs have completed so; they close outside of the gate.
    completed: Vec<(Span, Outcome)>,
}

impl JobSpans {
    /// Opens the span of a job that is about to be submitted, if a subscriber may want it.
    #[inline(always)]
    pub(super) fn open(&self, device: &Device, token: Token, job: &Job<'_>) {
        if STATIC_MAX_LEVEL >= LevelFilter::TRACE && LevelFilter::current() >= LevelFilter::TRACE {
            self.open_traced(device, token, job);
        }
    }

    #[cold]
    #[inline(never)]
    fn open_traced(&self, device: &Device, token: Token, job: &Job<'_>) {
        let kind = match job {
            Job::Copy(_) => "copy",
            Job::Sha(_) => "sha",
            Job::Crc(_) => "crc",
            Job::Accel(_) => "accel",
            Job::Rdma(_) => "rdma",
            Job::Event(_) => "sync_event",
        };
        log(|| {
            let span = tracing::trace_span!(
                target: "tokio_doca::workq",
                "job",
                kind,
                device = device.info().name(),
                slot = token.index(),
                result = tracing::field::Empty,
                error = tracing::field::Empty,
            );
            if span.is_disabled() {
                return;
            }
            // A span of a job that ended unseen, if there is one, closes without the lock.
            let before = lock(&self.spans).open.insert(token.as_raw(), span);
            self.any.store(true, Relaxed);
            drop(before);
        });
    }

    /// A job was completed, in the gate, or refused. True if its span is to be closed.
    #[inline(always)]
    pub(super) fn complete(&self, token: Token, outcome: Outcome) -> bool {
        STATIC_MAX_LEVEL >= LevelFilter::TRACE
            && self.any.load(Relaxed)
            && self.complete_traced(token, outcome)
    }

    #[cold]
    #[inline(never)]
    fn complete_traced(&self, token: Token, outcome: Outcome) -> bool {
        let mut spans = lock(&self.spans);
        let span = spans.open.remove(&token.as_raw());
        spans.completed.extend(span.map(|span| (span, outcome)));
        !spans.completed.is_empty()
    }

    /// Closes the spans of jobs that were completed. The caller is not in the gate.
    #[cold]
    pub(super) fn close(&self) {
        let completed = std::mem::take(&mut lock(&self.spans).completed);
        for (span, outcome) in completed {
            log(move || {
                match outcome {
                    Ok(result) => span.record("result", result),
                    Err(error) => span.record("error", tracing::field::display(error)),
                };
            });
        }
    }
}
