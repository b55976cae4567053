//! The fabric of software devices: how processes of one host find and share what they export.
//!
//! There is one protocol, by which a *client* connects to a *service* of another process, its
//! *server*. The party that exports something publishes a service for it ([`publish`]) and hands
//! its [`Ticket`] out as a blob. A client sends one request, and gets one reply with two
//! descriptors.
//!
//! ```text
//!   server                                              client
//!   publish: takes a slot ------ ticket, by any way --> connect
//!   thread: looks the slot up, checks the proof <------ request: kind, slot, generation, nonce,
//!                                                                payload, proof
//!           asks the service: Service::accept --------> reply: payload, proof; two descriptors
//!           keeps the connection, or hands it over      checks the proof, watches the process
//! ```
//!
//! There are three services. What a payload says is their own matter.
//!
//! | service | ticket | request | reply | descriptors | connection |
//! |---|---|---|---|---|---|
//! | memory ([`export`](mod@export)) | audience, port, access, length | - | the same as the ticket | the memfd, the control page | is asked again |
//! | an endpoint (`rdma`) | queue, receives, permissions | the client's info and name | doorbell page, number | doorbell page, message ring | carries the bells |
//! | a sync event (`event`) | port | - | import's number, place of the counter | the page, the counter's memory | carries the bells |
//!
//! A service of the same process is reached without a socket ([`Ticket::local`]).
//!
//! Of an import nothing stays but its mapping, and for each exporting process a mapping of its
//! control page, which has a word for each slot, and a pidfd. Loads, stores and atomics cost no
//! system call; the words are read before each operation. Of two endpoints, either of which could
//! be the server, it is the one with the smaller instance.
//!
//! One thread per process ([`thread`]) answers clients, and notices processes that end. It starts
//! at the first export or import, sleeps without wake-ups while nothing happens, and ends with the
//! last of them. Nothing is in the file system, unless a folder was asked for
//! ([`set_socket_path`]).
//!
//! # Threat model
//!
//! A peer is another process without ptrace rights over this one. What it sends, when, and what it
//! does with descriptors that it was given is hostile. The party that has a ticket may do what the
//! ticket says: it is as secret as the memory.
//!
//! | rule | enforced by |
//! |---|---|
//! | nobody connects without the ticket; a process that takes the server's name does not learn the key, and can answer nothing | a random key that never travels, and proofs over a nonce: [`message`] |
//! | nobody writes what no peer may write | `F_SEAL_FUTURE_WRITE`: [`sent`] |
//! | who may read only gets no descriptor to write with | a descriptor opened to read, and the memfd's mode; advice against the same user where others may write: [`sent`] |
//! | nobody shortens memory under us | seals, added before the first send and checked before a mapping: [`sent`], [`received`], [`arena`] |
//! | nobody makes us take memory at an import, or a SIGBUS of huge pages | holes and punchable huge pages are refused, also where blocks behind the end stand for them, which takes 256 KiB, or a huge page, at most: [`received`], [`sent`]; what both write is at most 64 MiB: [`arena`] |
//! | nobody makes us free more than we asked for | a memfd that is larger than it shall be is refused, also by pages behind its end: [`received`], [`arena`], [`control`], [`pages`] |
//! | nobody holds up an import beyond its time limit | memory is mapped in pieces, and the clock is looked at in between: [`received`] |
//! | nobody writes lines or escapes into a log by what a blob says | [`Error`](crate::Error) escapes what is not printable |
//! | nobody forges a revocation, or hides one of another's | a control page that only its process can map to write: [`control`]; a blob's word for whose it is is not enough: [`peer`], [`watch`] |
//! | nobody uses up what this process's user has in flight | a share of unread replies for each other user: [`connections`] |
//! | no peer blocks, stops or floods the thread | every call `MSG_DONTWAIT`, descriptors opened without waiting for a lease, one request at a time on a connection, 64 silent ones for 2 s and 64 that may ask again, a pause when descriptors run out: [`thread`], [`connections`], [`socket`] |
//! | no descriptor of a stranger is kept, and none is closed on a thread that anybody waits for | refused by the kernel, or read with room for all and closed elsewhere: [`strangers`](crate::process) |
//! | a process's end is noticed, also when a child holds its sockets | a pidfd, or a connection that stays: [`watch`] |
//! | a process that replaces its program (execve(2)) takes back what it exported, also when a child holds its descriptors | a word of the control page that the kernel marks: [`Owner`](control::Owner) |
//! | a process that replaces its program leaves the endpoints and events that it shared | the end of the bell's socket: [`Process::at_the_end_of`] |
//! | what was reset stays so: an old ticket opens nothing | a generation and a key of its own for each export: [`slots`], [`ticket`] |
//! | a ticket of one kind opens no service of another | the kind is part of the request, and compared: [`server`] |
//! | a number from outside is checked before it is used | [`ticket`], [`message`], the payloads of the services, [`received`], [`arena`]; all under a fuzzer, `.ci/fuzz` |
//! | nobody reaches more of a memfd than was exported | a part of one is not exported: [`sent`] |
//!
//! What is not:
//!
//! - whoever may write memory, the exporter above all, may punch holes into it after it was mapped.
//!   A thread that touches the memory then takes its pages, of as many bytes as it imported at
//!   most, and waits for as long as the punching takes: 1.5 s for 4 GiB. A copy that an engine does
//!   holds up no runtime;
//! - before Linux 6.16 a peer can have this process keep descriptors open whose closing takes time
//!   (`SO_LINGER`), up to its limit; if none is left, the kernel closes more of them on the thread
//!   that reads;
//! - on any kernel a server can have a client keep three of them open for each reply;
//! - whoever may write an arena can punch holes into it, with the same effect; the endpoints check
//!   what is in it;
//! - a client's word for its instance is its own; the kernel says whose process it is
//!   ([`Client::process`]);
//! - a process that replaces its program while a child of it (fork(2)) holds its sockets does not
//!   leave the endpoints and events that it shared;
//! - a hostile exporter can hide that it has replaced its program: importers keep its memory, as if
//!   it ran the old one;
//! - whoever may write to the folder of a path socket can put itself between, pass a request on and
//!   take the reply;
//! - a client looks up the path that a forged ticket names, which takes as long as the file system
//!   of its maker (FUSE) likes.
//!
//! # Rooms
//!
//! | room | what lives there |
//! |---|---|
//! | `memory` | memory that two processes map |
//! | `protocol` | what they say to each other: tickets, messages, sockets |
//! | this folder | the server: its thread, services and slots, and the processes that it watches; imports the two above |
//! | `export`, `client` | memory as a service, and the client's side; import all the others |
//!
//! [`message`]: protocol::message
//! [`ticket`]: protocol::Ticket
//! [`slots`]: protocol::Slots
//! [`socket`]: protocol::socket
//! [`sent`]: memory::sent
//! [`received`]: memory::received
//! [`arena`]: memory::Arena

mod client;
mod connections;
mod control;
mod current;
mod ended;
mod export;
#[cfg(fuzzing)]
pub(super) mod fuzzing;
mod listener;
mod memory;
mod peer;
mod process;
mod protocol;
mod publish;
mod server;
mod service;
#[cfg(test)]
mod tests;
mod thread;
mod watch;

use crate::provider::envelope;

pub(super) use client::{Granted, Import, import};
pub use current::set_socket_path;
pub(super) use ended::Ended;
pub(super) use export::{MemoryInfo, export};
pub(super) use memory::{Arena, Mapping, hand_out, map_shared, share};
pub(super) use protocol::{
    ENDPOINT, EVENT, Id, MEMORY, PAYLOAD, Payload, Refusal, Ticket, fields_of, payload, proof_of,
    random, words_of,
};
pub(super) use publish::{Published, instance, publish};
pub(super) use service::{Client, Grant, Service};
pub(super) use watch::Process;
