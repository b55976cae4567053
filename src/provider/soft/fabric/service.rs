//! The services of this process: a [`Service`] for each used slot of the table, and the [`Client`]
//! that sends a request to it.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use nix::errno::Errno;

use super::process::Fabric;
use super::protocol::{DESCRIPTORS, Id, Payload, Refusal, socket};
use super::watch::Process;
use crate::process::Guarded;

/// An object to which clients of other processes connect.
pub(in super::super) trait Service: Send + Sync {
    /// Grants or refuses the request of a client that has proved its ticket. The fabric's thread
    /// calls this, so it must not block.
    ///
    /// A client may never read the reply: it may have given up, or have ended.
    fn accept(&self, client: &Client<'_>) -> Result<Grant, Refusal>;

    /// Returns the service itself, for clients of the same process.
    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
}

/// The contents of a slot.
#[derive(Clone)]
pub(super) struct PublishedService {
    /// The number that identifies the kind of the service's tickets.
    pub(super) kind: u8,
    pub(super) service: Weak<dyn Service>,
}

/// A client that sends a request.
pub(in super::super) struct Client<'a> {
    /// The instance of the client's fabric, as the client states it. [`Client::process`] instead
    /// relies on the kernel.
    pub(in super::super) instance: Id,
    pub(in super::super) payload: Payload,
    pub(super) fabric: &'a Weak<Fabric>,
    pub(super) socket: &'a Guarded,
    /// The client's process, if an earlier request on the same connection has identified it.
    pub(super) known: &'a RefCell<Weak<Process>>,
    /// True if one more connection may stay open.
    pub(super) has_capacity: bool,
    /// True if this connection must stay open, because it is the only means by which one of the two
    /// processes can watch the other. If the client needs it, this is true from the start.
    pub(in super::super) stays: Cell<bool>,
}

impl Client<'_> {
    /// Returns the client's process, and watches it from now on.
    ///
    /// # Errors
    ///
    /// `Failed` if the process has ended, or if its connection would have to stay open and the
    /// maximum number of such connections is reached.
    pub(in super::super) fn process(&self) -> Result<Arc<Process>, Refusal> {
        let mut known = self.known.borrow_mut();
        if let Some(process) = known.upgrade().filter(|process| !process.is_dead()) {
            return Ok(process);
        }
        let fabric = self.fabric.upgrade().ok_or(Refusal::UNKNOWN)?;
        let pidfd = socket::pidfd(self.socket)?;
        if pidfd.is_none() {
            self.stays.set(true);
            if !self.has_capacity {
                return Err(Errno::EUSERS.into());
            }
        }
        let process = Process::across(&fabric, self.instance, self.socket, pidfd, false)?;
        *known = Arc::downgrade(&process);
        Ok(process)
    }
}

/// The reply to a client whose request is granted.
pub(in super::super) struct Grant {
    pub(in super::super) payload: Payload,
    /// `None` if the client already has the descriptors that it needs.
    pub(in super::super) descriptors: Option<[Arc<OwnedFd>; DESCRIPTORS]>,
    /// Is called with the connection once the client has the reply, and dropped without a call if
    /// the client does not get the reply. With `None` the fabric keeps the connection.
    pub(in super::super) keep: Option<Box<dyn FnOnce(Guarded) + Send>>,
    /// Is called if the reply could not be sent. The client may come again.
    pub(in super::super) unsent: Option<Box<dyn FnOnce() + Send>>,
}
