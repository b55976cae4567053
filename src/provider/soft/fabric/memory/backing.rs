//! Memory of the application's that a peer gets beside an arena: the counter of a sync event may lie in it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use super::mapping::Mapping;
use super::{received, sent};
use crate::device::Backing;
use crate::error::Result;

/// Sees to it that so much memory can be given to a peer that may write it.
///
/// # Errors
///
/// `NotPermitted` for a part of a memfd, and for one whose seals forbid it; `NotSupported` for huge pages.
pub(in super::super::super) fn share(backing: &Backing, len: usize) -> Result<()> {
    sent::check_whole(&backing.memfd, backing.offset, len)?;
    sent::seal(&backing.memfd, true, true)
}

/// A descriptor for a peer.
pub(in super::super::super) fn hand_out(backing: &Backing) -> io::Result<OwnedFd> {
    Ok(sent::reopen(backing.memfd.as_fd(), true)?.into())
}

/// Maps what a peer sent as such memory, by the deadline.
///
/// # Errors
///
/// `NotPermitted` for what no honest peer sends; `TimedOut`; what could not be had.
pub(in super::super::super) fn map_shared(
    memfd: &OwnedFd,
    offset: u64,
    len: u64,
    deadline: Instant,
) -> Result<Mapping> {
    received::map(memfd, offset, len, true, deadline)
}
