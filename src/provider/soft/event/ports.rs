//! The sync events of one queue: which of them have something to do, and who is rung for.
//!
//! A port that has something to do is *raised*: it stands in a line, once, and whoever looks takes it out. Doorbells of other processes
//! raise ports too, when they are read. Where nobody reads them, since nobody sleeps, whoever looks asks a few of those ports that wait and have a
//! peer for themselves, in turn (*watched*).

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError, TryLockError, Weak};

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};

use super::super::bell;
use super::super::counter::Counter;
use super::super::fault::Fault;
use super::super::shared::DeviceShared;
use super::counter::{Bell, SoftEvent};
use super::port::{Out, Port, SoftPort};
use crate::device::{Completion, EventPort, Signal};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst, fence};
use crate::sync::{Mutex, lock};

/// Marks what the doorbells of sync events say, beside those of doorbell pages.
const EVENT: u64 = 1 << 63;

/// Ports that are asked for themselves in one look.
const ASKED: usize = 4;

pub(in super::super) struct EventPorts {
    device: Arc<DeviceShared>,
    inline_jobs: Arc<Counter>,
    depth: u32,
    signal: Arc<Signal>,
    /// What rings for the queue from outside.
    sources: Arc<Epoll>,
    raised: Mutex<VecDeque<Arc<Port>>>,
    /// How many stand there: read without the lock.
    any: AtomicUsize,
    /// Somebody sleeps, and is to be rung for.
    armed: AtomicBool,
    watched: Mutex<Watched>,
    watching: AtomicUsize,
    ports: Mutex<Known>,
}

/// Ports that wait, and whose counters another process may change.
#[derive(Default)]
struct Watched {
    ports: Vec<Arc<Port>>,
    next: usize,
}

#[derive(Default)]
struct Known {
    ports: HashMap<u64, Weak<Port>>,
    opened: u64,
}

impl EventPorts {
    pub(in super::super) fn new(
        device: Arc<DeviceShared>,
        inline_jobs: Arc<Counter>,
        depth: u32,
        signal: Arc<Signal>,
        sources: Arc<Epoll>,
    ) -> Arc<EventPorts> {
        Arc::new(EventPorts {
            device,
            inline_jobs,
            depth,
            signal,
            sources,
            raised: Mutex::default(),
            any: AtomicUsize::new(0),
            armed: AtomicBool::new(false),
            watched: Mutex::default(),
            watching: AtomicUsize::new(0),
            ports: Mutex::default(),
        })
    }

    /// Puts an event on the queue, once.
    pub(in super::super) fn open(
        self: &Arc<Self>,
        event: Arc<SoftEvent>,
        waits: u32,
    ) -> Result<Arc<dyn EventPort>> {
        let number = {
            let mut known = lock(&self.ports);
            known.opened += 1;
            known.opened
        };
        let port = Port::new(number, Arc::clone(&event), Arc::clone(self), waits);
        let port = Arc::new(port);
        if event.port.set(Arc::downgrade(&port)).is_err() {
            let text = "the sync event is on a WorkQ already";
            return Err(Error::new(ErrorKind::InUse, None, text));
        }
        let mut known = lock(&self.ports);
        known.ports.insert(number, Arc::downgrade(&port));
        // Each stands there once: nothing is allocated later.
        let ports = known.ports.len();
        let reserve = |len: usize| ports.saturating_sub(len);
        let mut raised = lock(&self.raised);
        let more = reserve(raised.len());
        raised.reserve(more);
        drop(raised);
        let mut watched = lock(&self.watched);
        let more = reserve(watched.ports.len());
        watched.ports.reserve(more);
        drop(watched);
        drop(known);
        // A peer may have come before: see `hang_bell`.
        if let Some(Bell::Socket(socket)) = &event.peer().bell {
            self.listen(number, socket);
        }
        Ok(Arc::new(SoftPort(port)))
    }

    pub(super) fn depth(&self) -> usize {
        self.depth as usize
    }

    #[inline]
    pub(super) fn does_inline(&self) -> bool {
        self.device.faults.inline_below() > 0
    }

    /// The highest value of an event at which a wait may begin or end.
    pub(super) fn highest_value(&self) -> u64 {
        self.device.highest_value
    }

    pub(super) fn next_fault(&self) -> Fault {
        self.device.faults.next()
    }

    #[inline]
    pub(super) fn count_inline(&self) {
        self.inline_jobs.add_one();
    }

    /// A Job was finished by who looks.
    pub(super) fn count(&self) {
        use std::sync::atomic::Ordering::Relaxed;
        self.device.own_jobs.fetch_add(1, Relaxed);
    }

    /// A port has something to do: who sleeps is woken.
    pub(super) fn raise(&self, port: &Arc<Port>) {
        self.stand(port);
        self.ring();
    }

    fn stand(&self, port: &Arc<Port>) {
        if !port.raised.swap(true, SeqCst) {
            lock(&self.raised).push_back(Arc::clone(port));
            self.any.fetch_add(1, SeqCst);
        }
    }

