//! Tests of the contract suite, called from another crate: on a provider that keeps the contract,
//! on the example's provider, and on one that sins against one duty at a time, which the suite must
//! detect and name.

use outside_provider::{FILL, Outside, Sin, XOR};
use support::sins;
use tokio_doca::device::Device;
use tokio_doca::device::contract::Provider;
use tokio_doca::sha::Algorithm;
use tokio_doca_contract::{self as contract, Outcome, Sample, Subject, selftest};

#[path = "../../../examples/custom_provider.rs"]
#[allow(dead_code, reason = "its main runs as an example")]
mod custom_provider;

fn xor(opcode: u32, key: u8) -> Sample {
    Sample::transforms(opcode, key.into(), move |src, _room| {
        src.iter().map(|byte| byte ^ key).collect()
    })
}

#[test]
fn a_provider_of_another_crate_keeps_the_contract() {
    let outside = Outside::new(Sin::None);
    contract::dma(&outside.device());
    contract::sha(&outside.device());
    contract::crc(&outside.device());
    contract::accel(&outside.device(), xor(XOR, 0x5a));
    let fill = Sample::writes(FILL, 0x77, |room| vec![0x77; room]);
    contract::accel(&outside.device(), fill);
}

#[test]
fn a_provider_of_another_crate_never_sees_a_refused_job() {
    let outside = Outside::new(Sin::None);
    let parts = Subject::sha_parts(&outside.device(), Algorithm::Sha256);
    let crc = Subject::copy_crc(&outside.device());
    for subject in subjects(&outside.device()).into_iter().chain([parts, crc]) {
        contract::a_refused_job_was_never_seen(subject, &mut || outside.refuse_next());
    }
}

#[test]
fn the_provider_of_the_example_keeps_the_contract() {
    let accelerators = custom_provider::Accelerators::default();
    let info = accelerators.devices().unwrap().remove(0);
    let device = accelerators.open(&info).unwrap();
    assert_eq!(device, accelerators.open(&info).unwrap());
    contract::accel(&device, xor(custom_provider::XOR, 0xc3));
    // Computes the CRC bit by bit from the front; the device computes it byte by byte from the
    // back.
    let crc = |bytes: &[u8]| {
        let bits = bytes
            .iter()
            .flat_map(|byte| (0..8).map(move |bit| byte >> bit & 1));
        let crc = bits.fold(u32::MAX, |crc, bit| {
            let top = (crc >> 31) as u8 ^ bit;
            (crc << 1) ^ if top == 1 { 0x04c1_1db7 } else { 0 }
        });
        u64::from(!crc.reverse_bits())
    };
    assert_eq!(crc(b"123456789"), 0xcbf4_3926);
    contract::accel(&device, Sample::reads(custom_provider::CRC32, 0, crc));
}

/// Returns subjects for copies, for hashes and for the device's own XOR.
fn subjects(device: &Device) -> [Subject; 3] {
    let accel = Subject::accel(device, xor(XOR, 0x5a));
    let sha = Subject::sha(device, Algorithm::Sha256);
    [Subject::copies(device), sha, accel]
}

/// Runs a check on each kind of job of a provider that sins: it must fail, and name the duty.
#[track_caller]
fn found(sin: Sin, duty: &str, check: impl Fn(Subject)) {
    for kind in 0..3 {
        sins::found(sin, duty, |deadline| {
            let subjects = subjects(&Outside::new(sin).device());
            check(subjects[kind].clone().deadline(deadline));
        });
    }
}

/// Checks that a self-test of a provider that sins reports this check as failed, and names the
/// duty.
#[track_caller]
fn told(sin: Sin, subject: &str, check: &str, duty: &str) {
    sins::found(sin, duty, |deadline| {
        let test = selftest(&Outside::new(sin).device()).deadline(deadline);
        let is_it = |it: &Outcome| (&*it.subject, it.check) == (subject, check);
        let told = { test }.find(|outcome| is_it(outcome) && outcome.verdict.is_failure());
        if let Some(failure) = told {
            panic!("{failure}");
        }
    });
}

#[test]
fn a_self_test_tells_which_duty_is_not_kept() {
    let (copies, once) = ("copies", "each_accepted_job_completes_once");
    told(Sin::CompletesTwice, copies, once, "duty 1");
    told(
        Sin::ChangesItsMind,
        copies,
        "a_device_says_the_same_of_itself",
        "adapter duty 3",
    );
    told(Sin::WrongDigest, "SHA-1", once, "duties 1");
    told(Sin::BlocksInReap, copies, once, "duty 7");
}

#[test]
fn a_self_test_fails_no_check_of_a_provider_that_keeps_the_contract() {
    let outcomes: Vec<_> = selftest(&Outside::new(Sin::None).device()).collect();
    for outcome in &outcomes {
        assert!(!outcome.verdict.is_failure(), "{outcome}");
    }
    assert!(outcomes.len() > 40, "{}", outcomes.len());
}

