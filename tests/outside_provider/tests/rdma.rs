//! Tests of the contract suite for remote operations, called from another crate: on a device that
//! sins against one duty at a time, which the suite must detect and name.

use outside_provider::rdma::{RdmaSin, sinful};
use support::loopback::Loopback;
use support::sins;
use tokio_doca::soft::Soft;
use tokio_doca_contract::{self as contract, Peers};

#[test]
fn a_device_around_another_one_keeps_the_contract() {
    let soft = Soft::builder().build().open("pf0").unwrap();
    for device in [Loopback::device(true).1, soft] {
        contract::rdma(&sinful(&device, RdmaSin::None));
    }
}

/// Runs a check on a device that sins: it must fail, and name the duty.
#[track_caller]
fn found(sin: RdmaSin, duty: &str, check: fn(Peers)) {
    sins::found(sin, duty, |deadline| {
        let device = sinful(&Loopback::device(true).1, sin);
        check(Peers::from(&device).deadline(deadline));
    });
}

#[test]
fn duty_1_what_ends_twice_or_never_is_found() {
    for sin in [
        RdmaSin::LosesAJob,
        RdmaSin::LosesAReceive,
        RdmaSin::JobTwice,
        RdmaSin::ReceiveTwice,
    ] {
        found(sin, "duty 1", contract::remote_operations_complete_in_order);
    }
}

#[test]
fn duty_1_another_order_is_found() {
    for sin in [
        RdmaSin::SwapsJobs,
        RdmaSin::SwapsReceives,
        RdmaSin::Overtakes,
    ] {
        found(
            sin,
            "endpoint duty 1",
            contract::remote_operations_complete_in_order,
        );
    }
}

#[test]
fn duty_1_another_answer_is_found() {
    for sin in [
        RdmaSin::Miscounts,
        RdmaSin::MiscountsReceives,
        RdmaSin::LosesImmediates,
        RdmaSin::WrongOpcode,
    ] {
        found(
            sin,
            "endpoint duty 1",
            contract::remote_operations_complete_in_order,
        );
    }
}

#[test]
fn duty_1_bytes_that_are_wrong_are_found() {
    for sin in [
        RdmaSin::ImmediateWithoutData,
        RdmaSin::WrongByte,
        RdmaSin::WrongMessage,
        RdmaSin::WritesTooMuch,
        RdmaSin::AtomicWithoutEffect,
        RdmaSin::SwapsAlways,
        RdmaSin::FirstPieceOnly,
    ] {
        found(sin, "dut", contract::remote_operations_complete_in_order);
    }
}

#[test]
fn duty_1_a_message_that_does_not_wait_for_its_receive_is_found() {
    found(RdmaSin::NeverWaits, "dut", contract::receives_may_come_late);
}

#[test]
fn duty_2_a_late_write_is_found() {
    for sin in [RdmaSin::WritesLate, RdmaSin::ReceivesLate] {
        found(sin, "dut", contract::remote_operations_complete_in_order);
    }
}

#[test]
fn duty_3_a_refusal_for_ever_is_found() {
    found(
        RdmaSin::RefusesForEver,
        "duty 3",
        contract::remote_operations_complete_in_order,
    );
}

#[test]
fn duty_3_a_refused_job_that_was_done_is_found() {
    found(RdmaSin::DoesTheRefused, "duty 3", |peers| {
        contract::a_refused_operation_was_never_seen(peers, &mut || {})
    });
}

#[test]
fn duty_4_an_inline_job_that_was_begun_is_found() {
    for sin in [RdmaSin::BeginsInline, RdmaSin::MiscountsInline] {
        found(sin, "duty 4", contract::remote_operations_complete_in_order);
    }
}

#[test]
fn duty_4_a_batch_that_is_answered_otherwise_than_it_was_done_is_found() {
    for sin in [RdmaSin::BeginsInBatch, RdmaSin::SkipsInBatch] {
        found(sin, "duty 4", contract::remote_operations_complete_in_order);
    }
    let check = contract::failures_flush_what_is_behind_them;
    found(RdmaSin::GoesOnInBatch, "duty 4", check);
}

