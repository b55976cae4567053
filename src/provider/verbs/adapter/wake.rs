//! The event that wakes the thread which watches adapters (`watcher`).

use std::sync::OnceLock;

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
