//! This process and the system: which peers the process trusts, what it accepts from them, and
//! which limits the system sets.
//!
//! Everything here is a rule that several layers need, so that it exists once, below them.

mod closing;
mod environment;
mod memfd;
mod strangers;
mod user;

pub(crate) use closing::Guarded;
pub(crate) use environment::{variable, variables};
pub(crate) use memfd::{lengthen, page_size};
pub(crate) use strangers::{
    accept, connect, expect, hang_up, listen, receive, receive_with, refuse, unacknowledged,
};
pub(crate) use user::{check_own_user, is_own_user};
