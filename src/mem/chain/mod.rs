//! Lists of Bufs and ranges of imported memory, which a job gathers from or scatters to.
//!
//! `chain` is the list, `piece` what it consists of, `lease` what a job keeps of it. Of the other
//! modules of `mem` it imports `remote` and those that `remote` imports.

mod chain;
mod lease;
mod piece;

pub use chain::BufChain;
pub(super) use lease::{AfterChain, ChainRead, ChainWrite};
pub use piece::ChainPiece;
