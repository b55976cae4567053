//! Jobs in flight: where they live, who finds out that they are over, and who is told.
//!
//! # The life of a Job that is not finished inline
//!
//! ```text
//!  Op (in a task)                     WorkQ                              device
//!  ------------------------------------------------------------------------------------------
//!  Leases taken, Slot taken --------> Slot: pending ------ submit -----> accepted
//!  waker into the Slot, arm, look                                        ... works ...
//!  Pending                                                               completion, ring if armed
//!                                     fan-out (or a busy Op): reap <-----
//!                                     Leases back, result, Slot: done
//!  <------------------------ wake ---
//!  polls, takes the result, frees the Slot ---> the next in line
//! ```
//!
//! Who looks: in event mode the *fan-out waker*, which sits in an `AsyncFd` of each runtime and runs inside Tokio's
//! driver; in busy mode the Op's own poll; and whoever calls [`WorkQ::progress`] from a loop of its own. The [`gate`] lets one of them reap at a time and loses no look.
//!
//! The receives of an Rdma live in a table of their own ([`receives`]), and are waited for in the same way ([`recv`]);
//! so do the waits of a sync event ([`waits`], [`wait_flight`]), which can be recalled.
//!
//! An Op that is dropped leaves an orphan, whose completion frees Slot and Leases. One that is forgotten leaves its
//! Slot taken. The last WorkQ handle leaves its Slots to the device, which drops them after its last Job.

mod attach;
mod block_on;
pub(crate) mod budget;
#[cfg_attr(tokio_doca_loom, path = "modelled.rs")]
mod clock;
mod counts;
mod entries;
mod event;
mod finished;
mod flight;
mod full;
mod gate;
mod held;
mod in_line;
mod io_driver;
mod line;
#[cfg(all(test, tokio_doca_loom))]
mod loom;
mod magazine;
mod mode;
mod nap;
mod notify;
mod orphans;
mod own_loop;
mod pause;
mod phases;
mod places;
mod posted;
mod queue_pair;
mod queues;
mod received;
mod receives;
mod recv;
mod registry;
mod shared;
mod shutdown;
mod slot;
mod stats;
mod submit;
mod subscription;
mod table;
mod target;
mod this_thread;
mod timer;
mod turn;
mod unfed;
mod wait;
mod wait_flight;
mod waits;
mod watch;
mod workq;

pub use mode::Mode;
pub use received::Received;
pub use shutdown::Shutdown;
pub use stats::Stats;
pub use watch::{RdmaState, RdmaWatch};
pub use workq::{WorkQ, WorkQBuilder};

pub(crate) use flight::Flight;
pub(crate) use line::{Ends, Line};
pub(crate) use nap::Nap;
pub(crate) use posted::{End, PostedRun};
pub(crate) use queue_pair::QueuePair;
pub(crate) use received::{Landed, Room};
pub(crate) use recv::{Receiver, RecvFlight};
pub(crate) use shared::Attachment;
pub(crate) use submit::Prepared;
pub(crate) use subscription::Subscription;
pub(crate) use target::{Meaning, Outcome, Run};
pub(crate) use unfed::Unfed;
pub(crate) use wait_flight::{WaitFlight, Waiter};
