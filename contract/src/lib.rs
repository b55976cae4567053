//! The suite for authors of providers: the checks that every provider of [`tokio_doca`] must pass.
//!
//! [`dma`] runs the whole suite on a device that copies, [`sha`] on one that hashes, [`crc`] on one
//! that computes CRCs, [`rdma`] on one with endpoints, [`sync_event`] on one with sync events, and
//! [`accel`] on one with Jobs of its own kinds, given a [`Sample`] of one kind. Each check tests a
//! numbered duty of [`device::contract`](tokio_doca::device::contract), whose table lists the
//! duties. A check panics with a sentence that begins with the number. The checks drive the queue
//! directly (`open_queue`, `submit`, `reap`, `arm`, `retire`), as a WorkQ would, and then through
//! the crate, in event-driven and in busy-poll mode:
//!
//! ```
//! use std::time::Duration;
//! use tokio_doca::Device;
//! use tokio_doca_contract::{self as contract, Sample, Subject};
//!
//! fn all(device: &Device) {
//!     contract::dma(device);                    // every check, by copies
//!     contract::sha(device);                    // by hashes, if it computes some
//!     contract::crc(device);                    // by CRCs, with copies and without
//!     contract::rdma(device);                   // by remote operations, if it has endpoints
//!     contract::sync_event(device);             // by sync events, if it has some
//!     // Every check, by one opcode of its own and a model of it.
//!     let negate = Sample::transforms(0x10, 0, |src, _room| src.iter().map(|byte| !byte).collect());
//!     contract::accel(device, negate);
//! }
//!
//! # fn main() -> Result<(), tokio_doca::Error> {
//! // While the provider is being written: single checks, one of them with a shorter deadline.
//! let device = Device::open_default()?;
//! contract::caps_are_kept(&device);
//! let subject = Subject::copies(&device).deadline(Duration::from_secs(1));
//! contract::each_accepted_job_completes_once(subject);
//! # Ok(())
//! # }
//! ```
//!
//! The checks of [`rdma`] use two endpoints that are connected to each other, and take [`Peers`]
//! instead of a [`Subject`].
//!
//! [`imported_lists_are_gathered_and_scattered`] and [`each_import_of_a_list_is_checked`] need two
//! devices, one of which exports memory to the DPU. Call them directly.
//!
//! [`a_refused_job_was_never_seen`] and [`a_refused_operation_was_never_seen`] need help: the
//! caller must make the device refuse.
//!
//! No check sleeps for a fixed time. Each waits for a condition, and fails after [`DEADLINE`]
//! ([`Subject::deadline`], [`Peers::deadline`]). A check in which a call blocks fails after twice
//! that time. A check that fails leaks the memory that the device may still touch. Late errors (a
//! second completion, signal or write) are found after `retire` has dropped its argument, when
//! nothing of the queue is in flight.

// The modules: `checks`, `rdma` and `sync_event` have the checks of one kind of subject each. They
// use `rig` for common code, and not each other. Each kind has a list of its checks (`check`), in
// the order of the duties: `suite` has and runs the list for queues, and `report` runs all lists
// for [`selftest`], which reports instead of panicking.
#![warn(missing_docs, clippy::unwrap_used)]

mod check;
mod checks;
mod rdma;
mod report;
mod rig;
mod suite;
mod sync_event;

pub use checks::{
    a_device_says_the_same_of_itself, a_job_of_an_unknown_kind_is_refused,
    a_refused_job_was_never_seen, armed_completions_signal_once, busy_polls, caps_are_kept,
    completed_memory_is_left_alone, crcs_are_known, digests_are_known,
    each_accepted_job_completes_once, each_import_of_a_list_is_checked, each_queue_is_new,
    each_registration_stands_alone, imported_lists_are_gathered_and_scattered,
    inline_jobs_are_complete, lists_are_gathered_and_scattered, no_completion_is_slept_through,
    retire_keeps_until_nothing_is_in_flight, serves_several_runtimes, sessions_go_on,
    sleeps_and_wakes,
};
pub use rdma::{
    Peers, a_listener_is_connected_by_its_peer, a_refused_operation_was_never_seen,
    a_reset_ends_all, armed_messages_signal_once, exported_memory_is_reached,
    failures_flush_what_is_behind_them, no_message_is_slept_through, permissions_are_kept,
    pooled_messages_are_taken_in_order, rdma, rdma_busy_polls, rdma_caps_are_kept,
    rdma_sleeps_and_wakes, receives_may_come_late, remote_operations_complete_in_order,
    retired_receives_are_left_alone,
};
pub use report::{Outcome, SelfTest, Verdict, selftest};
pub use rig::{DEADLINE, Sample, Subject};
pub use suite::{accel, all, crc, dma, sha};
pub use sync_event::{
    Events, a_counter_lies_where_it_was_told, a_stopped_event_ends_all, armed_waits_signal,
    event_jobs_are_done_in_order, events_busy_poll_and_sleep, sync_event,
    waits_beyond_the_limit_fail, waits_end_once_and_not_before,
};

#[doc = include_str!("../README.md")]
#[cfg(doctest)]
struct Readme;
