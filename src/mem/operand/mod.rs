//! What a job reads and writes, and how its memory is lent to a device.
//!
//! `marks` says which operands an operation takes. `model` says what can be read and what can be
//! written, and takes the leases of either. `leased` makes a `Leased` out of two sides: a job, and
//! the leases of all memory that it names. A `Rule` says how many bytes the job moves. A new type
//! of operand implements the traits of `model`; a new kind of job implements `OnLent` of `device`,
//! without a change here. This module may import all others of `mem`, and none of them imports it.

mod any;
mod counter;
mod handover;
mod leased;
mod leases;
mod marks;
mod model;
mod overlap;
mod rule;
mod session;

pub use any::{
    Any, AnyCopyDestination, AnyCopySource, AnyDestination, AnySource, MaybeAnyDestination,
    MaybeAnyRemote, MaybeAnySource,
};
pub(crate) use handover::hand_over;
pub(crate) use leased::{Leased, LeasesOf, Sides, event, receive};
pub(crate) use leases::{Grow, Last, Leases, OfJob, Reading, Writing};
pub use marks::{
    CopyDestination, CopySource, Destination, MaybeDestination, MaybeRemote, MaybeSource,
    RdmaDestination, RdmaSource, Source,
};
pub(crate) use model::Reach;
pub(crate) use rule::Rule;
pub(crate) use session::Session;
