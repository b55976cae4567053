//! A provider over a table of functions that mirrors libibverbs in shape, and a fake adapter behind that table.
//!
//! - `table`: the functions, and twins of the C structs with the fields that are used.
//! - `adapter`: the fake: a loopback RC queue pair, its completion queue and channel, as the man pages have them.
//! - `memory`, `wr`, `queue`, `provider`: what a provider for libibverbs would be made of. They call nothing but the
//!   table.

mod adapter;
mod memory;
mod provider;
mod queue;
mod table;
mod wr;

pub(crate) use adapter::{live_objects, refuse_request};
pub(crate) use provider::FakeVerbs;
