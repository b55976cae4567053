//! What a job reads and writes, and how its memory is lent to a device.
//!
//! `copy`, `side` and `rdma` say what the operands of a kind of job may be, and take their Leases;
//! the result is a `Leased`: a job, and the Leases of all memory that it names. A new kind of
//! operand implements their sealed traits in a file of its own, as `remote` and `any` do. This room
//! may import all others of `mem`, and none of them imports it.

mod any;
mod copy;
mod counter;
mod handover;
mod leased;
mod leases;
mod or_remote;
mod overlap;
mod rdma;
mod remote;
mod session;
mod side;

pub use any::{AnyDestination, AnySource, MaybeAny};
pub(crate) use copy::surely_within;
pub use copy::{CopyDestination, CopySource, Destination, Source};
pub(crate) use handover::hand_over;
pub(crate) use leased::{Leased, begin};
pub(crate) use leases::{Grow, Last, Leases, Reading, Writing};
pub use or_remote::OrRemote;
pub use rdma::{MaybeRemote, RdmaDestination, RdmaSource};
pub(crate) use rdma::{Moves, begin_rdma};
pub(crate) use session::{Session, SessionLease};
pub use side::{MaybeDestination, MaybeSource};
pub(crate) use side::{begin_receive, begin_sides};
