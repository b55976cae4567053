//! Memory of the application that a peer gets in addition to an arena: the counter of a sync event
//! may be in it.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use super::mapping::Mapping;
use super::{received, sent};
use crate::device::Backing;
use crate::error::Result;

/// Seals `len` bytes of memory, so that they can be sent to a peer that may write to them.
///
/// # Errors
///
/// `NotPermitted` for a part of a memfd, and for a memfd whose seals prevent it; `NotSupported` for
/// huge pages.
pub(in super::super::super) fn share(backing: &Backing, len: usize) -> Result<()> {
    sent::check_whole(&backing.memfd, backing.offset, len)?;
    sent::seal(&backing.memfd, true, true)
}

/// Returns a descriptor for a peer.
pub(in super::super::super) fn hand_out(backing: &Backing) -> nix::Result<OwnedFd> {
    sent::reopen(backing.memfd.as_fd(), true)
}

/// Maps `len` bytes that a peer sent as the memory of an event, by the deadline.
///
/// # Errors
///
/// `NotPermitted` if no honest peer would send such memory; `TimedOut` after the deadline;
/// `OperatingSystem` if a system call fails.
pub(in super::super::super) fn map_shared(
    memfd: &OwnedFd,
    len: u64,
    deadline: Instant,
) -> Result<Mapping> {
    received::map(memfd, len, true, deadline)
}
