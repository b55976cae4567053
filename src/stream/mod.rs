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
//! The two sides meet at a TCP address or a Unix socket, for *the exchange*: each side sends an
//! offer, which has the blob to connect an [`Rdma`](crate::Rdma), and data of its application. The
//! connector's offer is the hello, and the listener's is the welcome. Afterwards that socket is
//! closed. If both sides allow a stream without RDMA ([`StreamOptions::or_tcp`]) and cannot connect
//! by RDMA, the frames continue on the socket instead. At an address of rdma_cm
//! ([`StreamAddr::Cm`]) the kernel carries the offers, and there is no socket. docs/wire.md has the
//! formats of the exchange and of the frames.
//!
//! RDMA neither encrypts nor authenticates. On a Unix socket the listener learns the peer's user
//! from the kernel ([`Incoming::peer`]); over TCP it knows only what the peer itself sends. Use TLS
//! on top if others share the network.
//!
//! # Flow control
//!
//! Each side posts `recv_window` receives and three more: two for frames of credits, and one for
//! the end of the stream. Over iWARP there is a fourth, for the confirmation of the end. A credit
//! permits the peer to send one frame of data, and the peer gets `recv_window` credits. So a frame
//! never meets an empty receive queue, however slowly the application reads, and a stream that
//! waits for its peer occupies no slot of the WorkQ. A stream returns credits in the header of the
//! frames that it sends. It sends a frame with nothing but credits once the peer has none left, or
//! would get half of a window at once.
//!
//! With [`recv_bufs`](StreamOptions::recv_bufs) all streams share buffers, and post no receives.
//! The device keeps up to one message for each credit of the peer, and a stream takes the messages
//! one by one into a shared buffer. A frame that arrives in the last free buffer is copied to the
//! heap until the application reads it, so that the buffer stays free for other streams.
//!
//! On a device that does not finish sends inline, such as an adapter, a frame takes a slot of the
//! WorkQ until it has been sent. A write is accepted once it has its slot, or once its bytes are in
//! a frame that waits for credits or for earlier frames. The stream has a task that sends such
//! frames, and frames of credits that find no slot: accepted bytes are sent even if the application
//! does not poll again. Streams use at most half of the slots. If that half has
//! [`send_window`](StreamOptions::send_window) slots and two more for each stream, no stream waits
//! for a slot.
//!
//! # What a peer may do
//!
//! The code treats all input of the peer as hostile. The messages of the exchange have a maximum
//! length and a time limit. At most [`half_open`](StreamOptions::half_open) peers may be connected
//! without having sent their whole hello. If the peer sends a frame that it may not send, the
//! connection is reset, and this side's stream ends with `ConnectionAborted`.
//!
//! A peer that does not read or write holds up its own stream alone. A hostile peer can do more: if
//! it gives credits but posts no receives, each frame that is sent to it holds a slot of the WorkQ
//! and a buffer of the memory for sends, which streams share. On the software device such a stream
//! ends with `TimedOut` after 100 ms, since an honest peer has posted a receive for each credit. On
//! an adapter it ends after the [`rnr_timeout`](crate::rdma::RdmaBuilder::rnr_timeout), 2 s. All
//! streams of a WorkQ together use at most half of its slots, first come, first served; the other
//! half is left to the application's copies and other jobs. On the software device a stream uses at
//! most 4 slots for data, and two for credits and its end; a stream with an honest peer needs none
//! while the device finishes its frames at once.
//!
//! On an adapter, if half of the peers do this, they hold up the writes of all others for these 2
//! s. They also hold up new connections, whose first frames need memory for sends as well. Use one
//! listener and one WorkQ for each group of peers that must not hold up others.

// The files: `listener`, `incoming`, `connector` and `side` set connections up with the settings of
// `options`, by the state machines of `exchange`, in the messages of `wire`. `side/memory` is the
// memory of each stream; `drain` ends a listener. `stream` is the type that a user holds, and
// `messages` is the same with Bufs. A stream over RDMA is built on `core`, which has both
// directions (`core/sending` is one of them); `core` uses `flow`, which counts credits, and
// `wakers`. A stream without RDMA is built on `stream/tcp`.

// These are first, since the documentation shows the methods of a type in the order of modules.
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

/// Returns a configuration that runs at least `least` cases, or more if PROPTEST_CASES asks for
/// more.
#[cfg(test)]
fn cases(least: u32) -> proptest::test_runner::Config {
    let config = proptest::test_runner::Config::default();
    proptest::test_runner::Config {
        cases: config.cases.max(least),
        ..config
    }
}
