//! The client's side: how this process [connects](connect) to the object of a ticket, and how it
//! uses [imported](mod@import) memory.
//!
//! These files import everything else of the fabric; nothing of the fabric imports them.

mod connect;
mod dial;
mod import;

pub(in super::super) use connect::{Begun, Granted};
#[cfg(fuzzing)]
pub(super) use dial::Answer;
#[cfg(test)]
pub(super) use dial::Dialed;
#[cfg(test)]
pub(super) use import::other;
pub(in super::super) use import::{Import, import};
