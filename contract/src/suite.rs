//! Runs all checks of a device, in the order of the duties.

use crate::check::{Check, Fits, checks, run_all};
use crate::checks::{
    a_device_says_the_same_of_itself, a_job_of_an_unknown_kind_is_refused,
    armed_completions_signal_once, busy_polls, caps_are_kept, completed_memory_is_left_alone,
    crcs_are_known, digests_are_known, each_accepted_job_completes_once, each_queue_is_new,
    each_registration_stands_alone, inline_jobs_are_complete, lists_are_gathered_and_scattered,
    no_completion_is_slept_through, retire_keeps_until_nothing_is_in_flight,
    serves_several_runtimes, sessions_go_on, sleeps_and_wakes,
};
use crate::rig::{Kind, Sample, Subject};
use tokio_doca::device::{Algorithm, Device, ShaCaps};

/// Runs every check on a device that copies.
///
/// # Panics
///
/// Panics at the first duty that the provider violates, with a sentence that names the duty.
pub fn dma(device: &Device) {
    all(Subject::copies(device));
}

/// Runs every check on an accelerator, with Jobs of one opcode. Call it once for each opcode.
///
/// # Panics
///
/// Panics as [`dma`] does.
pub fn accel(device: &Device, sample: Sample) {
    all(Subject::accel(device, sample));
}

/// Runs every check on a device that hashes: with each of its algorithms, and with sessions if it
/// has them.
///
/// # Panics
///
/// Panics as [`dma`] does.
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

/// Runs every check on a device that computes CRCs: without copies, and together with copies.
///
/// # Panics
///
/// Panics as [`dma`] does.
pub fn crc(device: &Device) {
    all(Subject::crc(device));
    all(Subject::copy_crc(device));
}

/// Runs every check on a subject.
///
/// # Panics
///
/// Panics as [`dma`] does.
pub fn all(subject: impl Into<Subject>) {
    run_all(CHECKS, &subject.into());
}

/// The checks of a queue and its jobs.
pub(super) const CHECKS: &[Check<Subject>] = checks![
    |_| Fits::Yes =>
        a_device_says_the_same_of_itself,
        caps_are_kept,
        each_queue_is_new,
        each_registration_stands_alone,
        each_accepted_job_completes_once,
        completed_memory_is_left_alone,
        lists_are_gathered_and_scattered,
        a_job_of_an_unknown_kind_is_refused,
        inline_jobs_are_complete;
    signals => armed_completions_signal_once, no_completion_is_slept_through;
    |_| Fits::Yes => retire_keeps_until_nothing_is_in_flight;
    |subject| Fits::only(subject.in_parts()) => sessions_go_on;
    |subject| Fits::only(!subject.in_parts()) => busy_polls;
    whole_and_signals => sleeps_and_wakes, serves_several_runtimes;
    |subject| Fits::only(is_whole_hash(subject)) => digests_are_known;
    |subject| Fits::only(matches!(subject.kind, Kind::Crc { .. })) => crcs_are_known;
];

fn signals(subject: &Subject) -> Fits {
    Fits::needs(subject.event_driven(), "completion events")
}

fn whole_and_signals(subject: &Subject) -> Fits {
    match subject.in_parts() {
        true => Fits::No,
        false => signals(subject),
    }
}

fn is_whole_hash(subject: &Subject) -> bool {
    matches!(subject.kind, Kind::Sha { parts: false, .. })
}
