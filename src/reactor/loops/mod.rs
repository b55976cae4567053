//! Where a WorkQ is driven without a runtime: `WorkQ::block_on`, and a loop of the caller's own, which
//! arms, waits, clears and calls `WorkQ::progress`.
//!
//! These files import `waiting` and the rooms below it, and nothing imports them.

mod block_on;
mod own_loop;
