//! The event handle of a WorkQ, and what rings in it.
//!
//! `handle` registers it with Tokio's runtimes and lends it to a loop of the caller's own. `timer`
//! is the timerfd inside it. `this_thread` knows what the running thread does for a WorkQ, so that
//! nothing is registered where the thread itself looks. `clock` has the time; `modelled` stands for
//! it under loom.
//!
//! The WorkQ is known here as a [`Driven`] alone. These files import no other room of the reactor.

#[cfg_attr(tokio_doca_loom, path = "modelled.rs")]
mod clock;
mod handle;
pub(in crate::reactor) mod this_thread;
mod timer;

pub(in crate::reactor) use handle::{Driven, Events};
pub(in crate::reactor) use timer::Timer;
