//! The event that wakes the thread which watches adapters (`watcher`), and the mode of the
//! descriptors that it reads.

use std::os::fd::BorrowedFd;
use std::sync::OnceLock;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::error::{Error, Result};

static EVENT: OnceLock<EventFd> = OnceLock::new();

/// Returns the event, which the first caller creates. The watcher calls this under a lock.
pub(in super::super) fn event() -> Result<&'static EventFd> {
    if let Some(event) = EVENT.get() {
        return Ok(event);
    }
    let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
    let event = EventFd::from_value_and_flags(0, flags)
        .map_err(|errno| Error::os(None, "eventfd", errno.into()))?;
    Ok(EVENT.get_or_init(|| event))
}

/// Wakes the watcher, which polls all connections and forgets devices that were closed.
pub(in super::super) fn wake() {
    if let Some(event) = EVENT.get() {
        // A full counter wakes as well.
        let _ = event.write(1);
    }
}

/// Makes a descriptor nonblocking. libibverbs opens its descriptors as blocking ones
/// (ibv_get_cq_event(3), ibv_get_async_event(3)).
pub(in super::super) fn set_nonblocking(fd: BorrowedFd<'_>) -> Result<()> {
    let set = fcntl(fd, FcntlArg::F_GETFL).and_then(|flags| {
        let flags = OFlag::from_bits_retain(flags) | OFlag::O_NONBLOCK;
        fcntl(fd, FcntlArg::F_SETFL(flags))
    });
    set.map(|_| ())
        .map_err(|errno| Error::os(None, "fcntl", errno.into()))
}
