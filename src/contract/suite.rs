//! All checks of a device, in the order of the duties.

use crate::contract::checks::{
    a_device_says_the_same_of_itself, a_job_of_an_unknown_kind_is_refused,
    armed_completions_ring_once, busy_polls, caps_are_kept, completed_memory_is_left_alone,
    crcs_are_known, digests_are_known, each_accepted_job_completes_once, each_queue_is_new,
    each_registration_stands_alone, inline_answers_are_over, lists_are_gathered_and_scattered,
    no_completion_is_slept_through, retire_keeps_until_nothing_is_in_flight,
    serves_several_runtimes, sessions_go_on, sleeps_and_wakes,
};
use crate::contract::rig::{Kind, Sample, Subject};
use crate::device::{Algorithm, Device, ShaCaps};

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

/// Runs every check on a device that hashes: on each algorithm that it has, and by sessions if it
/// has those.
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

/// Runs every check on a device that computes CRCs: alone, and together with copies.
///
/// # Panics
///
/// As [`dma`].
pub fn crc(device: &Device) {
    all(Subject::crc(device));
    all(Subject::copy_crc(device));
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
    a_job_of_an_unknown_kind_is_refused(subject);
    inline_answers_are_over(subject);
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
    if let Kind::Crc { .. } = subject.kind {
        crcs_are_known(subject);
    }
}
