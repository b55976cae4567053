//! All adapters of the process, with their objects and connections, behind one lock.
//!
//! Objects are found by their address, which is not reused before the test ends. A call with the
//! address of an object that was destroyed or never made is therefore detected, and the address is
//! never dereferenced. A call that no caller may make is a sin, which fails the test.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio_doca::verbs::ffi::*;

use super::cm::Manager;
use super::describe::Description;
use super::faults::Plan;
use super::pair::Qp;
use super::shared::Srq;

/// The `errno` with which a call fails.
pub(super) type Errno = c_int;

static FABRIC: LazyLock<Mutex<Fabric>> = LazyLock::new(Mutex::default);
/// Notified when an event is acknowledged, an object destroyed, or a request carried out.
pub(super) static BELL: Condvar = Condvar::new();
/// Set if a test has planned a failure that `poll_cq` has to check for.
pub(super) static POLLS_ARE_PLANNED: AtomicBool = AtomicBool::new(false);
/// Number of calls of `poll_cq`.
pub(super) static POLLS: AtomicU64 = AtomicU64::new(0);

pub(super) fn lock() -> MutexGuard<'static, Fabric> {
    FABRIC.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until the call `name` is no longer held.
pub(super) fn wait_while_held(fabric: MutexGuard<'_, Fabric>, name: &'static str) {
    let held = |fabric: &mut Fabric| fabric.plan.held.contains(&name);
    drop(BELL.wait_while(fabric, held));
}

