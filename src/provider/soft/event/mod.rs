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
//! A set, an add and a get are one atomic operation on the counter, by the thread that submits. A
//! wait polls the counter. If the task of a wait is about to sleep, the wait has an entry in the
//! [heap](waits) of its port. The port then publishes the value that the counter must exceed before
//! a waiter is woken: in `lowest` for its own process, in `wanted` for the other process. The side
//! that changes the counter compares the new value with these two words, and wakes the waiters that
//! it concerns.
//!
//! ```text
//!   the side that changes the counter             the side that sleeps
//!   -------------------------------------------------------------------
//!   counter: swap, or add                         lowest, wanted = what it must exceed
//!   value > lowest? value > wanted? wake once     counter: load; exceeds it? poll once more
//! ```
//!
//! All four steps are SeqCst: either the side that changes the counter sees the other side's word,
//! or the sleeping side sees the new value. There is no system call while no thread sleeps, or if
//! the value ends no wait.
//!
//! # Who may share it
//!
//! An event that has the DPU as its publisher or subscriber lies in a memfd of its own, and can be
//! exported. It has one importer at a time: the next importer may come once the former one has
//! dropped the event or has ended. The connection of the import stays open, and carries the
//! wake-ups of both sides, which costs one descriptor for each imported event. An event whose
//! locations are both the CPU is a few words of this process, and costs no descriptor.
//!
//! # Threat model
//!
//! As for the [fabric](super::fabric). The peer can write the page, and the application's memory
//! that the counter lies in, at any time.
//!
//! | rule | enforced by |
//! |---|---|
//! | any value of the counter is valid | no address, length or index is computed from it |
//! | a number of the page is compared, and never used as an index or a length | [`words`] |
//! | a peer can make this side poll in vain, but cannot make it sleep through its own changes | `lowest` is private: [`counter`] |
//! | a peer cannot block the sender of a wake-up, or fill the socket for good | [`bell`](super::bell) |
//! | the end of a peer ends every wait | a pidfd and the connection, watched by the fabric's thread; a `closed` word for an orderly end: [`connect`] |
//! | a peer delays only the threads that use the counter | the fabric's thread, which answers all peers, reads the page alone: [`connect`] |
//! | a former importer cannot close the event of its successor | an importer closes the event by a random number that it alone is given: [`words`] |
//! | a former importer that has ended does not block a new one | the kernel is asked whether its process lives, as a child of it may hold the connection: [`counter`] |
//! | the offset of the counter that a peer sends is checked | [`connect`], and the fabric's checks of memfds |
//!
//! One thing is not enforced: a former importer still maps the page. It can write the counter, and
//! take wake-ups away from its successor.

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
