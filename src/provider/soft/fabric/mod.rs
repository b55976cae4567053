//! The fabric of software devices: memory of one process, used by another of the same host, and endpoints that meet.
//!
//! ```text
//!   exporter                                               importer
//!   export: seals the memfd, takes a slot --- blob -------> import: connects, asks        (by any way, the application's)
//!   thread: looks the slot up, checks the proof <---------- slot, generation, nonce, proof
//!           opens descriptors for this importer ----------> checks the proof, the seals and the size
//!                                                           maps, closes everything, watches a pidfd
//!   memory  <======= loads, stores and atomics, without a system call =======> memory
//!   control page: a word per export, and the owner's -------> read before each operation
//! ```
//!
//! One thread per process ([`thread`]) answers importers and guests, and notices processes that end. It starts at the first export or
//! import, sleeps without wake-ups while nothing happens, and ends with the last of them; a connection lasts for one import. Of an
//! import nothing stays but its mapping, and for each exporting process a mapping of its control page and a pidfd. Nothing is in the file
//! system, unless a folder was asked for ([`set_socket_path`]).
//!
//! Endpoints of an Rdma meet by the same means. Both are exported ([`invite`]), and of the two processes the one with the smaller instance
//! is the host: the other's visit ([`Invitation::visit`]) is answered by the host's thread, as its endpoint ([`Host`]) says.
//!
//! ```text
//!   host                                                   guest
//!   invite: takes a slot ------------- blob -------------> visit: connects, asks
//!   thread: looks the slot up, checks the proof <--------- slot, generation, nonce, instance, hello, proof
//!           asks the endpoint, sends two memfds ---------> checks the proof, and, as it maps them, seals and size
//!   the connection, if the host keeps it: doorbells
//!   arenas  <======================= written by both =======================> arenas
//! ```
//!
//! # Threat model
//!
//! A peer is another process without ptrace rights over this one. What it sends, when, and what it does with descriptors that
//! it was given is hostile. Whoever has a blob may do what the blob says: it is as secret as the memory.
//!
//! | rule | enforced by |
//! |---|---|
//! | nobody imports or visits without the blob; a process that takes the exporter's name learns and answers nothing | a random key that never travels, and proofs over a nonce: [`wire`], [`greeting`] |
//! | nobody writes what no peer may write | `F_SEAL_FUTURE_WRITE`: [`sent`] |
//! | who may read only gets no descriptor to write with | a descriptor opened to read, and the memfd's mode; advice against the same user where others may write: [`sent`] |
//! | nobody shortens memory under us | seals, added before the first send and checked before a mapping: [`sent`], [`received`], [`arena`] |
//! | nobody makes us take memory at an import, or a SIGBUS of huge pages | holes and punchable huge pages are refused, also where blocks behind the end stand for them, which takes 256 KiB, or a huge page, at most: [`received`], [`sent`]; what both write is at most 64 MiB: [`arena`] |
//! | nobody makes us free more than we asked for | a memfd that is larger than it shall be is refused, also by pages behind its end: [`received`], [`arena`], [`control`], [`pages`] |
//! | nobody holds up an import beyond its time limit | memory is mapped in pieces, and the clock is looked at in between: [`received`] |
//! | nobody writes lines or escapes into a log by what a blob says | [`Error`](crate::Error) escapes what is not printable |
//! | nobody forges a revocation, or hides one of another's | a control page that only its process can map to write: [`control`]; a blob's word for whose it is is not enough: [`peer`], [`watch`] |
//! | nobody uses up what this process's user has in flight | a share of unread answers for each other user: [`untaken`] |
//! | no peer blocks, stops or floods the thread | every call `MSG_DONTWAIT`, descriptors opened without waiting for a lease, one message per connection, 64 silent ones for 2 s, a pause when descriptors run out: [`thread`], [`socket`] |
//! | no descriptor of a stranger is kept, and none is closed on a thread that anybody waits for | refused by the kernel, or read with room for all and closed elsewhere: [`strangers`](crate::process) |
//! | a process's end is noticed, also when a child holds its sockets | a pidfd, or a connection that stays: [`watch`] |
//! | a process that replaces its program (execve(2)) takes back what it exported, also when a child holds its descriptors | a word of the control page that the kernel marks: [`Owner`](control::Owner) |
//! | a process that replaces its program leaves the endpoints and events that it shared | the end of the bell's socket: [`Process::at_the_end_of`] |
//! | what was reset stays so: an old blob meets nobody | a generation and a key of its own for each export: [`slots`], [`invitation`] |
//! | a number from outside is checked before it is used | [`blob`], [`wire`], [`received`], [`invitation`], [`greeting`], [`arena`]; all under a fuzzer, `.ci/fuzz` |
//! | nobody reaches more of a memfd than was exported | a part of one is not exported: [`sent`] |
//!
//! What is not:
//!
//! - whoever may write memory, the exporter above all, may punch holes into it after it was mapped.
//!   A thread that touches the memory then takes its pages, of as many bytes as it imported at most,
//!   and waits for as long as the punching takes: 1.5 s for 4 GiB. A copy that an engine does holds up
//!   no runtime;
//! - before Linux 6.16 a peer can have this process keep descriptors open whose closing takes time (`SO_LINGER`), up to its limit; if none
//!   is left, the kernel closes more of them on the thread that reads;
//! - on any kernel an exporter or a host can have it keep three of them open for each answer;
//! - who may write an arena can punch holes into it, with the same effect; what is in it the endpoints check;
//! - a guest's word for its instance is its own: whose process it is says the kernel ([`Guest::process`]);
//! - a process that replaces its program while a child of it (fork(2)) holds its sockets does not
//!   leave the endpoints and events that it shared;
//! - a hostile exporter can hide that it has replaced its program: importers keep its memory, as if
//!   it ran the old one;
//! - who may write to the folder of a path socket can put itself between, pass a request on and take the answer;
//! - an importer looks up the path that a forged blob names, which takes as long as a file system of that one's (FUSE) likes.
//!
//! # Rooms
//!
//! | folder | what lives there |
//! |---|---|
//! | `memory` | memory that two processes map |
//! | `protocol` | what they say to each other |
//! | this one | the thread, what it serves, and which processes it watches; imports the two above |
//! | `client` | whoever asks another process; imports all the others |
//!
//! [`wire`]: protocol::wire
//! [`greeting`]: protocol::greeting
//! [`blob`]: protocol::Blob
//! [`slots`]: protocol::Slots
//! [`socket`]: protocol::socket
//! [`sent`]: memory::sent
//! [`received`]: memory::received
//! [`arena`]: memory::Arena
//! [`invitation`]: client::Invitation

mod client;
mod connection;
mod control;
mod current;
mod ended;
mod exporter;
#[cfg(fuzzing)]
pub(super) mod fuzzing;
mod host;
mod listener;
mod memory;
mod peer;
mod process;
mod protocol;
mod table;
mod thread;
mod untaken;
mod watch;

use crate::provider::{envelope, layout};

pub(super) use client::{ENDPOINT, EVENT, Import, Invitation, Invited, import, instance, invite};
pub use current::set_socket_path;
pub(super) use ended::Ended;
pub(super) use exporter::export;
pub(super) use host::{Guest, Host, Refused, Welcome};
pub(super) use memory::{Arena, Mapping, hand_out, map_shared, share};
pub(super) use protocol::greeting::{HELLO, Hello};
pub(super) use protocol::{Blob, Id, random, words_of};
pub(super) use watch::Process;
