//! All adapters of the process, their objects, and who is connected to whom: behind one lock.
//!
//! Objects are found by their address, which is not used again before the test is over: what was
//! destroyed, or never made, is found out, and not touched. What a caller may not do at all is a
//! sin, which the test hears of.

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

/// Why a call fails: an `errno`.
pub(super) type Errno = c_int;

static FABRIC: LazyLock<Mutex<Fabric>> = LazyLock::new(Mutex::default);
/// Something was acknowledged, destroyed or carried out.
pub(super) static BELL: Condvar = Condvar::new();
/// Somebody planned something that `poll_cq` has to look for.
pub(super) static POLLS_ARE_PLANNED: AtomicBool = AtomicBool::new(false);
/// How often `poll_cq` was called.
pub(super) static POLLS: AtomicU64 = AtomicU64::new(0);

pub(super) fn lock() -> MutexGuard<'static, Fabric> {
    FABRIC.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until nobody holds this call.
pub(super) fn wait_while_held(fabric: MutexGuard<'_, Fabric>, name: &'static str) {
    let held = |fabric: &mut Fabric| fabric.plan.held.contains(&name);
    drop(BELL.wait_while(fabric, held));
}

/// A call of this name: counted, and failed if that is planned.
pub(super) fn call(name: &'static str) -> Result<MutexGuard<'static, Fabric>, Errno> {
    let mut fabric = lock();
    *fabric.calls.entry(name).or_insert(0) += 1;
    match fabric.plan.failure(name) {
        Some(errno) => Err(errno),
        None => Ok(fabric),
    }
}

/// What is at the address of an object. It is freed when the test is over.
struct Head {
    address: usize,
    free: unsafe fn(usize),
}

/// An open descriptor that can be read as often as it was rung: what the kernel's event files are.
pub(super) struct Bell(OwnedFd, Option<OwnedFd>);

impl Bell {
    pub(super) fn new() -> Bell {
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
        assert!(fd >= 0, "eventfd: {}", std::io::Error::last_os_error());
        // SAFETY: just made, and nobody else's.
        Bell(unsafe { OwnedFd::from_raw_fd(fd) }, None)
    }

    /// One that is never rung, and can be closed.
    pub(super) fn silent() -> Bell {
        let (read, write) = std::io::pipe().expect("a pipe");
        Bell(write.into(), Some(read.into()))
    }

    /// From now on it is in error (`POLLERR`), and nothing else.
    pub(super) fn close(&mut self) {
        self.1 = None;
    }

    pub(super) fn fd(&self) -> c_int {
        self.0.as_raw_fd()
    }

    pub(super) fn ring(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight bytes, as an eventfd takes.
        let written = unsafe { libc::write(self.fd(), one.as_ptr().cast(), 8) };
        assert_eq!(written, 8, "an eventfd that nobody can fill");
    }

    /// Takes one ring back; there is one.
    pub(super) fn unring(&self) {
        let mut one = [0; 8];
        // SAFETY: room for eight bytes.
        let read = unsafe { libc::read(self.fd(), one.as_mut_ptr().cast(), 8) };
        assert_eq!(read, 8, "an event that nobody rang for");
    }
}

pub(super) struct Adapter {
    pub(super) description: Description,
    /// Its `ibv_device`.
    pub(super) device: usize,
    pub(super) work: Arc<Condvar>,
    /// Queue pairs that have something to do.
    pub(super) run: VecDeque<usize>,
    /// Those that wait for a timer.
    pub(super) timers: Vec<(Instant, usize)>,
    /// Nothing is carried out while somebody holds it.
    pub(super) holds: usize,
    pub(super) removed: bool,
    /// The first and the second.
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
    /// Completion queues, one each time that one had something to say.
    pub(super) events: VecDeque<usize>,
    pub(super) cqs: usize,
}

/// What the caller sees of a completion queue, and how much there is to poll: to look costs no
/// lock.
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
    /// Read by `get_cq_event`, and not acknowledged yet.
    pub(super) unacked: usize,
    pub(super) async_unacked: usize,
    pub(super) qps: usize,
}

/// A completion, and the place that is free again once it was polled.
pub(super) struct Entry {
    pub(super) wc: Wc,
    pub(super) place: Option<Place>,
}

#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) qp: usize,
    pub(super) is_receive: bool,
    /// The shared queue whose receive it was, or 0.
    pub(super) srq: usize,
    /// This request and all before it.
    pub(super) number: u64,
}

