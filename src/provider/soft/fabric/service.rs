//! What this process serves: a [`Service`] for each slot of its table, and the [`Client`] that it
//! accepts.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use nix::errno::Errno;

use super::process::Fabric;
use super::protocol::{DESCRIPTORS, Id, Payload, Refusal, socket};
use super::watch::Process;
use crate::process::Guarded;

/// Something that clients of other processes connect to.
pub(in super::super) trait Service: Send + Sync {
    /// Grants or refuses the request of a client that has proved its ticket. It runs on the
    /// fabric's thread, and must not block.
    ///
    /// A client may never read what is granted: it may have given up, or have ended.
    fn accept(&self, client: &Client<'_>) -> Result<Grant, Refusal>;

    /// For clients of the same process.
    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
}

/// What lies in a slot.
#[derive(Clone)]
pub(super) struct PublishedService {
    /// The number of its tickets' kind.
    pub(super) kind: u8,
    pub(super) service: Weak<dyn Service>,
}

/// A client that asks.
pub(in super::super) struct Client<'a> {
    /// The instance of its fabric, by its own word. [`Client::process`] has the kernel's word.
    pub(in super::super) instance: Id,
    pub(in super::super) payload: Payload,
    pub(super) fabric: &'a Weak<Fabric>,
    pub(super) socket: &'a Guarded,
    /// Its process, if it is known from an earlier request on the same connection.
    pub(super) known: &'a RefCell<Weak<Process>>,
    /// True if one more connection may stay.
    pub(super) has_room: bool,
    /// Whether this one has to stay, since its end is all that one of the two can watch.
    pub(super) stays: Cell<bool>,
}

impl Client<'_> {
    /// Returns the client's process, which is watched from now on.
    ///
    /// # Errors
    ///
    /// `Failed` if the process has ended, or if its connection would have to stay and too many do.
    pub(in super::super) fn process(&self) -> Result<Arc<Process>, Refusal> {
        let mut known = self.known.borrow_mut();
        if let Some(process) = known.upgrade().filter(|process| !process.is_dead()) {
            return Ok(process);
        }
        let fabric = self.fabric.upgrade().ok_or(Refusal::UNKNOWN)?;
        let pidfd = socket::pidfd(self.socket)?;
        if pidfd.is_none() {
            self.stays.set(true);
            if !self.has_room {
                return Err(Errno::EUSERS.into());
            }
        }
        let process = Process::across(&fabric, self.instance, self.socket, pidfd, false)?;
        *known = Arc::downgrade(&process);
        Ok(process)
    }
}

/// What a client gets.
pub(in super::super) struct Grant {
    pub(in super::super) payload: Payload,
    pub(in super::super) descriptors: [Arc<OwnedFd>; DESCRIPTORS],
    /// Takes the connection once the client has the reply, and is dropped without a call if the
    /// client does not get it. `None` leaves the connection to the fabric.
    pub(in super::super) keep: Option<Box<dyn FnOnce(Guarded) + Send>>,
    /// Is called if the reply could not be sent: the client may come again.
    pub(in super::super) unsent: Option<Box<dyn FnOnce() + Send>>,
}
