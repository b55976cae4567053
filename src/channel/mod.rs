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
//! the function's vuid, the user and the service: a client with another function finds no service.
//! Both sides ask the kernel for the other's user, and turn strangers away. Devices without
//! representors meet by TCP ([`ChannelBuilder::listen_tcp`]), where an address is all that protects
//! a service.
//!
//! A message is a frame: its length in four bytes, big-endian, and so many bytes. `send` writes it
//! to the socket, and what the socket does not take waits in a queue of fixed size, which a task
//! writes on; that task is there only while something waits. `recv` reads as far ahead as the
//! receive queue is long. So a peer that does not read holds up its own connection, and one that
//! floods fills its own socket: neither grows the memory of this process.
//!
//! # What a peer may do
//!
//! Everything that it sends is hostile. A frame longer than was agreed, or a greeting that is none,
//! ends its connection. At most 64 clients may be connected and silent; the next one takes the slot
//! of the oldest, but not within its first 10 ms: a flood waits in the kernel's backlog. A client
//! that is stopped or does not read keeps only its own connection from continuing, and nothing
//! else.

// The files:
// The builder, the service and the channel are what a user holds, and import each other. They
// stand on `connection`, which has both queues (`inbox`, `outbox`) and the `socket`; `greeting`
// says how two sides agree.

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

// The exchange of streams goes by the same sockets and frames.
pub(crate) use arrivals::Arrivals;
pub(crate) use inbox::Inbox;
pub(crate) use listener::Listener;

pub(crate) use socket::{Socket, runtime};