#[test]
fn duty_1_a_lost_completion_is_found() {
    found(Sin::LosesOne, "duty 1", |subject| {
        contract::each_accepted_job_completes_once(subject)
    });
}

#[test]
fn duty_1_a_second_completion_is_found() {
    found(Sin::CompletesTwice, "duty 1", |subject| {
        contract::each_accepted_job_completes_once(subject)
    });
}

#[test]
fn duty_1_a_forged_token_is_found() {
    found(Sin::ForgesToken, "duty 1", |subject| {
        contract::each_accepted_job_completes_once(subject)
    });
}

#[test]
fn duty_1_a_wrong_count_is_found() {
    found(Sin::Miscounts, "duty 1", |subject| {
        contract::each_accepted_job_completes_once(subject)
    });
}

#[test]
fn duty_1_a_missing_byte_is_found() {
    found(Sin::WritesTooLittle, "duties 1", |subject| {
        contract::each_accepted_job_completes_once(subject)
    });
    found(Sin::WritesTooLittle, "duties 1", |subject| {
        contract::lists_are_gathered_and_scattered(subject)
    });
}

#[test]
fn duty_1_completions_that_were_not_written_down_are_found() {
    found(Sin::CountsTooMany, "duty 1", |subject| {
        contract::each_accepted_job_completes_once(subject)
    });
}

/// Runs a check on hashes of a provider that sins, for each algorithm, whole or in parts: it must
/// fail, and name the duty.
#[track_caller]
fn found_in_hashes(sin: Sin, in_parts: bool, duty: &str, check: impl Fn(Subject)) {
    for algorithm in Algorithm::ALL {
        sins::found(sin, duty, |deadline| {
            let device = Outside::new(sin).device();
            let subject = match in_parts {
                true => Subject::sha_parts(&device, algorithm),
                false => Subject::sha(&device, algorithm),
            };
            check(subject.deadline(deadline));
        });
    }
}

#[test]
fn duty_1_a_wrong_digest_is_found() {
    for in_parts in [false, true] {
        found_in_hashes(Sin::WrongDigest, in_parts, "duties 1", |subject| {
            contract::each_accepted_job_completes_once(subject)
        });
    }
    found_in_hashes(Sin::WrongDigest, false, "duty 1", |subject| {
        contract::digests_are_known(subject)
    });
}

#[test]
fn duty_1_a_byte_that_is_skipped_at_a_boundary_is_found() {
    for in_parts in [false, true] {
        found_in_hashes(Sin::SkipsAtABoundary, in_parts, "duties 1", |subject| {
            contract::lists_are_gathered_and_scattered(subject)
        });
    }
    found_in_hashes(Sin::SkipsAtABoundary, false, "duty 1", |subject| {
        contract::digests_are_known(subject)
    });
    found_in_hashes(Sin::SkipsAtABoundary, true, "duty 1", |subject| {
        contract::sessions_go_on(subject)
    });
}

#[test]
fn duty_1_a_session_that_is_forgotten_is_found() {
    found_in_hashes(Sin::ForgetsTheSession, true, "duties 1", |subject| {
        contract::each_accepted_job_completes_once(subject)
    });
    found_in_hashes(Sin::ForgetsTheSession, true, "duty 1", |subject| {
        contract::sessions_go_on(subject)
    });
}

#[test]
fn duty_1_sessions_that_are_mixed_up_are_found() {
    found_in_hashes(Sin::MixesSessions, true, "duties 1", |subject| {
        contract::each_accepted_job_completes_once(subject)
    });
}

#[test]
fn duty_1_a_part_that_is_hashed_twice_is_found() {
    found_in_hashes(Sin::HashesTwice, true, "duties 1", |subject| {
        contract::each_accepted_job_completes_once(subject)
    });
    found_in_hashes(Sin::HashesTwice, true, "duty 1", |subject| {
        contract::sessions_go_on(subject)
    });
}

#[test]
fn duty_1_a_part_that_completes_twice_or_not_at_all_is_found() {
    for sin in [Sin::CompletesTwice, Sin::LosesOne, Sin::Miscounts] {
        found_in_hashes(sin, true, "duty 1", |subject| {
            contract::each_accepted_job_completes_once(subject)
        });
    }
}

/// Runs a check on CRCs of a provider that sins, with and without a copy: it must fail, and name
/// the duty.
#[track_caller]
fn found_in_crcs(sin: Sin, duty: &str, check: impl Fn(Subject)) {
    for subject in [Subject::crc, Subject::copy_crc] {
        sins::found(sin, duty, |deadline| {
            check(subject(&Outside::new(sin).device()).deadline(deadline));
        });
    }
}

#[test]
fn duty_1_a_wrong_crc_is_found() {
    for sin in [Sin::WrongCrc, Sin::IgnoresTheSeed] {
        found_in_crcs(sin, "duty 1", |subject| {
            contract::each_accepted_job_completes_once(subject)
        });
        found_in_crcs(sin, "duty 1", contract::crcs_are_known);
    }
}

