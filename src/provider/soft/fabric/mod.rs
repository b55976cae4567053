//! The fabric of software devices, by which processes of one host find and share exported objects.
//!
//! There is one protocol: a *client* connects to a *service* of another process, its *server*. A
//! process that exports an object publishes a service for it ([`publish`]), and hands out the
//! object's [`Ticket`] as a blob. A client sends one request, and gets one reply, with two
//! descriptors or none.
//!
//! ```text
//!   server                                              client
//!   publish: takes a slot ------ ticket, by any way --> connect
//!   thread: finds the slot, checks the proof <--------- request: kind, slot, generation, nonce,
//!                                                                payload, proof
//!           asks the service: Service::accept --------> reply: payload, proof; two descriptors
//!           keeps the connection, or hands it over      checks the proof, watches the process
//! ```
//!
//! There are three services. Each defines its own payloads.
//!
//! | service | ticket | request | reply | descriptors | connection |
//! |---|---|---|---|---|---|
//! | memory ([`export`](mod@export)) | audience, port, access, length | - | the same as the ticket | the memfd, the control page | is kept for the next request |
//! | an endpoint (`rdma`) | queue, receives, permissions | the client's info and identity | doorbell page, number | doorbell page, message ring | carries the wake-ups |
//! | a sync event (`event`) | port | - | import's number, offset of the counter | the page, the counter's memory | carries the wake-ups |
//!
//! A service of the same process is reached without a socket ([`Ticket::local`]).
//!
//! An import keeps only its mapping and, for each exporting process, a pidfd and a mapping of that
//! process's control page, which has a word for each slot. Loads, stores and atomics cost no system
//! call; the control page's words are read before each operation. If either of two endpoints could
//! be the server, the endpoint with the smaller instance is.
//!
//! One thread per process ([`thread`]) answers clients, and notices processes that end. It starts
//! with the first export or import, sleeps without wake-ups while nothing happens, and ends with
//! the last export and import. The fabric creates no file unless the application chose a folder
//! ([`set_socket_path`]).
//!
//! # Threat model
//!
//! A peer is another process without ptrace rights over this one. Everything that it sends, when it
//! sends it, and what it does with its descriptors are treated as hostile. A process that has a
//! ticket may do what the ticket permits, so a ticket is as secret as the memory.
//!
//! | rule | enforced by |
//! |---|---|
//! | a peer cannot connect without the ticket; a process that takes the server's name does not learn the key, and cannot answer | a random key that never travels, and proofs over a nonce: [`message`] |
//! | a peer cannot write memory that no peer may write | `F_SEAL_FUTURE_WRITE`: [`sent`] |
//! | a peer that may only read gets no descriptor to write with | a descriptor opened to read, and the memfd's mode; where other peers may write, this does not bind a process of the same user: [`sent`] |
//! | a peer cannot shorten memory that this process has mapped | seals, added before the first send and checked before a mapping: [`sent`], [`received`], [`arena`] |
//! | a peer cannot make an import take memory, or cause a SIGBUS of huge pages | holes and punchable huge pages are refused. Where blocks behind the end hide holes, the import takes at most 256 KiB, or a huge page, before it notices: [`received`], [`sent`]. Memory that both sides write is at most 64 MiB: [`arena`] |
//! | a peer cannot make this process free more memory than it asked for | a memfd that is too large is refused, also if its pages are behind its end: [`received`], [`arena`], [`control`], `pages` |
//! | a peer cannot delay an import beyond its time limit | memory is mapped in pieces, and the clock is read in between: [`received`] |
//! | a blob cannot put lines or escapes into a log | [`Error`](crate::Error) escapes what is not printable |
//! | a peer cannot forge a revocation, or hide one of another process | a control page that only its process can map to write: [`control`]; the blob's word for its exporter is not enough: [`peer`], [`watch`] |
//! | a peer cannot use up the descriptors that this process's user may have in flight | a share of unread replies for each other user: [`connections`] |
//! | no peer blocks, stops or floods the thread | every call `MSG_DONTWAIT`, descriptors opened without waiting for a lease, one request at a time on a connection, 64 silent ones for 2 s and 64 that may ask again, a pause when descriptors run out: [`thread`], [`connections`], [`socket`] |
//! | this process keeps no descriptor that a peer sends unasked, and closes none on a thread for which a task waits | the kernel refuses them, or they are read with capacity for all, and closed elsewhere: [`strangers`](crate::process) |
//! | the end of a process is noticed, even if a child of it holds its sockets | a pidfd, or a connection that stays: [`watch`] |
//! | a process that replaces its program (execve(2)) takes back what it exported, even if a child holds its descriptors | a word of the control page that the kernel marks: [`Owner`](control::Owner) |
//! | a process that replaces its program leaves the endpoints and events that it shared | the end of the doorbell's socket: [`Process::at_the_end_of`] |
//! | an export that was reset stays so: an old ticket opens nothing | a generation and a key of its own for each export: [`slots`], [`ticket`] |
//! | a ticket of one kind opens no service of another | the kind is part of the request, and compared: [`server`] |
//! | a number that a peer sends is checked before it is used | [`ticket`], [`message`], the payloads of the services, [`received`], [`arena`]; all under a fuzzer, `.ci/fuzz` |
//! | a peer cannot reach more of a memfd than was exported | a part of a memfd is not exported: [`sent`] |
//!
//! These things are not enforced:
//!
//! - A process that may write memory, above all the exporter, may punch holes into it after it was
//!   mapped. A thread that touches the memory then allocates its pages, at most the bytes that it
//!   imported, and waits as long as the punching takes: 1.5 s for 4 GiB. A copy that an engine does
//!   delays no runtime.
//! - Before Linux 6.16 a peer can make this process keep descriptors open whose closing takes time
//!   (`SO_LINGER`), up to the process's limit. If no descriptor is left, the kernel closes further
//!   descriptors on the thread that reads.
//! - On any kernel a server can make a client keep three such descriptors open for each reply.
//! - A process that may write an arena can punch holes into it, with the same effect. The endpoints
//!   check the contents.
//! - A client states its instance itself. The kernel identifies its process ([`Client::process`]).
//! - If a process replaces its program while a child of it (fork(2)) holds its sockets, it does not
//!   leave the endpoints and events that it shared.
//! - A hostile exporter can hide that it has replaced its program. Importers then keep its memory,
//!   as if the old program ran.
//! - A process that may write to the folder of a path socket can act as a man in the middle: pass a
//!   request on, and take the reply.
//! - A client resolves the path that a forged ticket names, which takes as long as the path's file
//!   system (FUSE) wants.
//!
//! # Folders
//!
//! | folder | what lives there |
//! |---|---|
//! | `memory` | memory that two processes map |
//! | `protocol` | the bytes that processes exchange: tickets, messages, sockets |
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

pub(super) use client::{Begun, Granted, Import, import};
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
