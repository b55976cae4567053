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
use crate::error::ErrorKind;
use crate::reactor::slots::Outcome;
use crate::sync::{lock, log};

/// The spans of the jobs in flight on one WorkQ.
#[derive(Default)]
pub(super) struct JobSpans {
    /// A span is open. The completion of its job, which comes after the submission, sees this set.
    /// Written under the lock.
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
            let mut spans = lock(&self.spans);
            // A span of a job that ended unseen, if there is one, closes without the lock.
            let before = spans.open.insert(token.as_raw(), span);
            self.any.store(true, Relaxed);
            drop(spans);
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
        self.any.store(!spans.open.is_empty(), Relaxed);
        !spans.completed.is_empty()
    }

    /// Closes the spans of jobs that were completed. The caller is not in the gate.
    #[cold]
    pub(super) fn close(&self) {
        let completed = std::mem::take(&mut lock(&self.spans).completed);
        for (span, outcome) in completed {
            log(|| match outcome {
                Ok(result) => _ = span.record("result", result),
                // It was not begun, and may be submitted anew.
                Err(error) if error.kind() == ErrorKind::Again => {}
                Err(error) => _ = span.record("error", tracing::field::display(error)),
            });
            // Apart: a subscriber may panic in both, and the second within the first would abort.
            log(|| drop(span));
        }
    }
}

/// Closes the spans of jobs whose WorkQ has gone before them.
impl Drop for JobSpans {
    fn drop(&mut self) {
        let open = std::mem::take(&mut lock(&self.spans).open);
        open.into_values().for_each(|span| log(|| drop(span)));
    }
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use support::subscriber::Lines;

    use super::*;
    use crate::device::{CopyJob, Segments};

    #[test]
    fn completions_are_looked_up_while_a_span_is_open() {
        let (spans, device) = (JobSpans::default(), Device::open_default().unwrap());
        let (src, dst) = (Segments::none(), Segments::none());
        let job = CopyJob { src, dst, len: 0 };
        let open = |token| spans.open(&device, Token::from_raw(token), &Job::Copy(&job));
        let complete = |token| spans.complete(Token::from_raw(token), Ok(0));
        let lines = Lines::default();
        tracing::subscriber::with_default(lines.clone(), || {
            (1..=2).for_each(open);
            for (token, any) in [(1, true), (2, false)] {
                assert!(complete(token));
                assert_eq!(spans.any.load(Relaxed), any);
                spans.close();
                assert_eq!(lines.with(&["closes", "result=0"]).len(), token as usize);
            }
            open(3);
            assert!(complete(3), "later ones are looked up as well");
        });
    }
}
