//! The event handle of a WorkQ, and its timer.
//!
//! `handle` registers the event handle with Tokio's runtimes and lends it to the caller's own loop.
//! `timer` is the timerfd inside the event handle. `this_thread` knows what the running thread does
//! for a WorkQ, so that no runtime is registered where the thread itself polls. `clock` has the
//! time; `modelled` replaces `clock` under loom.
//!
//! These files know the WorkQ only as a [`Driven`]. They import no other folder of the reactor.

#[cfg_attr(tokio_doca_loom, path = "modelled.rs")]
mod clock;
mod handle;
pub(in crate::reactor) mod this_thread;
mod timer;

pub(crate) use handle::readable_fd;
pub(in crate::reactor) use handle::{Driven, Events};
pub(in crate::reactor) use timer::Timer;
