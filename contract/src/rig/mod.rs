//! The code that the checks share: the subject, a queue that is driven as a WorkQ would, and
//! deadlines.
//!
//! A [`Rig`] submits jobs of a [`Subject`] on an [`Arena`], counts signals by a [`Signals`], and
//! checks every byte. This module imports no other module of the suite.

mod arena;
mod attached;
mod bench;
mod cell;
mod crc;
mod dice;
mod digest;
mod queue;
mod retained;
mod rig;
mod shape;
mod signals;
mod subject;
mod watch;

pub(super) use arena::Arena;
pub(super) use attached::Attached;
pub(super) use bench::{Bench, ELEMENT};
pub(super) use crc::{SEED, crc32c, known_crcs};
pub(super) use dice::Dice;
pub(super) use digest::{digest, hex, known};
pub(super) use queue::{AGAIN, check_refusal, reap};
pub(super) use rig::Rig;
pub(super) use shape::{Shape, pieces};
pub(super) use signals::Signals;
pub(super) use subject::{Kind, depths, watched};
pub use subject::{Sample, Subject};
pub use watch::DEADLINE;
pub(super) use watch::{wait_for, watched_for};
