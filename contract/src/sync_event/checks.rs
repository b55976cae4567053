//! The checks of sync events, for a counter of the device on a queue and through the crate.

use std::task::Poll;

use super::counter::a_counter_lies_where_it_was_told;
use super::events::{DEPTH, Events, WAITS, step, watched};
use super::rig::Rig;
use crate::check::{Check, Fits, checks, run_all};
use tokio_doca::device::contract::{Armed, Completion, EventJob, EventWait, Token};
use tokio_doca::error::JobError;
use tokio_doca::{
    Mode, WorkQ,
    sync_event::{Location, SyncEvent},
};

/// Runs every check on a device that has sync events.
///
/// # Panics
///
/// Panics at the first duty that the provider violates, with a sentence that names the duty.
pub fn sync_event(events: impl Into<Events>) {
    run_all(CHECKS, &events.into());
}

/// The checks of sync events.
pub(crate) const CHECKS: &[Check<Events>] = checks![
    |_| Fits::Yes => event_jobs_are_done_in_order, a_counter_lies_where_it_was_told;
    waits =>
        waits_end_once_and_not_before,
        waits_beyond_the_limit_fail,
        a_stopped_event_ends_all;
    waits_signal => armed_waits_signal;
    |_| Fits::Yes => events_busy_poll_and_sleep;
];

fn waits(events: &Events) -> Fits {
    Fits::needs(events.waits(), "waits by the device")
}

fn waits_signal(events: &Events) -> Fits {
    match events.waits() {
        true => Fits::needs(events.caps().event_driven, "completion events"),
        false => waits(events),
    }
}

/// Checks that each Job is done once, in the order of submission, with the right answer.
///
/// # Panics
///
/// Panics if a Job is lost, done twice, done out of order, or returns a wrong answer.
pub fn event_jobs_are_done_in_order(events: impl Into<Events>) {
    watched("event_jobs_are_done_in_order", events, |events| {
        let mut rig = Rig::new(events);
        let mut model = 0_u64;
        for (turn, job) in [
            EventJob::Get,
            EventJob::Set(5),
            EventJob::Add(7),
            EventJob::Get,
            EventJob::Add(u64::MAX),
            EventJob::Set(u64::MAX),
            EventJob::Add(3),
            EventJob::Get,
        ]
        .into_iter()
        .cycle()
        .take(64)
        .enumerate()
        {
            let answer = step(&mut model, job);
            assert_eq!(
                rig.job(job),
                Ok(answer),
                "duty 1: what {job:?} answers (turn {turn})"
            );
        }
        // Submits all jobs in one batch.
        let jobs: Vec<(Token, EventJob)> = (0..DEPTH)
            .map(|index| {
                let job = [EventJob::Add(index.into()), EventJob::Get][index as usize % 2];
                (rig.token(0, index), job)
            })
            .collect();
        let submitted = rig.submit(&jobs);
        assert_eq!(
            submitted.accepted,
            jobs.len(),
            "duty 3: as many Jobs as the queue is deep"
        );
        let done = rig.reaped(jobs.len());
        for ((token, job), done) in jobs.into_iter().zip(done) {
            let expected = Completion::new(token, Ok(step(&mut model, job)));
            assert_eq!(done, expected, "duty 1: {job:?} in its turn");
        }
        rig.quiet("a Job completes twice");
        rig.end();
    });
}

/// Checks that a wait ends once the masked value is greater than the threshold, and not before. A
/// wait that was cancelled must not end.
///
/// # Panics
///
/// Panics if a wait ends early, late, twice, or with a value that does not end it.
pub fn waits_end_once_and_not_before(events: impl Into<Events>) {
    watched("waits_end_once_and_not_before", events, |events| {
        let mut rig = Rig::new(events);
        let waits = WAITS.min(events.caps().max_waits);
        for _ in 0..3 {
            rig.set(0);
            let tokens: Vec<Token> = (0..waits)
                .map(|index| rig.wait(index, u64::from(index) + 3, u64::MAX))
                .collect();
            rig.set(3);
            rig.quiet("a wait ends although the value is not greater");
            for (index, &token) in tokens.iter().enumerate() {
                let value = index as u64 + 4;
                rig.set(value);
                let done = rig.reaped(1).remove(0);
                let expected = Completion::new(token, Ok(value));
                assert_eq!(
                    done, expected,
                    "duty 1: the wait that the value ends, and the value"
                );
                rig.quiet("a wait ends twice, or another one with it");
            }
        }
        // This wait is complete before it begins.
        let token = rig.wait(0, 0, u64::MAX);
        assert_eq!(
            rig.reaped(1)[0].token,
            token,
            "duty 1: a wait that is over when it begins"
        );
        rig.set(0xf0);
        let token = rig.wait(0, 2, 0xff00);
        rig.quiet("the mask of a wait is not regarded");
        rig.set(0x300);
        let done = rig.reaped(1).remove(0);
        let result = match events.limit() {
            Some(limit) if limit < 0x300 => Err(JobError::event_too_high(0x300, limit)),
            _ => Ok(0x300),
        };
        assert_eq!(
            done,
            Completion::new(token, result),
            "duty 1: the mask of a wait"
        );
        // A canceled wait never ends.
        rig.set(0);
        let token = rig.wait(0, 0, u64::MAX);
        rig.port.cancel(token);
        rig.set(1);
        rig.quiet("a wait ends that was cancelled");
        let wait = EventWait {
            threshold: 0,
            mask: u64::MAX,
        };
        match rig.port.try_wait(&wait) {
            None | Some(Poll::Ready(Ok(1))) => {}
            other => panic!("duty 4: try_wait answers {other:?} of a wait that is over"),
        }
        rig.end();
    });
}

