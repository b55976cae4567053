//! Remote operations between endpoints of software devices, in one process or in two processes of
//! the same host.
//!
//! ```text
//!   queue of a WorkQ                                      queue of another one
//!   Ports (../ports): those with something to do           Ports
//!     |                                                     |
//!     +-- DoorbellPage -- armed, hints; a bell -- DoorbellPage --+    one for each pair of queues
//!     |                                                          |
//!     +-- Endpoint -- Connection == MessageRing == Connection -- Endpoint
//!                      receives ->  lengths  -> may be sent
//!                      Sending  ->  messages -> Receiving
//! ```
//!
//! One-sided operations are copies into or out of memory that was imported ([`remote`]): the peer's
//! process does nothing, and is not notified. Messages are copied twice: into the message ring, and
//! out of it. There is no separate thread: the threads that submit and poll do all work.
//!
//! # Threat model
//!
//! As for the [fabric](super::fabric). The peer can write the message ring and the doorbell page at
//! any time.
//!
//! | rule | enforced by |
//! |---|---|
//! | each number is read once, and checked before it is used | [`messages`] |
//! | a peer cannot make this side copy outside of the receive that was posted, or the source that was lent | this side keeps its own lengths, and compares those of the peer with them: [`messages`] |
//! | a peer that breaks the protocol ends its own connection | [`endpoint`]: `PeerNonsense` |
//! | a peer can make this side poll in vain, and delay its own messages, but not those of others | hints and arms of a pair of queues: [`doorbell`] |
//! | a peer cannot make this side wait for ever | a time limit, and the end of its process: [`endpoint`], [`ports`](super::ports) |
//! | a peer cannot block the sender of a wake-up, or fill the socket for good | a bell that does not block: [`bell`](super::bell) |
//! | a one-sided operation reaches only memory that the peer has exported, with the access that it permits | [`remote`] |
//!
//! # Files
//!
//! `messages` has the memory that two endpoints share, and `doorbell` wakes their queues.
//! `doorbell` imports `messages`; all files of this folder may import both. The
//! [ports](super::ports) of a queue, its [`reaper`] and its endpoints ([`state`]) know each other;
//! everything else imports downwards.

mod connect;
mod connect_local;
mod connect_page;
mod connection;
mod dial;
mod doorbell;
mod endpoint;
#[cfg(fuzzing)]
pub(super) mod fuzzing;
#[cfg(all(test, tokio_doca_loom))]
mod loom;
mod messages;
mod payload;
mod reaper;
mod remote;
mod state;
#[cfg(all(test, not(tokio_doca_loom)))]
mod tests;
mod work;

pub(super) use endpoint::SoftEndpoint;

/// The maximum length, in bytes, of a message to an Rdma that receives from a `RecvPool`. One call
/// of the receiver copies all of it into a Buf of the pool. So the message must fit into the
/// sender's stream in the message ring (`messages::STREAM`), and one poll must be able to copy it
/// (`work::LOOK`).
pub(super) const MAX_POOLED_LEN: usize = messages::STREAM / 2;
pub(super) use reaper::Reaper;
