//! The half of an adapter that belongs to one WorkQ:
//!
//! - [queue] is the queue that the layers above reap, and [endpoint] is an endpoint on that queue.
//! - [shared] is the state that both share.
//! - [burials] ends connections.
//! - [copies] does copies by a queue pair that is connected to itself.
//! - [computed] does jobs on the CPU.
//!
//! These files import all other folders of the provider.

mod burials;
mod computed;
mod copies;
mod endpoint;
mod queue;
mod shared;

pub(super) use queue::VerbsQueue;
