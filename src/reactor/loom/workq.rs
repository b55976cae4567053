//! Models of the real wait cycle of a whole WorkQ: operations, a shutdown, and the caller's own
//! loop.

use std::pin::pin;
use std::sync::Arc;

use super::{Bed, on_a_workq, prepared};
use crate::reactor::slots::ResultKind;
use crate::reactor::tables::End;
use crate::sync::atomic::Ordering::SeqCst;
use crate::sync::loom::{block_on, deep, spawn};

#[test]
fn an_op_is_told_by_the_real_wait_cycle_though_another_one_looks() {
    on_a_workq(deep(1), |bed| {
        let workq = bed.workq.clone();
        let looker = spawn(move || workq.0.turn());
        bed.run([bed.spawn_op(), looker]);
    });
}

#[test]
#[ignore = "deep: .ci/soak loom"]
fn of_two_ops_on_one_slot_both_are_told() {
    on_a_workq(1, |bed| bed.run([bed.spawn_op(), bed.spawn_op()]));
}

#[test]
#[ignore = "deep: .ci/soak loom"]
fn of_two_ops_in_flight_both_are_told_though_only_one_of_them_armed() {
    on_a_workq(1, |_| {
        let bed = Bed::on(2, false);
        bed.run([bed.spawn_op(), bed.spawn_op()]);
    });
}

#[test]
fn an_orphan_is_heard_of_though_it_was_another_op_that_armed() {
    on_a_workq(1, |_| {
        let bed = Bed::on(2, false);
        bed.run([bed.spawn_dropped_op(), bed.spawn_op()]);
    });
}

#[test]
fn an_op_in_line_is_told_though_the_one_before_it_is_dropped() {
    on_a_workq(1, |bed| bed.run([bed.spawn_dropped_op(), bed.spawn_op()]));
}

#[test]
fn nothing_is_submitted_after_a_shutdown_has_ended() {
    on_a_workq(deep(1), |bed| {
        let (workq, queue) = (bed.workq.clone(), Arc::clone(&bed.queue));
        let shutdown = spawn(move || {
            let shutdown = pin!(workq.shutdown());
            assert!(block_on(shutdown).is_ok());
            queue.shut.store(true, SeqCst);
        });
        bed.run([bed.spawn_dropped_op(), shutdown]);
    });
}

#[test]
fn an_op_that_sleeps_goes_on_as_the_new_mode_says() {
    on_a_workq(1, |_| {
        let bed = Bed::on(1, true);
        bed.run([bed.spawn_op()]);
    });
}

#[test]
#[ignore = "deep: .ci/soak loom"]
fn ops_and_jobs_of_the_callers_loop_share_a_workq() {
    on_a_workq(1, |bed| {
        let (attachment, workq) = (Arc::clone(&bed.attachment), bed.workq.clone());
        let own = spawn(move || {
            // The operation may have the only slot.
            let Ok(index) = attachment.try_reserve() else {
                return;
            };
            attachment
                .post(index, prepared(), 9, ResultKind::Bytes)
                .unwrap();
            let mut seen = None;
            while seen.is_none() {
                workq.collect(|user_data, end| seen = Some((user_data, end)));
                ::loom::thread::yield_now();
            }
            let told = matches!(seen, Some((9, End::Job(ResultKind::Bytes, Ok(7)))));
            assert!(told);
        });
        bed.run([bed.spawn_op(), own]);
    });
}