/// Counts a call of `name`, and fails if a failure of it is planned.
pub(super) fn call(name: &'static str) -> Result<MutexGuard<'static, Fabric>, Errno> {
    let mut fabric = lock();
    *fabric.calls.entry(name).or_insert(0) += 1;
    match fabric.plan.failure(name) {
        Some(errno) => Err(errno),
        None => Ok(fabric),
    }
}

/// The address of an object, which is freed when the test ends.
struct Head {
    address: usize,
    free: unsafe fn(usize),
}

/// An event descriptor as the kernel has it: it can be read as often as it was signaled.
pub(super) struct Bell(OwnedFd, Option<OwnedFd>);

impl Bell {
    pub(super) fn new() -> Bell {
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
        assert!(fd >= 0, "eventfd: {}", std::io::Error::last_os_error());
        // SAFETY: the descriptor was just made, and nothing else owns it.
        Bell(unsafe { OwnedFd::from_raw_fd(fd) }, None)
    }

    /// Returns a descriptor that is never signaled, and that can be closed.
    pub(super) fn silent() -> Bell {
        let (read, write) = std::io::pipe().expect("a pipe");
        Bell(write.into(), Some(read.into()))
    }

    /// Closes the other end, so that from now on `poll` returns only `POLLERR`.
    pub(super) fn close(&mut self) {
        self.1 = None;
    }

    pub(super) fn fd(&self) -> c_int {
        self.0.as_raw_fd()
    }

    pub(super) fn ring(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: the eight bytes that an eventfd takes.
        let written = unsafe { libc::write(self.fd(), one.as_ptr().cast(), 8) };
        assert_eq!(written, 8, "an eventfd that nobody can fill");
    }

    /// Takes one signal back; there must be one.
    pub(super) fn unring(&self) {
        let mut one = [0; 8];
        // SAFETY: the buffer has eight bytes.
        let read = unsafe { libc::read(self.fd(), one.as_mut_ptr().cast(), 8) };
        assert_eq!(read, 8, "an event that nobody rang for");
    }
}

pub(super) struct Adapter {
    pub(super) description: Description,
    /// The address of its `ibv_device`.
    pub(super) device: usize,
    pub(super) work: Arc<Condvar>,
    /// Queue pairs with work to do.
    pub(super) run: VecDeque<usize>,
    /// Queue pairs that wait for a timer, with its end.
    pub(super) timers: Vec<(Instant, usize)>,
    /// Number of holds; while there are any, the adapter carries out nothing.
    pub(super) holds: usize,
    pub(super) removed: bool,
    /// True for each port that is down: the first port, then the second.
    pub(super) ports_down: [bool; 2],
    pub(super) stop: bool,
}

pub(super) struct Context {
    pub(super) adapter: usize,
    pub(super) bell: Bell,
    pub(super) events: VecDeque<Event>,
    pub(super) unacked: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Element {
    Qp(usize),
    Cq(usize),
    Srq(usize),
    Port(u8),
    Device,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    pub(super) kind: ibv_event_type,
    pub(super) element: Element,
}

pub(super) struct Mr {
    pub(super) pd: usize,
    pub(super) addr: u64,
    pub(super) len: u64,
    pub(super) access: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

pub(super) struct Channel {
    pub(super) context: usize,
    pub(super) bell: Bell,
    /// A queue of completion queues, each entered once per notification.
    pub(super) events: VecDeque<usize>,
    pub(super) cqs: usize,
}

/// The part of a completion queue that the caller sees, and the number of completions to poll,
/// which can be read without the lock.
#[repr(C)]
pub(super) struct CqHead {
    pub(super) head: ibv_cq,
    pub(super) waiting: AtomicUsize,
}

pub(super) struct Cq {
    pub(super) context: usize,
    pub(super) channel: usize,
    pub(super) cqe: usize,
    pub(super) comp_vector: c_int,
    pub(super) entries: VecDeque<Entry>,
    pub(super) armed: bool,
    pub(super) dead: bool,
    /// Events that `get_cq_event` returned and that are not yet acknowledged.
    pub(super) unacked: usize,
    pub(super) async_unacked: usize,
    pub(super) qps: usize,
}

/// A completion, and the queue entry that polling it frees.
pub(super) struct Entry {
    pub(super) wc: Wc,
    pub(super) place: Option<Place>,
}

#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) qp: usize,
    pub(super) is_receive: bool,
    /// The shared receive queue of the receive, or 0.
    pub(super) srq: usize,
    /// The number of the request; polling frees this one and all before it.
    pub(super) number: u64,
}

#[derive(Default)]
pub(super) struct Fabric {
    pub(super) adapters: Vec<Adapter>,
    pub(super) lists: HashSet<usize>,
    pub(super) contexts: HashMap<usize, Context>,
    /// Protection domains, each with its context.
    pub(super) pds: HashMap<usize, usize>,
    pub(super) mrs: HashMap<usize, Mr>,
    pub(super) by_lkey: HashMap<u32, usize>,
    pub(super) by_rkey: HashMap<u32, usize>,
    pub(super) channels: HashMap<usize, Channel>,
    pub(super) cqs: HashMap<usize, Cq>,
    pub(super) srqs: HashMap<usize, Srq>,
    pub(super) qps: HashMap<usize, Qp>,
    pub(super) by_number: HashMap<u32, usize>,
    /// Objects of tests that have failed and whose threads may still use them.
    pub(super) abandoned: HashSet<usize>,
    /// Objects that their owner destroyed after the device was removed: the kernel no longer has
    /// them.
    pub(super) given_up: HashSet<usize>,
    pub(super) plan: Plan,
    pub(super) calls: HashMap<&'static str, u64>,
    pub(super) sins: Vec<String>,
    /// Number of work requests that all adapters have carried out.
    pub(super) carried_out: u64,
    pub(super) cm: Manager,
    heads: Vec<Head>,
}

impl Fabric {
    /// Allocates an object of libibverbs, and returns its address.
    pub(super) fn make<T>(&mut self, head: T) -> *mut T {
        /// # Safety
        ///
        /// `address` is that of a `Box<T>` that is no longer used.
        unsafe fn free<T>(address: usize) {
            // SAFETY: the caller guarantees that this is the address of an unused `Box<T>`.
            drop(unsafe { Box::from_raw(address as *mut T) });
        }
        let object = Box::into_raw(Box::new(head));
        self.heads.push(Head {
            address: object as usize,
            free: free::<T>,
        });
        object
    }

    /// Leaks all objects at the end of a test that has failed.
    pub(super) fn abandon(&mut self) {
        self.clear_events();
        let mut old = std::mem::take(self);
        self.abandoned = std::mem::take(&mut old.abandoned);
        self.abandoned
            .extend(old.heads.iter().map(|head| head.address));
        // Leaks their descriptors as well.
        std::mem::forget(old);
    }

    /// Frees all objects at the end of a test.
    pub(super) fn clear(&mut self) -> Fabric {
        self.clear_events();
        let mut old = std::mem::take(self);
        self.abandoned = std::mem::take(&mut old.abandoned);
        for head in old.heads.drain(..) {
            // SAFETY: `make` created it with this type, and no pointer to it is left.
            unsafe { (head.free)(head.address) };
        }
        old
    }

    /// Records a call that no caller may make.
    pub(super) fn sin(&mut self, what: impl Into<String>) {
        let what = what.into();
        eprintln!("fake verbs: {what}");
        self.sins.push(what);
    }

    /// Records a sin: there is no object at this address, or it was destroyed.
    pub(super) fn unknown(&mut self, call: &str, address: usize) -> Errno {
        if !self.abandoned.contains(&address) {
            self.sin(format!("{call} on {address:#x}, which is none (any more)"));
        }
        libc::EINVAL
    }

    pub(super) fn context(&mut self, call: &str, address: usize) -> Result<&mut Context, Errno> {
        if !self.contexts.contains_key(&address) {
            return Err(self.unknown(call, address));
        }
        Ok(self.contexts.get_mut(&address).expect("just found"))
    }

    /// Returns the adapter of a context, or `EIO` if the adapter was removed.
    pub(super) fn adapter(&mut self, call: &str, context: usize) -> Result<usize, Errno> {
        let adapter = self.context(call, context)?.adapter;
        match self.adapters[adapter].removed {
            true => Err(libc::EIO),
            false => Ok(adapter),
        }
    }

    /// Prepares the destruction of an object. If its device was removed, forgets the object and
    /// returns `EIO`.
    pub(super) fn give_up<T>(
        &mut self,
        context: usize,
        address: usize,
        objects: fn(&mut Fabric) -> &mut HashMap<usize, T>,
    ) -> Result<(), Errno> {
        let adapter = self.contexts.get(&context).map(|context| context.adapter);
        if adapter.is_some_and(|adapter| self.adapters[adapter].removed) {
            objects(self).remove(&address);
            self.given_up.insert(address);
            BELL.notify_all();
            return Err(libc::EIO);
        }
        Ok(())
    }

    /// Raises an asynchronous event for the owner of a device.
    pub(super) fn raise(&mut self, context: usize, kind: ibv_event_type, element: Element) {
        if let Some(context) = self.contexts.get_mut(&context) {
            context.events.push_back(Event { kind, element });
            context.bell.ring();
        }
    }

    /// Drops the unread events of an object that is being destroyed.
    pub(super) fn forget_events(&mut self, context: usize, element: Element) {
        let Some(context) = self.contexts.get_mut(&context) else {
            return;
        };
        let before = context.events.len();
        context.events.retain(|event| event.element != element);
        (context.events.len()..before).for_each(|_| context.bell.unring());
    }

    /// Counts the objects that are not destroyed yet, by kind.
    pub(super) fn live(&self) -> Vec<(&'static str, usize)> {
        let all = [
            ("device lists", self.lists.len()),
            ("contexts", self.contexts.len()),
            ("protection domains", self.pds.len()),
            ("memory regions", self.mrs.len()),
            ("completion channels", self.channels.len()),
            ("completion queues", self.cqs.len()),
            ("shared receive queues", self.srqs.len()),
            ("queue pairs", self.qps.len()),
            ("ids of rdma_cm", self.cm.live()),
        ];
        all.into_iter().filter(|(_, count)| *count > 0).collect()
    }

    /// Adds a completion, and notifies the channel if the queue is armed.
    pub(super) fn complete(&mut self, cq_address: usize, entry: Entry) {
        let doubled = self.plan.doubled;
        let Some(cq) = self.cqs.get_mut(&cq_address) else {
            return;
        };
        if cq.dead {
            return;
        }
        if cq.entries.len() >= cq.cqe {
            cq.dead = true;
            let context = cq.context;
            waiting(cq_address).store(1, Ordering::SeqCst);
            self.sin("a completion queue was overrun");
            self.raise(context, IBV_EVENT_CQ_ERR, Element::Cq(cq_address));
            return;
        }
        cq.entries.push_back(entry);
        waiting(cq_address).fetch_add(1, Ordering::SeqCst);
        if std::mem::take(&mut cq.armed) {
            let times = if doubled { 2 } else { 1 };
            self.notify(cq_address, times);
        }
        BELL.notify_all();
    }

    /// Adds events of a completion queue to its channel.
    pub(super) fn notify(&mut self, cq_address: usize, times: usize) {
        let channel = self.cqs.get(&cq_address).map(|cq| cq.channel);
        if let Some(channel) = channel.and_then(|channel| self.channels.get_mut(&channel)) {
            for _ in 0..times {
                channel.events.push_back(cq_address);
                channel.bell.ring();
            }
        }
    }

    /// Queues a queue pair that has work to do.
    pub(super) fn wake(&mut self, qp: usize) {
        let Some(adapter) = self.qps.get(&qp).map(|qp| qp.adapter) else {
            return;
        };
        let adapter = &mut self.adapters[adapter];
        if !adapter.run.contains(&qp) {
            adapter.run.push_back(qp);
        }
        adapter.work.notify_all();
    }
}

/// Returns the number of completions that wait in a queue.
pub(super) fn waiting(cq: usize) -> &'static AtomicUsize {
    let cq = cq as *const CqHead;
    // SAFETY: an object of `make`, which is freed only after the test, when no more calls are made.
    unsafe { &(*cq).waiting }
}
