//! All checks of a device, in the order of the duties.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use super::subject::{Kind, Sample, Subject};
use super::{
    a_device_says_the_same_of_itself, armed_completions_ring_once, busy_polls, caps_are_kept,
    completed_memory_is_left_alone, digests_are_known, each_accepted_job_completes_once,
    each_queue_is_new, each_registration_stands_alone, inline_answers_are_over,
    lists_are_gathered_and_scattered, no_completion_is_slept_through,
    retire_keeps_until_nothing_is_in_flight, serves_several_runtimes, sessions_go_on,
    sleeps_and_wakes,
};
use crate::device::{Algorithm, Device, ShaCaps};

/// How long a check waits for something that must come.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Runs every check on a device that copies.
///
/// # Panics
///
/// At the first duty that the provider does not keep, with a sentence that names it.
pub fn dma(device: &Device) {
    all(Subject::copies(device));
}

/// Runs every check on an accelerator, by Jobs of one opcode. Each opcode is a Subject of its own.
///
/// # Panics
///
/// As [`dma`].
pub fn accel(device: &Device, sample: Sample) {
    all(Subject::accel(device, sample));
}

/// Runs every check on a device that hashes: on each algorithm that it has, and by sessions if it has those.
///
/// # Panics
///
/// As [`dma`].
pub fn sha(device: &Device) {
    let whole = Subject::sha(device, Algorithm::Sha256);
    let ShaCaps {
        algorithms,
        sessions,
        ..
    } = whole.sha_caps();
    for &algorithm in algorithms {
        all(Subject::sha(device, algorithm));
        if *sessions {
            all(Subject::sha_parts(device, algorithm));
        }
    }
}

/// Runs every check on a subject.
///
/// # Panics
///
/// As [`dma`].
pub fn all(subject: impl Into<Subject>) {
    let subject = &subject.into();
    a_device_says_the_same_of_itself(subject);
    caps_are_kept(subject);
    each_queue_is_new(subject);
    each_registration_stands_alone(subject);
    each_accepted_job_completes_once(subject);
    completed_memory_is_left_alone(subject);
    lists_are_gathered_and_scattered(subject);
    match subject.kind {
        Kind::Copy | Kind::Sha { .. } => inline_answers_are_over(subject),
        Kind::Accel(_) => {}
    }
    if subject.event_driven() {
        armed_completions_ring_once(subject);
        no_completion_is_slept_through(subject);
    }
    retire_keeps_until_nothing_is_in_flight(subject);
    if subject.in_parts() {
        return sessions_go_on(subject);
    }
    busy_polls(subject);
    if subject.event_driven() {
        sleeps_and_wakes(subject);
        serves_several_runtimes(subject);
    }
    if let Kind::Sha { .. } = subject.kind {
        digests_are_known(subject);
    }
}

/// Runs a check on a thread of its own.
pub(super) fn watched(
    what: &str,
    subject: impl Into<Subject>,
    check: impl FnOnce(&Subject) + Send + 'static,
) {
    let subject = subject.into();
    // Twice: what it waits for itself comes first.
    watched_for(what, 2 * subject.deadline, move || check(&subject));
}

/// Runs a check on a thread of its own: a call that blocks, or a wake-up that is lost, must fail and not hang.
pub(super) fn watched_for(what: &str, deadline: Duration, check: impl FnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel::<()>();
    let checker = thread::spawn(move || {
        let _done = done;
        check();
    });
    // It says nothing, and hangs up at its end, or when it panics.
    if is_done.recv_timeout(deadline) == Err(RecvTimeoutError::Timeout) {
        panic!(
            "{what}: not over within {deadline:?}: a call blocked (duty 7), or a Job's end was not heard of (duties 1 and 5)"
        );
    }
    if let Err(panic) = checker.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Waits for what must come; `what` says what did not.
pub(super) fn wait_for(deadline: Duration, what: &str, mut came: impl FnMut() -> bool) {
    let start = Instant::now();
    while !came() {
        assert!(
            start.elapsed() < deadline,
            "{what}: not within {deadline:?}"
        );
        // Engines of a software device need the CPU too.
        thread::yield_now();
    }
}

/// The depths that are tried: the least, the usual, and a few between, as far as the device goes.
pub(super) fn depths(subject: &Subject) -> Vec<u32> {
    let most = subject.max_depth();
    let mut depths: Vec<u32> = [1, 2, 7, 256].map(|depth: u32| depth.min(most)).into();
    depths.dedup();
    depths
}
