//! This process and the system: what it believes of others, and what it takes from them.
//!
//! Everything here is a rule against other users of the machine, so that it exists once, below the
//! layers that need it.

mod environment;
mod random;

pub(crate) use environment::variable;
pub(crate) use random::random;
