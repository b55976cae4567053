//! Remote operations between endpoints of software devices: of one process, or of two of the same
//! host.
//!
//! ```text
//!   queue of a WorkQ                                      queue of another one
//!   Ports (../ports): which have something to do           Ports
//!     |                                                     |
//!     +-- DoorbellPage -- armed, hints; a bell -- DoorbellPage --+    one for each pair of queues
//!     |                                                          |
//!     +-- Endpoint -- Connection == MessageRing == Connection -- Endpoint
//!                      receives ->  rooms    -> may be sent
//!                      Sending  ->  messages -> Receiving
//! ```
//!
//! One-sided operations are copies into memory that was imported ([`remote`]): the peer's process
//! does nothing and hears nothing. Messages are copied twice, into the message ring and out of it.
//! Nobody but those who submit and who look does anything: there is no thread.
//!
//! # Threat model
//!
//! As for the [fabric](super::fabric). What the peer can write is the message ring and the
//! doorbell page, at any time.
//!
//! | rule | enforced by |
//! |---|---|
//! | each number is read once, and checked before it is used | [`messages`] |
//! | nothing is copied out of the receive that was posted, or the source that was lent | rooms are this side's own; what the peer says of them is compared: [`messages`] |
//! | a peer that breaks the protocol ends its own connection | [`endpoint`]: `PeerNonsense` |
//! | it can make this side look in vain, and not wait in vain but for its own messages | hints and arms of a pair of queues: [`doorbell`] |
//! | it cannot make this side wait for ever | a time limit, and the end of its process: [`endpoint`], [`ports`](super::ports) |
//! | it cannot stop whoever rings, or fill what rings here | a bell that does not block: [`bell`](super::bell) |
//! | a one-sided operation reaches what that peer exported, and it permits | [`remote`] |
//!
//! # Rooms
//!
//! `messages` has the memory that two endpoints share, and `doorbell` what wakes their queues. It
//! imports `messages`; all files of this folder may import both. The [ports](super::ports) of a
//! queue, its [`reaper`] and its endpoints ([`state`]) know each other; everything else imports
//! downwards.

mod connect;
mod connect_local;
mod connect_page;
mod connection;
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

/// The longest message that is pulled: the stream has room for it, and it is copied in one go, as
/// much as one look copies.
pub(super) const MAX_POOLED_ROOM: usize = messages::STREAM / 2;
pub(super) use reaper::Reaper;
