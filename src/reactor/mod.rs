//! The reactor: keeps the jobs in flight, collects their completions, and notifies the operations
//! that wait for them.
//!
//! # The life of a job that is not finished inline
//!
//! ```text
//!  Op (in a task)                     WorkQ                              device
//!  ------------------------------------------------------------------------------------------
//!  Leases taken, Slot taken --------> Slot: pending ------ submit -----> accepted
//!  waker into the Slot, arm, poll                                        ... works ...
//!  Pending                                                               completion, signal if armed
//!                                     fan-out (or a busy Op): reap <-----
//!                                     Leases back, result, Slot: done
//!  <------------------------ wake ---
//!  polls, takes the result, frees the Slot ---> the next in line
//! ```
//!
//! A completion is collected (reaped) in one of three ways: in event mode by the *fan-out waker*,
//! in busy mode by the poll of the operation itself, and in the caller's own loop by the call of
//! `WorkQ::progress`. Each runtime has a fan-out waker in an `AsyncFd`, and calls it inside Tokio's
//! driver. The [`gate`] lets one thread reap at a time; if it refuses a thread, the thread inside
//! polls once more.
//!
//! The receives of an Rdma and the waits of a sync event have tables of their own. Operations wait
//! for them in the same way as for jobs. A wait can be recalled, but a receive cannot.
//!
//! The job of an operation that is dropped becomes an orphan: its completion frees its slot and
//! Leases. An operation that is forgotten (`mem::forget`) leaves its slot taken. When the last
//! handle of the WorkQ is dropped, its slots are handed to the device, which drops them after the
//! last job.
//!
//! # Folders
//!
//! | folder | what is in it | imports |
//! |---|---|---|
//! | [`loops`] | a WorkQ without a runtime: `block_on`, own loops | `jobs`, `workq` and below |
//! | [`endpoint`] | an Rdma on a WorkQ: receives, state | `waiting` and below |
//! | [`sync_event`] | a sync event on a WorkQ: waits | `waiting` and below |
//! | [`jobs`] | the futures of jobs, and how a run waits | `waiting` and below |
//! | [`waiting`] | how an operation waits: for an end, in line, for a time | `workq` and below |
//! | [`workq`] | the WorkQ, its devices, submission, the turn that reaps | `tables` and below |
//! | [`tables`] | receives, waits, and posted operations, which have no slot | `slots`, `events` |
//! | [`slots`] | jobs in flight: slots, Leases, what to notify | none |
//! | [`events`] | the event handle, its timer, runtimes | none |
//!
//! These files lie beside the folders, and every folder may import them: [`gate`], [`mode`] (how to
//! wait), [`spin`] (how long to poll), [`entry_table`] (tables that have a line of waiters) and
//! [`budget`] (Tokio's budget of a task).

// `workq` comes first, since rustdoc shows the methods of a type in the order of the modules.
mod workq;

pub(crate) mod budget;
mod endpoint;
mod entry_table;
mod events;
mod gate;
mod jobs;
#[cfg(all(test, tokio_doca_loom))]
mod loom;
mod loops;
mod mode;
mod slots;
mod spin;
mod sync_event;
mod tables;
mod waiting;

pub use endpoint::{RdmaState, RdmaWatch};
pub use loops::PollThread;
pub use mode::Mode;
pub use tables::Received;
pub use workq::{Shutdown, Stats, WorkQ, WorkQBuilder};

pub(crate) use endpoint::{
    DisconnectWait, EndpointPort, Receiver, RecvBatch, RecvFuture, SUBMIT_BATCH, abandon,
    poll_posted, settle,
};
pub(crate) use entry_table::Wanted;
pub(crate) use events::readable_fd;
pub(crate) use events::this_thread::polls_here;
pub(crate) use jobs::{Completions, JobFuture, RunWaiter, StreamSlotWaiter};
pub(crate) use slots::{Outcome, ResultKind, Run};
pub(crate) use spin::Spin;
pub(crate) use sync_event::{EventPortHandle, EventWaitFuture, Waiter};
pub(crate) use tables::{End, PostedRun, Receipt, RecvBuf, RecvCompletion, TABLES};
pub(crate) use waiting::Backoff;
pub(crate) use workq::{Attachment, HasAttachment, Prepared};
