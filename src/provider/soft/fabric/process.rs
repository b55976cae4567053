//! The state of a process that exports or imports.
//!
//! Exports and imports hold an `Arc<Fabric>`. The thread holds only its own part, [`Shared`], so
//! that the drop of the last export or import can stop it. A child of fork(2) has copies of all
//! these values, but no thread: its calls fail, and its drops change nothing of its parent.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::control::Control;
use super::listener;
use super::protocol::{Address, Id, Lines, Netns, Slots, netns};
use super::service::PublishedService;
use super::watch::{self, Processes};
use crate::error::{Error, Result};
use crate::process::{Guarded, hang_up};
use crate::sync::{Process, lock};

/// The process that has the fabric, and the fabric's number; 0 if there is none. This is read
/// before any lock is taken, since a child of fork(2) may have inherited a lock that is held.
pub(super) static OWNER: AtomicU64 = AtomicU64::new(0);

// These are the epoll data of the thread's descriptors.
pub(super) const BELL: u64 = 0;
pub(super) const LISTENER: u64 = 1;
/// The number of the first connection.
pub(super) const FIRST: u64 = 2;
/// The bit that marks the number of a watched process; numbers of connections do not have it.
pub(super) const PROCESS: u64 = 1 << 63;

/// The handle of the fabric that exports and imports hold.
pub(super) struct Fabric {
    shared: Arc<Shared>,
    owner: u64,
}

/// The part of the fabric that its own thread uses as well.
pub(super) struct Shared {
    process: Process,
    pub(super) instance: Id,
    pub(super) epoll: Epoll,
    bell: EventFd,
    stop: AtomicBool,
    server: OnceLock<Server>,
    /// The lock that a thread holds while it opens the server.
    opening: Mutex<()>,
    pub(super) processes: Mutex<Processes>,
    pub(super) lines: Lines<watch::Process>,
}

/// The state that an exporting process has in addition, from its first export on.
pub(super) struct Server {
    pub(super) listener: Guarded,
    pub(super) address: Address,
    pub(super) netns: Netns,
    pub(super) control: Control,
    pub(super) table: Mutex<Slots<PublishedService>>,
    /// The fabric. The `Process` of each client keeps the fabric alive; the fabric's own thread
    /// must not.
    pub(super) fabric: Weak<Fabric>,
}

impl Fabric {
    /// Returns the fabric of this process, whose thread was started already.
    pub(super) fn new(shared: Arc<Shared>) -> Fabric {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Relaxed) & u64::from(u32::MAX);
        let owner = u64::from(shared.process.distinct()) << 32 | number;
        OWNER.store(owner, Relaxed);
        Fabric { shared, owner }
    }

    /// Returns the server, opening it if there is none.
    ///
    /// # Errors
    ///
    /// `OperatingSystem` if a system call fails.
    pub(super) fn open_server(self: &Arc<Fabric>) -> Result<&Server> {
        let _one = lock(&self.opening);
        if let Some(server) = self.server() {
            return Ok(server);
        }
        let netns = Netns::here()?;
        let control = Control::new()?;
        let (listener, address) = listener::open(&self.instance)?;
        let event = EpollEvent::new(EpollFlags::EPOLLIN, LISTENER);
        if let Err(errno) = self.epoll.add(&listener, event) {
            listener::leave(&address);
            return Err(Error::os(None, "epoll_ctl", errno.into()));
        }
        Ok(self.server.get_or_init(|| Server {
            listener,
            address,
            netns,
            control,
            table: Mutex::default(),
            fabric: Arc::downgrade(self),
        }))
    }
}

impl Deref for Fabric {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        if self.is_inherited() {
            return;
        }
        // Another fabric may have started meanwhile.
        let _ = OWNER.compare_exchange(self.owner, 0, Relaxed, Relaxed);
        // The stop comes first: the listener stays ready once it is hung up, so the thread must see
        // the stop.
        self.stop.store(true, Relaxed);
        if let Some(server) = self.server() {
            // The dropping thread does this, not the fabric's thread, so that no client can connect
            // from here on.
            hang_up(&server.listener);
            listener::leave(&server.address);
        }
        let _ = self.bell.write(1);
    }
}

impl Shared {
    pub(super) fn new(process: Process) -> Result<Shared> {
        let failed = |what| move |errno: nix::errno::Errno| Error::os(None, what, errno.into());
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(failed("epoll_create1"))?;
        let bell = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(failed("eventfd"))?;
        let event = EpollEvent::new(EpollFlags::EPOLLIN, BELL);
        epoll.add(&bell, event).map_err(failed("epoll_ctl"))?;
        Ok(Shared {
            process,
            instance: netns::random()?,
            epoll,
            bell,
            stop: AtomicBool::new(false),
            server: OnceLock::new(),
            opening: Mutex::new(()),
            processes: Mutex::default(),
            lines: Lines::new(),
        })
    }

    /// Returns true if this is a copy in a child of fork(2). Such a copy may neither take a lock
    /// nor change anything.
    pub(super) fn is_inherited(&self) -> bool {
        !self.process.is_current()
    }

    pub(super) fn is_over(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// Returns the server, if this process exports.
    pub(super) fn server(&self) -> Option<&Server> {
        self.server.get()
    }
}
