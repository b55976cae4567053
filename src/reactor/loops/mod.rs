//! Where a WorkQ is driven without a runtime: `WorkQ::block_on`, a thread that polls, and a loop
//! of the caller's own, which arms, waits, clears and calls `WorkQ::progress`.
//!
//! These files import `workq` and the rooms below it, and nothing imports them. How a receive or a
//! wait that was posted is polled is in `endpoint` and `sync_event`.

mod block_on;
mod own_loop;
mod poll_thread;

pub use poll_thread::PollThread;
