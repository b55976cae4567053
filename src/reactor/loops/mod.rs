//! How a WorkQ is driven without a runtime: by `WorkQ::block_on`, by a thread that polls, and by
//! the caller's own loop, which arms, waits, clears and calls `WorkQ::progress`.
//!
//! These files import `jobs`, `workq` and the folders below `workq`; no other folder imports them.
//! A receive or a wait that was posted is polled by code in `endpoint` and `sync_event`.

mod block_on;
mod own_loop;
mod poll_thread;

pub use poll_thread::PollThread;
