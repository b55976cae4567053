//! This process and the system: what it believes of others, and what it takes from them.
//!
//! Everything here is a rule against other users of the machine, so that it exists once, below the
//! layers that need it.

mod closing;
mod environment;
mod strangers;
mod user;

pub(crate) use closing::Guarded;
pub(crate) use environment::variable;
pub(crate) use strangers::{accept, connect, hang_up, listen, receive, receive_with, refuse};
pub(crate) use user::{check_own_user, is_own_user};
