//! The bytes that processes send to each other.
//!
//! A [ticket] names an export: its [network namespace](netns), a socket's address, and a
//! [slot](Slots). [message] has the request that a client sends, and the reply that the client
//! gets. A [socket] carries both, and is kept for later requests ([lines]). These files import one
//! another downwards, `lines > ticket > {message, slots, socket} > netns`, and nothing else of the
//! fabric.

mod lines;
pub(super) mod message;
pub(super) mod netns;
mod slots;
pub(super) mod socket;
mod ticket;

pub(in super::super) use lines::Line;
pub(super) use lines::Lines;
pub(in super::super) use message::{PAYLOAD, Payload, Refusal, fields_of, payload, proof_of};
pub(super) use message::{REPLY_LEN, REQUEST_LEN, Reply, Request, Status};
pub(super) use netns::Netns;
pub(in super::super) use netns::{Id, random, words_of};
pub(super) use slots::{SLOTS, Slots};
pub(super) use socket::{Address, DESCRIPTORS, NAME_MAX};
pub(in super::super) use ticket::{ENDPOINT, EVENT, Kind, MEMORY, Ticket};