#[test]
fn duty_1_a_crc_that_is_not_compared_is_found() {
    found_in_crcs(Sin::PassesAnyCrc, "duty 1", |subject| {
        contract::crcs_are_known(subject)
    });
}

#[test]
fn duty_1_a_crc_that_is_lost_or_of_too_few_bytes_is_found() {
    for sin in [
        Sin::LosesOne,
        Sin::CompletesTwice,
        Sin::Miscounts,
        Sin::WritesTooLittle,
    ] {
        found_in_crcs(sin, "duty", |subject| {
            contract::each_accepted_job_completes_once(subject)
        });
    }
}

#[test]
fn duty_2_a_late_write_is_found() {
    found(Sin::WritesLate, "duties", |subject| {
        contract::completed_memory_is_left_alone(subject)
    });
}

#[test]
fn duty_2_an_early_completion_is_found() {
    found(Sin::CompletesEarly, "duties 1 and 2", |subject| {
        contract::completed_memory_is_left_alone(subject)
    });
}

#[test]
fn duty_3_a_refused_job_that_was_done_is_found() {
    for kind in 0..3 {
        sins::found(Sin::DoesTheRefused, "duties 2, 3", |deadline| {
            let outside = Outside::new(Sin::DoesTheRefused);
            let subject = subjects(&outside.device())[kind].clone().deadline(deadline);
            contract::a_refused_job_was_never_seen(subject, &mut || outside.refuse_next());
        });
    }
}

#[test]
fn duty_3_a_refused_part_that_was_hashed_is_found() {
    sins::found(Sin::DoesTheRefused, "duties 1 and 2", |deadline| {
        let outside = Outside::new(Sin::DoesTheRefused);
        let parts = Subject::sha_parts(&outside.device(), Algorithm::Sha256).deadline(deadline);
        contract::a_refused_job_was_never_seen(parts, &mut || outside.refuse_next());
    });
}

#[test]
fn duty_3_a_job_of_any_kind_that_is_taken_is_found() {
    found(Sin::TakesAnyKind, "duty 3", |subject| {
        contract::a_job_of_an_unknown_kind_is_refused(subject)
    });
}

#[test]
fn duty_3_a_refusal_of_nothing_is_found() {
    found(Sin::RefusesNothing, "duty 3", |subject| {
        contract::each_accepted_job_completes_once(subject)
    });
}

#[test]
fn duty_3_a_refusal_for_ever_is_found() {
    found(Sin::RefusesForEver, "duty 3", |subject| {
        contract::each_accepted_job_completes_once(subject)
    });
}

#[test]
fn duty_4_an_inline_job_that_was_begun_is_found() {
    for sin in [Sin::BeginsInline, Sin::MiscountsInline] {
        for kind in 0..2 {
            sins::found(sin, "duty 4", |deadline| {
                let subjects = subjects(&Outside::new(sin).device());
                contract::inline_jobs_are_complete(subjects[kind].clone().deadline(deadline));
            });
        }
    }
}

#[test]
fn duty_5_a_ring_too_many_is_found() {
    found(Sin::SignalsUnasked, "duty 5", |subject| {
        contract::armed_completions_signal_once(subject)
    });
}

#[test]
fn duty_5_a_ring_too_few_is_found() {
    found(Sin::NeverSignals, "duty 5", |subject| {
        contract::armed_completions_signal_once(subject)
    });
}

#[test]
fn duty_5_a_waiting_completion_that_arm_hides_is_found() {
    found(Sin::ArmsBlindly, "duty 5", |subject| {
        contract::armed_completions_signal_once(subject)
    });
    found(Sin::ReadyUnarmed, "duty 5", |subject| {
        contract::armed_completions_signal_once(subject)
    });
}

#[test]
fn duty_6_what_is_never_dropped_is_found() {
    found(Sin::KeepsForEver, "duty 6", |subject| {
        contract::retire_keeps_until_nothing_is_in_flight(subject)
    });
}

#[test]
fn duty_6_what_is_dropped_early_is_found() {
    found(Sin::DropsEarly, "6", |subject| {
        contract::retire_keeps_until_nothing_is_in_flight(subject)
    });
}

#[test]
fn duty_7_a_call_that_blocks_is_found() {
    found(Sin::BlocksInReap, "duty 7", |subject| {
        contract::each_accepted_job_completes_once(subject)
    });
}

#[test]
fn adapter_duty_1_a_queue_that_is_not_new_is_found() {
    found(Sin::SharesOneQueue, "adapter duty 1", |subject| {
        contract::each_queue_is_new(subject)
    });
}

#[test]
fn adapter_duty_3_a_device_that_changes_its_mind_is_found() {
    found(Sin::ChangesItsMind, "adapter duty 3", |subject| {
        contract::a_device_says_the_same_of_itself(subject)
    });
}

#[test]
fn registrar_duty_1_a_key_of_other_memory_is_found() {
    for sin in [Sin::MixesUpKeys, Sin::ForgetsOthers] {
        found(sin, "registrar duties 1 and 2", |subject| {
            contract::each_registration_stands_alone(subject)
        });
    }
}
