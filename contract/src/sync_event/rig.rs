//! A sync event on a queue, driven as a WorkQ would.
#![expect(
    unsafe_code,
    reason = "reaps from a queue, and retires it, as the reactor does"
)]

use std::sync::Arc;
use std::time::Duration;

use super::events::{DEPTH, Events, WAITS};
use crate::rig::{Signals, wait_for};
use tokio_doca::device::contract::{
    Completion, EventConfig, EventCounter, EventJob, EventPort, EventWait, Job, Processor, Queue,
    QueueConfig, Signal, Submitted, Token,
};
use tokio_doca::error::JobError;

/// A sync event under test, and its queue.
pub(super) struct Rig {
    pub(super) queue: Arc<dyn Queue>,
    pub(super) counter: Arc<dyn EventCounter>,
    pub(super) port: Arc<dyn EventPort>,
    pub(super) signals: Signals,
    pub(super) deadline: Duration,
    generation: u32,
}

impl Rig {
    pub(super) fn new(events: &Events) -> Rig {
        let adapter = events.device.adapter();
        let signal = Arc::new(Signal::new().expect("an eventfd"));
        let queue = adapter.open_queue(QueueConfig::new(DEPTH, Arc::clone(&signal)));
        let queue = queue.expect("a queue");
        let counter = adapter.open_event(EventConfig::new(Processor::Cpu, Processor::Cpu));
        let counter = counter.expect("a sync event");
        let waits = WAITS.min(events.caps().max_waits);
        let port = queue.open_event_port(&counter, waits).expect("a port");
        Rig {
            signals: Signals::new(&*queue, signal),
            queue,
            counter,
            port,
            deadline: events.deadline,
            generation: 0,
        }
    }

    fn reap(&self) -> Vec<Completion> {
        let mut out = [Completion::new(Token::from_raw(u64::MAX), Ok(0)); 64];
        // SAFETY: only this thread uses the queue.
        let count = unsafe { self.queue.reap(&mut out) };
        assert!(
            count <= out.len(),
            "duty 7: more completions are counted than there was room for"
        );
        out[..count].to_vec()
    }

    /// Reaps until there are exactly `count` completions.
    pub(super) fn reaped(&self, count: usize) -> Vec<Completion> {
        let mut all = Vec::new();
        wait_for(self.deadline, "duty 1: a completion", || {
            all.extend(self.reap());
            all.len() >= count
        });
        assert_eq!(
            all.len(),
            count,
            "duty 1: something completes that was not asked for, or twice"
        );
        all
    }

    /// Polls the queue many times, and checks that nothing more completes.
    pub(super) fn quiet(&self, what: &str) {
        for _ in 0..200 {
            let more = self.reap();
            assert!(more.is_empty(), "duty 1: {what}: {more:?}");
        }
    }

    pub(super) fn token(&mut self, table: u32, index: u32) -> Token {
        self.generation += 1;
        Token::new(table, index, self.generation)
    }

    pub(super) fn wait(&mut self, index: u32, threshold: u64, mask: u64) -> Token {
        let token = self.token(1, index);
        let wait = EventWait { threshold, mask };
        self.port
            .wait(token, wait)
            .expect("duty 3: a wait within the limits is taken");
        token
    }

    pub(super) fn set(&self, value: u64) {
        let set = self.counter.perform(EventJob::Set(value));
        assert_eq!(set, Ok(value), "duty 1: what a set answers");
    }

    /// Submits jobs, under Tokens that are not in flight, in one batch.
    pub(super) fn submit(&self, jobs: &[(Token, EventJob)]) -> Submitted {
        let jobs: Vec<_> = jobs.iter().map(|(at, job)| (*at, job.into())).collect();
        // SAFETY: the jobs name no memory.
        unsafe { self.port.submit(&jobs) }
    }

    /// Performs a job inline if the device does that, otherwise through the queue.
    pub(super) fn job(&mut self, job: EventJob) -> Result<u64, JobError> {
        // SAFETY: the job names no memory.
        if let Some(done) = unsafe { self.port.try_inline(Job::Event(&job)) } {
            return done;
        }
        let token = self.token(0, 0);
        let submitted = self.submit(&[(token, job)]);
        assert_eq!(
            (submitted.accepted, submitted.refused),
            (1, None),
            "duty 3: a Job within the limits is taken"
        );
        let done = self.reaped(1).remove(0);
        assert_eq!(done.token, token, "duty 1: the Token of a completion");
        done.result
    }

    pub(super) fn end(self) {
        self.port.retire();
        self.quiet("after the port was retired");
        drop(self.port);
        // SAFETY: nothing of the queue is in flight, and nothing submits or reaps any more.
        unsafe { self.queue.retire(Arc::new(()), 0) };
    }
}
