//! Messages through memory that two processes share.
//!
//! A [ring] is the layout of that [memory] (`modelled` stands for it under loom): receives that one
//! side posts, and entries and a stream that the other fills. The [halves] of an end send and
//! receive messages. They import one another downwards, `halves > ring > memory`, and nothing else
//! of `rdma`.

mod halves;
#[cfg_attr(all(test, tokio_doca_loom), path = "modelled.rs")]
mod memory;
mod ring;

pub(super) use halves::{Got, Receiving, Sending, Sent, Watch};
pub(super) use memory::Memory;
#[cfg(any(fuzzing, all(test, not(tokio_doca_loom))))]
pub(super) use ring::ENTRY;
pub(super) use ring::{
    Head, INLINE, Kind, MAX_RECEIVES, MessageRing, Nonsense, Presence, STREAM, Shape, Side,
};