/// Checks that a wait fails if it finds a value beyond the device's limit, whether at its start or
/// later. A device without a limit passes.
///
/// # Panics
///
/// Panics if such a wait continues, succeeds, or fails with another error.
pub fn waits_beyond_the_limit_fail(events: impl Into<Events>) {
    watched("waits_beyond_the_limit_fail", events, |events| {
        let Some(limit) = events.limit() else {
            return;
        };
        let mut rig = Rig::new(events);
        let too_high = JobError::event_too_high(limit + 1, limit);
        rig.set(limit);
        rig.wait(0, limit, u64::MAX);
        rig.quiet("a wait ends although the value is not greater");
        rig.set(limit + 1);
        let end = rig.reaped(1).remove(0).result;
        assert_eq!(
            end,
            Err(too_high),
            "event duty: what a wait ends with when the value exceeds the limit"
        );
        // With a mask of 0 the value is hidden, but the limit applies to the unmasked value.
        for mask in [u64::MAX, 0] {
            let token = rig.token(1, 0);
            let wait = EventWait { threshold: 0, mask };
            let end = match rig.port.wait(token, wait) {
                Ok(()) => rig.reaped(1).remove(0).result,
                Err(refused) => Err(refused),
            };
            assert_eq!(
                end,
                Err(too_high),
                "event duty: what a wait fails with that begins beyond the limit (mask {mask:#x})"
            );
            match rig.port.try_wait(&wait) {
                None => {}
                Some(Poll::Ready(Err(error))) if error == too_high => {}
                other => panic!("event duty: try_wait returns {other:?} beyond the limit"),
            }
        }
        rig.end();
    });
}

/// Checks that `stop` ends all waits, and that later jobs fail.
///
/// # Panics
///
/// Panics if a wait or a later job does not fail.
pub fn a_stopped_event_ends_all(events: impl Into<Events>) {
    watched("a_stopped_event_ends_all", events, |events| {
        let mut rig = Rig::new(events);
        rig.wait(
            0,
            1000_u64.min(events.caps().max_wait.unwrap_or(0)),
            u64::MAX,
        );
        rig.counter.stop();
        let end = rig.reaped(1).remove(0).result;
        assert_eq!(
            end,
            Err(JobError::event_stopped()),
            "event duty: what a wait ends with when the event is stopped"
        );
        for job in [EventJob::Get, EventJob::Set(1), EventJob::Add(1)] {
            assert!(
                rig.counter.perform(job).is_err(),
                "event duty: {job:?} of an event that was stopped"
            );
            assert!(
                rig.job(job).is_err(),
                "event duty: {job:?} on the queue, of an event that was stopped"
            );
        }
        rig.end();
    });
}

/// Checks duty 5: a wait that ends signals if the queue is armed, and not otherwise.
///
/// # Panics
///
/// Panics if a signal is missing, or if there is one too many.
pub fn armed_waits_signal(events: impl Into<Events>) {
    watched("armed_waits_signal", events, |events| {
        let mut rig = Rig::new(events);
        for turn in 0..20_u64 {
            rig.set(0);
            rig.wait(0, turn, u64::MAX);
            if rig.queue.arm() == Armed::Ready {
                rig.quiet("arm says that a completion waits, and a wait ends that is not over");
            }
            rig.signals.count();
            rig.set(turn);
            rig.quiet("a wait ends although the value is not greater");
            rig.queue.arm();
            rig.signals.count();
            rig.set(turn + 1);
            let signals = rig.signals.wait_for_one(rig.deadline);
            assert!(
                signals > 0,
                "duty 5: no signal for a wait that has completed"
            );
            rig.queue.clear();
            rig.reaped(1);
            // This wait ends while the queue is not armed.
            rig.signals.count();
            rig.set(0);
            rig.wait(0, turn, u64::MAX);
            rig.set(turn + 1);
            rig.reaped(1);
            assert_eq!(
                rig.signals.count(),
                0,
                "duty 5: a signal that no caller armed for"
            );
        }
        rig.end();
    });
}

/// Checks all duties together: the provider under a WorkQ, by busy-polling and, if it can signal,
/// event-driven.
///
/// # Panics
///
/// Panics if a wake-up is lost.
pub fn events_busy_poll_and_sleep(events: impl Into<Events>) {
    watched("events_busy_poll_and_sleep", events, |events| {
        let cpu = Location::Cpu(&events.device);
        let turns = async |event: &SyncEvent| {
            for turn in 0..100 {
                let threshold = 2 * turn;
                let (seen, before) =
                    futures::future::join(event.wait_gt(threshold), event.add(2)).await;
                assert_eq!(before, Ok(threshold), "what an add answers");
                assert!(
                    seen.is_ok_and(|seen| seen > threshold),
                    "what a wait answers"
                );
                drop(event.wait_gt(254).start());
            }
            event.workq().shutdown().await.expect("nothing hinders it");
        };
        let event = |mode| {
            let workq = WorkQ::builder()
                .depth(DEPTH)
                .mode(mode)
                .build()
                .expect("a WorkQ");
            let builder = SyncEvent::builder().publisher(cpu).subscriber(cpu);
            (builder.waits(2).attach(&workq).expect("an event"), workq)
        };
        let (busy, workq) = event(Mode::BusyPoll);
        workq.block_on(turns(&busy));
        if events.caps().event_driven {
            let runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = { runtime }.enable_io().build().expect("a runtime");
            runtime.block_on(turns(&event(Mode::EventDriven).0));
        }
    });
}
