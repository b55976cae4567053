//! What a process has that exports or imports.
//!
//! Who exports or imports holds an `Arc<Fabric>`; the thread holds what it works on, [`Shared`], and not the fabric, so that the
//! last holder's drop can tell it to end. A child of fork(2) has copies of all this, and no thread: it is told so, and what it
//! drops changes nothing of its parent's.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::connection::{BELL, LISTENER};
use super::control::Control;
use super::host::Seat;
use super::listener;
use super::protocol::{Address, Contact, Id, Place, Slots, place};
use super::table::Table;
use super::watch::Processes;
use crate::error::{Error, Result};
use crate::process::{Guarded, hang_up};
use crate::sync::{Process, lock};

/// The process whose fabric there is, and a number of that fabric; 0 if there is none. It is read before any lock is taken: a child of
/// fork(2) may have inherited a locked one.
pub(super) static OWNER: AtomicU64 = AtomicU64::new(0);

/// What exports and imports hold.
pub(super) struct Fabric {
    shared: Arc<Shared>,
    owner: u64,
}

/// What the thread works on.
pub(super) struct Shared {
    process: Process,
    pub(super) instance: Id,
    pub(super) epoll: Epoll,
    bell: EventFd,
    stop: AtomicBool,
    station: OnceLock<Station>,
    /// Held while the station opens.
    opening: Mutex<()>,
    pub(super) processes: Mutex<Processes>,
}

/// What a process has that exports memory or endpoints: there from the first export on.
pub(super) struct Station {
    pub(super) listener: Guarded,
    pub(super) address: Address,
    pub(super) place: Place,
    pub(super) control: Control,
    pub(super) table: Mutex<Table>,
    /// Endpoints that guests of other processes come to.
    pub(super) seats: Mutex<Slots<Seat>>,
}

impl Fabric {
    /// The one of this process, whose thread has begun.
    pub(super) fn new(shared: Arc<Shared>) -> Fabric {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Relaxed) & u64::from(u32::MAX);
        let owner = u64::from(shared.process.id()) << 32 | number;
        OWNER.store(owner, Relaxed);
        Fabric { shared, owner }
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
        // Unless another has started meanwhile.
        let _ = OWNER.compare_exchange(self.owner, 0, Relaxed, Relaxed);
        // First: the listener that is hung up is ready for ever.
        self.stop.store(true, Relaxed);
        if let Some(station) = self.station() {
            // Here, and not in the thread: from now on nobody can connect.
            hang_up(&station.listener);
            listener::leave(&station.address);
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
            instance: place::random()?,
            epoll,
            bell,
            stop: AtomicBool::new(false),
            station: OnceLock::new(),
            opening: Mutex::new(()),
            processes: Mutex::default(),
        })
    }

    /// Whether this is a copy in a child of fork(2), which may neither lock nor change anything.
    pub(super) fn is_inherited(&self) -> bool {
        !self.process.is_current()
    }

    pub(super) fn is_over(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// What this process has if it exports.
    pub(super) fn station(&self) -> Option<&Station> {
        self.station.get()
    }

    /// The same; it opens if there is none.
    pub(super) fn open_station(&self) -> Result<&Station> {
        let _one = lock(&self.opening);
        if let Some(station) = self.station() {
            return Ok(station);
        }
        let place = Place::here()?;
        let control =
            Control::new().map_err(|errno| Error::os(None, "the control page", errno.into()))?;
        let (listener, address) = listener::open(&self.instance)?;
        let event = EpollEvent::new(EpollFlags::EPOLLIN, LISTENER);
        if let Err(errno) = self.epoll.add(&listener, event) {
            listener::leave(&address);
            return Err(Error::os(None, "epoll_ctl", errno.into()));
        }
        Ok(self.station.get_or_init(|| Station {
            listener,
            address,
            place,
            control,
            table: Mutex::default(),
            seats: Mutex::default(),
        }))
    }

    /// What a blob says of this process, and of a slot of its station.
    pub(super) fn contact(
        &self,
        station: &Station,
        (slot, generation): (u32, u32),
        key: Id,
    ) -> Contact {
        Contact {
            slot,
            generation,
            place: station.place,
            instance: self.instance,
            key,
            address: station.address.clone(),
        }
    }
}
