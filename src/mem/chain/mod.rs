//! Lists of Bufs and ranges of imported memory, which a job gathers from or scatters to.
//!
//! `link` is a piece of a list, `chain` the list, `lease` what a job keeps of it. Of the other
//! rooms of `mem` it imports `remote` and those that `remote` imports.

mod chain;
mod lease;
mod link;

pub use chain::BufChain;
pub(super) use lease::{ChainRead, ChainWrite};
pub use link::Link;
