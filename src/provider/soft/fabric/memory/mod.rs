//! Memory that two processes map: the checks of a memfd before it is [sent] and after it was
//! [received], its [mapping], an [arena] that both processes write, and the [backing] of an event.
//!
//! These files import one another downwards, `{arena, backing} > {received, sent} > {mapping,
//! pages}`, and nothing else of the fabric.

mod arena;
mod backing;
mod mapping;
pub(super) mod pages;
pub(super) mod received;
pub(super) mod sent;

pub(in super::super) use arena::Arena;
pub(in super::super) use backing::{hand_out, map_shared, share};
pub(in super::super) use mapping::Mapping;