#[test]
fn duty_5_a_ring_too_many_or_too_few_is_found() {
    for sin in [RdmaSin::SignalsUnasked, RdmaSin::NeverSignals] {
        found(sin, "duty 5", contract::armed_messages_signal_once);
    }
    for sin in [RdmaSin::NeverSignals, RdmaSin::ArmsBlindly] {
        found(sin, "duty 5", contract::no_message_is_slept_through);
    }
}

#[test]
fn duty_6_what_is_dropped_early_or_never_is_found() {
    for sin in [RdmaSin::KeepsForEver, RdmaSin::DropsEarly] {
        found(sin, "6", contract::retired_receives_are_left_alone);
    }
}

#[test]
fn duty_7_a_call_that_blocks_is_found() {
    found(RdmaSin::BlocksInReset, "duty 7", contract::a_reset_ends_all);
    found(
        RdmaSin::TellsInALock,
        "duty 7",
        contract::remote_operations_complete_in_order,
    );
}

#[test]
fn endpoint_duty_2_a_failure_that_is_not_told_is_found() {
    for sin in [
        RdmaSin::StaysConnected,
        RdmaSin::NeverTells,
        RdmaSin::ForgetsReceives,
        RdmaSin::AnotherCause,
        RdmaSin::WaitsForEver,
        RdmaSin::PostsInError,
    ] {
        let check = contract::failures_flush_what_is_behind_them;
        let duty = match sin {
            RdmaSin::NeverTells => "`changed`",
            _ => "endpoint duty 2",
        };
        found(sin, duty, check);
    }
}

#[test]
fn endpoint_duty_2_a_permission_that_was_not_given_is_found() {
    found(
        RdmaSin::PermitsAll,
        "endpoint duty 2",
        contract::permissions_are_kept,
    );
}

#[test]
fn endpoint_duty_3_a_reset_that_leaves_something_is_found() {
    for sin in [
        RdmaSin::TouchesAfterReset,
        RdmaSin::ForgetsTheFlush,
        RdmaSin::FlushesWell,
        RdmaSin::OldBlobs,
    ] {
        found(sin, "endpoint duty 3", contract::a_reset_ends_all);
    }
}

#[test]
fn endpoint_duty_4_a_message_that_is_not_taken_as_it_came_is_found() {
    for sin in [
        RdmaSin::MiscountsTaken,
        RdmaSin::SpoilsTaken,
        RdmaSin::LosesTaken,
        RdmaSin::HidesMessages,
        RdmaSin::LendsTooMuch,
        RdmaSin::KeepsMessages,
    ] {
        let soft = Soft::builder().build().open("pf0").unwrap();
        sins::found(sin, "dut", |deadline| {
            let peers = Peers::from(&sinful(&soft, sin)).deadline(deadline);
            contract::pooled_messages_are_taken_in_order(peers);
        });
    }
}

#[test]
fn memory_that_is_shared_otherwise_than_it_was_exported_is_found() {
    found(
        RdmaSin::ExportsForEver,
        "registrar duty 3",
        contract::exported_memory_is_reached,
    );
    found(
        RdmaSin::ImportsAll,
        "registrar duty 4",
        contract::exported_memory_is_reached,
    );
}

#[test]
fn capabilities_that_are_not_kept_are_found() {
    for sin in [
        RdmaSin::LiesOfLists,
        RdmaSin::LiesOfSizes,
        RdmaSin::LiesOfQueues,
    ] {
        found(sin, "capabilities", contract::rdma_caps_are_kept);
    }
}

/// The suite also detects the sins under a `WorkQ`, where a waiting task sleeps or polls.
#[test]
fn sins_are_found_under_a_workq_too() {
    for sin in [RdmaSin::LosesAReceive, RdmaSin::NeverSignals] {
        found(sin, "not complete within", contract::rdma_sleeps_and_wakes);
    }
    for sin in [RdmaSin::LosesAReceive, RdmaSin::LosesAJob] {
        found(sin, "duty 1", contract::rdma_busy_polls);
    }
}
