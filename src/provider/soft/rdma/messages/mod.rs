//! Messages through memory that two processes share.
//!
//! The file [ring] is the layout of that [memory] (under loom, `modelled` replaces it): receives
//! that one side posts, and entries and a stream that the other side fills. The halves of an end
//! [send](sending) and [receive](receiving) messages. The files import one another downwards,
//! `{sending, receiving} > ring > memory`, and nothing else of `rdma`.

#[cfg_attr(all(test, tokio_doca_loom), path = "modelled.rs")]
mod memory;
mod receiving;
mod ring;
mod sending;

pub(super) use memory::Memory;
pub(super) use receiving::{Got, Receiving, Watch};
#[cfg(any(fuzzing, all(test, not(tokio_doca_loom))))]
pub(super) use ring::ENTRY;
pub(super) use ring::{
    Head, INLINE, Kind, MAX_RECEIVES, MessageRing, Nonsense, Presence, STREAM, Shape, Side,
};
pub(super) use sending::{Sending, Sent};
