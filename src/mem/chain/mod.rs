//! Lists of Bufs and ranges of imported memory, which a job gathers from or scatters to.
//!
//! `chain` is the list, `piece` is one element of it, and `lease` is what a job keeps while it uses
//! a chain. Of the other modules of `mem`, this one imports `remote` and those that `remote`
//! imports.

mod chain;
mod lease;
mod piece;

pub use chain::BufChain;
pub(super) use lease::{AfterChain, ChainRead, ChainWrite};
pub use piece::ChainPiece;
