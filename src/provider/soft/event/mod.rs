//! Sync events of software devices: a 64-bit counter in memory that two processes may share.
//!
//! ```text
//!   owner (the exporter)                               importer
//!   WorkQ -- Port: its waits, its Jobs                 Port -- WorkQ
//!              |                                        |
//!            SoftEvent -- counter == one word ======= SoftEvent
//!                     \\- page: wanted, closed ======-/
//!                     \\- bell: a byte on a socket ---/
//! ```
//!
//! A set, an add and a get are one atomic operation on the counter, by whoever asks. A wait looks
//! at it. Only who is about to sleep has a place in the [heap](waits) of its port, and says in a
//! word what the counter must exceed for anybody to be woken: `lowest` to its own process, `wanted`
//! to the other. The party that changes the counter compares what it has become with those two
//! words, and rings.
//!
//! ```text
//!   who changes the counter                       who sleeps
//!   -------------------------------------------------------------------
//!   counter: swap, or add                         lowest, wanted = what it must exceed
//!   value > lowest? value > wanted? ring once     counter: load; exceeds it? looks once more
//! ```
//!
//! All four are SeqCst: either the one sees the other's word, or that one sees the value. While
//! nobody sleeps, or the value ends no wait, there is no system call.
//!
//! # Who may have it
//!
//! An event that has the DPU as its publisher or subscriber lies in a memfd of its own, and can be
//! exported. It has one importer at a time: the next may come when the one before has dropped it or
//! has ended. The connection of the import stays, and carries the doorbells of both sides: one
//! descriptor for each imported event. One of the CPU's alone is a few words of this process, and
//! costs no descriptor.
//!
//! # Threat model
//!
//! As for the [fabric](super::fabric). What the peer can write is the page, and the memory of the
//! application's that the counter lies in, at any time.
//!
//! | rule | enforced by |
//! |---|---|
//! | any value of the counter is a value | nothing is reckoned from it |
//! | a number of the page is compared, and never used as a place or a length | [`words`] |
//! | it can make this side look in vain, and not sleep through what this side does itself | `lowest` is private: [`counter`] |
//! | it cannot stop whoever rings, or fill what rings here | [`bell`](super::bell) |
//! | its end ends every wait | a pidfd and the connection, watched by the fabric's thread; a `closed` word for an orderly end: [`connect`] |
//! | it holds up nobody but those that ask for the counter | the fabric's thread, which answers all others, reads the page alone: [`connect`] |
//! | a former importer closes nothing of its successor's | what closes is a random number that each importer is told for itself: [`words`] |
//! | a former importer that has ended is in nobody's way | the kernel is asked whether its process lives, as a child of it may hold the connection: [`counter`] |
//! | where the counter lies in what it sends is checked | [`connect`], and the fabric's checks of memfds |
//!
//! What is not: a former importer has the page still. It can write the counter, and take wake-ups
//! away from its successor.

mod connect;
mod counter;
#[cfg(all(test, tokio_doca_loom))]
mod loom;
mod payload;
mod port;
mod waits;
mod words;

pub(super) use connect::import;
pub(super) use counter::SoftEvent;
#[cfg(fuzzing)]
pub(super) use payload::ConnectReply;
pub(super) use payload::EventInfo;
pub(super) use port::SoftPort;
