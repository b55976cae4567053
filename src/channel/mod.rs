//! Control messages between a host and its DPU: a named [`Service`] on a representor, and
//! [`Channel`]s of clients to it.
//!
//! ```text
//!   host: device pf0vf0                                    DPU: representor hpf0vf0, behind p0
//!   ChannelBuilder::connect(&pf0vf0, "name") ------------> ChannelBuilder::listen(&hpf0vf0, "name")
//!   Channel::send, recv <---- messages, in order ---->     Service::accept: a Channel of each client
//! ```
//!
//! On devices with representors the two sides meet at an abstract Unix socket whose name is made of
//! the function's identifier (its vuid), the user and the service. So a client with another
//! function finds no service. Each side asks the kernel for the user of the other side, and refuses
//! other users. Devices without representors connect by TCP ([`ChannelBuilder::listen_tcp`]), where
//! only the choice of the address protects a service.
//!
//! A message is sent as a frame: its length in four bytes, big-endian, and then its bytes. `send`
//! writes the frame to the socket. Bytes that the socket does not take wait in a queue of fixed
//! size, which a task writes out; that task exists only while bytes wait. `recv` reads ahead until
//! the receive queue is full. So a peer that does not read delays only its own connection, and a
//! peer that floods fills only its own socket: neither makes this process use more memory.
//!
//! # What a peer may do
//!
//! All bytes from a peer are treated as hostile. The first frame of each side is its greeting, in
//! which the sides agree on the size of messages. A frame that is longer than agreed, or an invalid
//! greeting, ends the peer's connection. At most 64 clients may be connected without having sent a
//! greeting. If another client connects, the oldest of them is dropped, once it has been silent for
//! 10 ms. Until then the new client waits in the kernel's backlog, and so do all further clients. A
//! client that is stopped or does not read delays only its own connection.

// The files: The builder, the service and the channel are the types that users have, and import
// each other. They use `connection`, which has both queues (`inbox`, `outbox`) and the `socket`. In
// `greeting` the two sides agree on the limits.

mod arrivals;
mod builder;
mod channel;
mod connection;
mod delivery;
mod ended;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod greeting;
mod inbox;
mod listener;
mod outbox;
mod peer;
mod service;
mod socket;

pub use builder::ChannelBuilder;
pub use channel::Channel;
pub use connection::ChannelStats;
pub use peer::Peer;
pub use service::Service;

// The exchange of streams uses the same sockets and frames.
pub(crate) use arrivals::Arrivals;
pub(crate) use inbox::Inbox;
pub(crate) use listener::Listener;

pub(crate) use socket::{Socket, runtime};