#[derive(Default)]
pub(super) struct Fabric {
    pub(super) adapters: Vec<Adapter>,
    pub(super) lists: HashSet<usize>,
    pub(super) contexts: HashMap<usize, Context>,
    /// The context of each.
    pub(super) pds: HashMap<usize, usize>,
    pub(super) mrs: HashMap<usize, Mr>,
    pub(super) by_lkey: HashMap<u32, usize>,
    pub(super) by_rkey: HashMap<u32, usize>,
    pub(super) channels: HashMap<usize, Channel>,
    pub(super) cqs: HashMap<usize, Cq>,
    pub(super) srqs: HashMap<usize, Srq>,
    pub(super) qps: HashMap<usize, Qp>,
    pub(super) by_number: HashMap<u32, usize>,
    /// Of tests that have failed: somebody may still use them.
    pub(super) abandoned: HashSet<usize>,
    /// Given up by their owner after the device was removed: the kernel has them no more.
    pub(super) given_up: HashSet<usize>,
    pub(super) plan: Plan,
    pub(super) calls: HashMap<&'static str, u64>,
    pub(super) sins: Vec<String>,
    /// Work requests that were carried out, of all adapters.
    pub(super) carried_out: u64,
    pub(super) cm: Manager,
    heads: Vec<Head>,
}

impl Fabric {
    /// An object for the caller.
    pub(super) fn make<T>(&mut self, head: T) -> *mut T {
        /// # Safety
        ///
        /// The address of a `Box<T>`, which nobody uses any more.
        unsafe fn free<T>(address: usize) {
            // SAFETY: as the caller promises.
            drop(unsafe { Box::from_raw(address as *mut T) });
        }
        let object = Box::into_raw(Box::new(head));
        self.heads.push(Head {
            address: object as usize,
            free: free::<T>,
        });
        object
    }

    /// The test is over, and has failed: its objects are leaked.
    pub(super) fn abandon(&mut self) {
        self.clear_events();
        let mut old = std::mem::take(self);
        self.abandoned = std::mem::take(&mut old.abandoned);
        self.abandoned
            .extend(old.heads.iter().map(|head| head.address));
        // Their descriptors stay open too.
        std::mem::forget(old);
    }

    /// The test is over.
    pub(super) fn clear(&mut self) -> Fabric {
        self.clear_events();
        let mut old = std::mem::take(self);
        self.abandoned = std::mem::take(&mut old.abandoned);
        for head in old.heads.drain(..) {
            // SAFETY: made by `make` with this type, and nobody has a pointer to it any more.
            unsafe { (head.free)(head.address) };
        }
        old
    }

    /// Something that no caller may do.
    pub(super) fn sin(&mut self, what: impl Into<String>) {
        let what = what.into();
        eprintln!("fake verbs: {what}");
        self.sins.push(what);
    }

    /// The object at this address is none, or was destroyed.
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

    /// The adapter of a context, while it is there.
    pub(super) fn adapter(&mut self, call: &str, context: usize) -> Result<usize, Errno> {
        let adapter = self.context(call, context)?.adapter;
        match self.adapters[adapter].removed {
            true => Err(libc::EIO),
            false => Ok(adapter),
        }
    }

    /// Before an object is destroyed: whether its device is still there. If not, `EIO`, and the
    /// object is no more.
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

    /// Tells the owner of a device of something that has no completion.
    pub(super) fn raise(&mut self, context: usize, kind: ibv_event_type, element: Element) {
        if let Some(context) = self.contexts.get_mut(&context) {
            context.events.push_back(Event { kind, element });
            context.bell.ring();
        }
    }

    /// Forgets the events of an object that is being destroyed: nobody has read them.
    pub(super) fn forget_events(&mut self, context: usize, element: Element) {
        let Some(context) = self.contexts.get_mut(&context) else {
            return;
        };
        let before = context.events.len();
        context.events.retain(|event| event.element != element);
        (context.events.len()..before).for_each(|_| context.bell.unring());
    }

    /// How many objects nobody destroyed yet, by kind.
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

    /// A completion comes, and rings if it was asked to.
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

    /// Puts events into the channel of a completion queue.
    pub(super) fn notify(&mut self, cq_address: usize, times: usize) {
        let channel = self.cqs.get(&cq_address).map(|cq| cq.channel);
        if let Some(channel) = channel.and_then(|channel| self.channels.get_mut(&channel)) {
            for _ in 0..times {
                channel.events.push_back(cq_address);
                channel.bell.ring();
            }
        }
    }

    /// The queue pair has something to do.
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

/// How many completions wait in a queue.
pub(super) fn waiting(cq: usize) -> &'static AtomicUsize {
    let cq = cq as *const CqHead;
    // SAFETY: an object of `make`: it is freed when the test is over, and nobody calls then.
    unsafe { &(*cq).waiting }
}
