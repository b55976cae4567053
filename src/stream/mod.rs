//! Streams of bytes over RDMA, for services that were written for TCP: [`RdmaListener`],
//! [`RdmaConnector`] and [`RdmaStream`].
//!
//! ```text
//!   connector                                        listener
//!   RdmaConnector::connect -- hello: offer, data --> RdmaListener::accept: Incoming
//!                          <- welcome: offer, data - Incoming::accept   (or refuse, with a reason)
//!                          -- ready ---------------> RdmaStream
//!   RdmaStream             <== frames, by RDMA ====> RdmaStream
//! ```
//!
//! The two sides meet at a TCP address or a Unix socket, and exchange there what they connect an
//! [`Rdma`](crate::Rdma) with. Afterwards that socket is closed, unless both sides may do without
//! RDMA ([`StreamOptions::or_tcp`]) and have none in common: then the frames continue there. At an
//! address of rdma_cm ([`StreamAddr::Cm`]) the kernel carries the offers, and there is no socket.
//! docs/wire.md has the formats of the exchange and of the frames.
//!
//! RDMA neither encrypts nor authenticates. On a Unix socket the listener learns the peer's user
//! from the kernel ([`Incoming::peer`]); by TCP it knows what the peer tells it. Use TLS on top if
//! others share the network.
//!
//! # Flow control
//!
//! A side posts `recv_window` receives and three more, and gives the peer a credit for each but
//! these, which are for two frames of credits and for the end of the stream. So a frame never meets
//! an empty receive queue, however slow the application reads, and a stream that waits for its peer
//! occupies no slot of the WorkQ. A stream gives credits back in the head of what it sends, or in a
//! frame of their own once the peer has none left or would get half of a window.
//!
//! With [`recv_bufs`](StreamOptions::recv_bufs) all streams share buffers, and post no receives.
//! The device keeps as many messages as a peer has credits for, and a stream takes them one by one
//! into a shared buffer. A frame that comes in the last free buffer is copied to the heap until it
//! is read, so that the buffer stays free for others.
//!
//! On a device that does not finish sends inline, as adapters do not, a frame takes a slot of the
//! WorkQ until it was sent. A write is accepted once it has its slot, or its bytes are in a frame
//! that waits for credits. A task of the stream's own sends such a frame, and a frame of credits
//! that finds no slot: what was accepted continues though the application does not poll again. With
//! a WorkQ as deep as the frames of all streams ([`send_window`](StreamOptions::send_window) for
//! each) nobody waits for a slot.
//!
//! # What a peer may do
//!
//! Everything that it sends is hostile. Messages of the exchange are bounded and have a time limit.
//! Of peers that say nothing there are at most [`half_open`](StreamOptions::half_open). A frame
//! that the peer may not send resets its connection, and ends its stream with `ConnectionAborted`.
//!
//! A peer that does not read or write holds up its own stream alone. A hostile one can do more: if
//! it gives credits and posts no receives, each frame that is sent to it holds a slot of the WorkQ
//! and a buffer of the memory for sends, which streams share. On the software device its stream
//! ends with `TimedOut` after 100 ms: an honest peer has posted what it gives credits for. On an
//! adapter it does after the [`rnr_timeout`](crate::rdma::RdmaBuilder::rnr_timeout), 2 s. All
//! streams of a WorkQ together have at most half of its slots, in the order in which they come, so
//! that the other half is for the copies and all else of the application. On the software device a
//! stream has at most 4 of them, and two for credits and its end; an honest stream needs none there
//! while the device finishes its frames at once.
//!
//! On an adapter, half of the peers can hold up the writes of all others for these 2 s, and so new
//! connections, whose first frames take memory for sends as well. Use one listener and one WorkQ
//! for each group of peers that must not hold up others.

// The files: `listener`, `incoming`, `connector` and `side` set connections up by `options`, as
// `exchange` says, and speak `wire`, with memory for each stream (`side/memory`); `drain` ends a
// listener. `stream` is what a user holds, and `messages` the same with Bufs; it stands on `core`,
// which has both directions (`core/sending` has one of them), and that on `flow`, which counts
// credits, and `wakers`; or on `stream/tcp`, without RDMA.

// First, since the documentation shows the methods of a type in the order of modules.
mod options;
mod stream;

mod connector;
mod core;
mod drain;
mod exchange;
mod flow;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod incoming;
mod listener;
mod messages;
mod side;
mod wakers;
mod wire;

pub use connector::RdmaConnector;
pub use core::{StreamRdma, StreamStats};
pub use drain::ListenerStats;
pub use incoming::Incoming;
pub use listener::RdmaListener;
pub use messages::RdmaMessages;
pub use options::{StreamAddr, StreamOptions};
pub use stream::{RdmaStream, StreamTransport};

/// How a law of a state machine is tried: so often, or as PROPTEST_CASES says if that is more.
#[cfg(test)]
fn cases(least: u32) -> proptest::test_runner::Config {
    let config = proptest::test_runner::Config::default();
    proptest::test_runner::Config {
        cases: config.cases.max(least),
        ..config
    }
}