    fn ring(&self) {
        // Pairs with `arm`: either it sees what was raised, or this sees that it armed.
        fence(SeqCst);
        if self.armed.load(SeqCst) && self.armed.swap(false, SeqCst) {
            self.signal.ring();
        }
    }

    /// Whoever arms will be rung for. The look comes after it.
    pub(in super::super) fn arm(&self) {
        self.armed.store(true, SeqCst);
        // Pairs with `ring`.
        fence(SeqCst);
    }

    /// Whether a look would find something.
    #[inline]
    pub(in super::super) fn ready(&self) -> bool {
        self.any.load(SeqCst) > 0 || self.watching.load(SeqCst) > 0 && self.ask()
    }

    /// Asks some of those that are watched; true if one was raised.
    fn ask(&self) -> bool {
        let mut watched = match self.watched.try_lock() {
            Ok(watched) => watched,
            Err(TryLockError::Poisoned(poisoned)) => PoisonError::into_inner(poisoned),
            // Somebody else asks.
            Err(TryLockError::WouldBlock) => return false,
        };
        let Watched { ports, next } = &mut *watched;
        let mut found = false;
        for _ in 0..ASKED.min(ports.len()) {
            *next = (*next + 1) % ports.len();
            let port = &ports[*next];
            if port.event.is_due() {
                self.stand(port);
                found = true;
            }
        }
        found
    }

    /// A port has begun to wait.
    pub(super) fn watch(&self, port: &Arc<Port>) {
        if port.event.export.is_none() && port.event.is_owner() {
            return;
        }
        let mut watched = lock(&self.watched);
        if port.watched.load(SeqCst) == 0 {
            watched.ports.push(Arc::clone(port));
            port.watched.store(watched.ports.len(), SeqCst);
        }
        self.watching.store(watched.ports.len(), SeqCst);
    }

    /// It does so no more.
    pub(super) fn unwatch(&self, port: &Port) {
        if port.watched.load(SeqCst) == 0 {
            return;
        }
        let mut watched = lock(&self.watched);
        // Somebody may have been faster.
        let Some(at) = port.watched.swap(0, SeqCst).checked_sub(1) else {
            return;
        };
        let gone = watched.ports.swap_remove(at);
        if let Some(moved) = watched.ports.get(at) {
            moved.watched.store(at + 1, SeqCst);
        }
        self.watching.store(watched.ports.len(), SeqCst);
        drop(watched);
        drop(gone);
    }

    /// It is gone.
    pub(super) fn forget(&self, number: u64) {
        lock(&self.ports).ports.remove(&number);
    }

    /// Looks at the ports that have something to do.
    pub(in super::super) fn reap(&self, to: &mut [Completion]) -> usize {
        let mut out = Out { to, filled: 0 };
        if self.watching.load(SeqCst) > 0 {
            self.ask();
        }
        // Those that are raised meanwhile have their turn the next time.
        for _ in 0..self.any.load(SeqCst) {
            if out.is_full() {
                break;
            }
            let Some(port) = lock(&self.raised).pop_front() else {
                break;
            };
            self.any.fetch_sub(1, SeqCst);
            // First: who raises it afterwards means something new.
            port.raised.swap(false, SeqCst);
            port.look(&mut out);
            if out.is_full() {
                self.stand(&port);
            }
        }
        if self.any.load(SeqCst) > 0 {
            // Whoever armed meanwhile may have seen none of it.
            self.ring();
        }
        out.filled
    }

    /// Has the queue hear the doorbells of a port.
    pub(super) fn listen(&self, number: u64, socket: &OwnedFd) {
        let events = EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET;
        match self
            .sources
            .add(socket, EpollEvent::new(events, EVENT | number))
        {
            // Two that saw each other come.
            Ok(()) | Err(nix::errno::Errno::EEXIST) => {}
            Err(errno) => {
                tracing::error!(%errno, "a peer of a sync event cannot wake this process")
            }
        }
    }

    /// Reads what rang; false if that was no sync event's.
    pub(in super::super) fn rang(&self, data: u64) -> bool {
        if data & EVENT == 0 || data == u64::MAX {
            return false;
        }
        let number = data & !EVENT;
        let known = lock(&self.ports);
        let port = known.ports.get(&number).and_then(Weak::upgrade);
        drop(known);
        if let Some(port) = port {
            let bell = match &port.event.peer().bell {
                Some(Bell::Socket(socket)) => Some(Arc::clone(socket)),
                _ => None,
            };
            // Outside of the lock.
            if let Some(socket) = bell {
                bell::drain(&socket);
            }
            self.stand(&port);
        }
        true
    }

    /// The queue is gone: nothing is handed out any more.
    pub(in super::super) fn end(&self) {
        let raised = std::mem::take(&mut *lock(&self.raised));
        let watched = std::mem::take(&mut *lock(&self.watched));
        drop((raised, watched));
    }
}
