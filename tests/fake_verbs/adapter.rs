//! The fake adapter: what stands behind the table.
//!
//! - A queue pair is connected to itself (loopback RC). A thread carries out its work requests in order, checks each
//!   key, range and permission, and flushes all that follow the first that failed, signalled or not.
//! - A place in the send queue is free again when the completion of its request, or of a later one, was polled
//!   (`ibv_post_send(3)`). A full one is `ENOMEM`, with `bad_wr`.
//! - A completion queue notifies once per request, and only for completions that arrive after it
//!   (`ibv_req_notify_cq(3)`). Overrun kills it.
//! - A channel's events are read one by one, and a completion queue is not destroyed before all are acknowledged
//!   (`ibv_get_cq_event(3)`): where the C library would block for ever this one says `EBUSY`.
//! - lkey and rkey of a region are two numbers: nothing promises that they are one.

use std::collections::{HashMap, VecDeque};
use std::ffi::{c_int, c_uint, c_void};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;

use super::table::*;

static LIVE: AtomicI64 = AtomicI64::new(0);
/// `post_send` says EINVAL to the so-many-th request from now; 0: to none.
static EINVAL_AT: AtomicU32 = AtomicU32::new(0);

/// Protection domains, regions, channels and queues that nobody destroyed yet.
pub(crate) fn live_objects() -> i64 {
    LIVE.load(Ordering::SeqCst)
}

/// Makes `post_send` refuse the so-many-th work request from now, in the middle of a list or not.
pub(crate) fn refuse_request(number: u32) {
    EINVAL_AT.store(number, Ordering::SeqCst);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn made<H, T>(object: T) -> *mut H {
    LIVE.fetch_add(1, Ordering::SeqCst);
    Box::into_raw(Box::new(object)).cast()
}

/// # Safety
///
/// `object` came from `made::<_, T>`, and is not used afterwards.
unsafe fn destroy<T>(object: *mut T) {
    LIVE.fetch_sub(1, Ordering::SeqCst);
    // SAFETY: as the caller promises.
    drop(unsafe { Box::from_raw(object) });
}

// Each begins with the struct that the caller sees.

#[repr(C)]
struct Pd {
    head: ibv_pd,
    regions: Arc<RwLock<Regions>>,
}

#[derive(Default)]
struct Regions {
    by_lkey: HashMap<u32, Granted>,
    by_rkey: HashMap<u32, Granted>,
}

#[derive(Clone, Copy)]
struct Granted {
    addr: usize,
    len: usize,
    access: c_int,
}

#[repr(C)]
struct Mr {
    head: ibv_mr,
    regions: Arc<RwLock<Regions>>,
}

#[repr(C)]
struct Channel {
    head: ibv_comp_channel,
    events: Mutex<VecDeque<usize>>,
    /// An eventfd that counts: each read takes one event.
    fd: OwnedFd,
}

#[repr(C)]
struct Cq {
    head: ibv_cq,
    state: Mutex<CqState>,
}

#[derive(Default)]
struct CqState {
    entries: VecDeque<Entry>,
    armed: bool,
    overrun: bool,
    /// Read by `get_cq_event`, and not yet acknowledged.
    unacked: u64,
}

/// A completion, and up to where it frees its send queue.
struct Entry {
    wc: ibv_wc,
    freed: Arc<Mutex<u64>>,
    number: u64,
}

#[repr(C)]
struct Qp {
    head: ibv_qp,
    shared: Arc<QpShared>,
    worker: Option<JoinHandle<()>>,
    max_send_wr: u64,
    max_send_sge: usize,
}

struct QpShared {
    state: Mutex<QpState>,
    work: Condvar,
    /// Requests whose places are free again.
    freed: Arc<Mutex<u64>>,
    regions: Arc<RwLock<Regions>>,
    cq: SendPtr<Cq>,
    qp_num: u32,
}

#[derive(Default)]
struct QpState {
    posted: VecDeque<Request>,
    count: u64,
    error: bool,
    stop: bool,
}

struct Request {
    number: u64,
    wr_id: u64,
    sges: Vec<ibv_sge>,
    signaled: bool,
    remote_addr: u64,
    rkey: u32,
}

struct SendPtr<T>(*mut T);
// SAFETY: what it points to is Sync (a Mutex), and outlives the queue pair (`destroy_cq` after `destroy_qp`).
unsafe impl<T> Send for SendPtr<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for SendPtr<T> {}

pub(super) static TABLE: VerbsTable = VerbsTable {
    alloc_pd,
    dealloc_pd,
    reg_mr,
    dereg_mr,
    create_comp_channel,
    destroy_comp_channel,
    create_cq,
    destroy_cq,
    create_qp,
    modify_qp_to_err,
    destroy_qp,
    post_send,
    poll_cq,
    req_notify_cq,
    get_cq_event,
    ack_cq_events,
};

fn next_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

extern "C" fn alloc_pd() -> *mut ibv_pd {
    made(Pd {
        head: ibv_pd {
            handle: next_number(),
        },
        regions: Arc::default(),
    })
}

unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: a Pd of `alloc_pd`, which the caller gives up.
    unsafe { destroy(pd.cast::<Pd>()) };
    0
}

unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: a Pd of `alloc_pd`.
    let pd = unsafe { &*pd.cast::<Pd>() };
    let number = next_number();
    let (lkey, rkey) = (number << 8 | 1, number << 8 | 0x80);
    let granted = Granted {
        addr: addr as usize,
        len: length,
        access,
    };
    let mut regions = pd.regions.write().unwrap_or_else(PoisonError::into_inner);
    regions.by_lkey.insert(lkey, granted);
    regions.by_rkey.insert(rkey, granted);
    let head = ibv_mr {
        addr,
        length,
        lkey,
        rkey,
    };
    made(Mr {
        head,
        regions: Arc::clone(&pd.regions),
    })
}

unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    let region = mr.cast::<Mr>();
    // SAFETY: an Mr of `reg_mr`.
    let this = unsafe { &*region };
    // Waits for the request that is being carried out.
    let mut regions = this.regions.write().unwrap_or_else(PoisonError::into_inner);
    regions.by_lkey.remove(&this.head.lkey);
    regions.by_rkey.remove(&this.head.rkey);
    drop(regions);
    // SAFETY: the caller gives it up.
    unsafe { destroy(region) };
    0
}

extern "C" fn create_comp_channel() -> *mut ibv_comp_channel {
    let flags = libc::EFD_CLOEXEC | libc::EFD_NONBLOCK | libc::EFD_SEMAPHORE;
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::eventfd(0, flags) };
    if fd < 0 {
        return ptr::null_mut();
    }
    // SAFETY: just made, and nobody else's.
    let owned = unsafe { OwnedFd::from_raw_fd(fd) };
    made(Channel {
        head: ibv_comp_channel { fd },
        events: Mutex::default(),
        fd: owned,
    })
}

unsafe extern "C" fn destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: a Channel of `create_comp_channel`, which the caller gives up.
    unsafe { destroy(channel.cast::<Channel>()) };
    0
}

unsafe extern "C" fn create_cq(
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
) -> *mut ibv_cq {
    made(Cq {
        head: ibv_cq {
            channel,
            cq_context,
            cqe,
        },
        state: Mutex::default(),
    })
}

unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    let cq = cq.cast::<Cq>();
    // SAFETY: a Cq of `create_cq`.
    let unacked = lock(unsafe { &(*cq).state }).unacked;
    if unacked > 0 {
        return libc::EBUSY;
    }
    // SAFETY: the caller gives it up.
    unsafe { destroy(cq) };
    0
}

unsafe extern "C" fn create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: a Pd of `alloc_pd`.
    let pd = unsafe { &*pd.cast::<Pd>() };
    // SAFETY: the caller's struct.
    let attr = unsafe { &*attr };
    let qp_num = next_number();
    let shared = Arc::new(QpShared {
        state: Mutex::default(),
        work: Condvar::new(),
        freed: Arc::default(),
        regions: Arc::clone(&pd.regions),
        cq: SendPtr(attr.send_cq.cast()),
        qp_num,
    });
    let worker = {
        let shared = Arc::clone(&shared);
        std::thread::spawn(move || shared.run())
    };
    made(Qp {
        head: ibv_qp {
            send_cq: attr.send_cq,
            qp_num,
        },
        shared,
        worker: Some(worker),
        max_send_wr: u64::from(attr.max_send_wr),
        max_send_sge: attr.max_send_sge as usize,
    })
}

unsafe extern "C" fn modify_qp_to_err(qp: *mut ibv_qp) -> c_int {
    // SAFETY: a Qp of `create_qp`.
    let qp = unsafe { &*qp.cast::<Qp>() };
    lock(&qp.shared.state).error = true;
    qp.shared.work.notify_one();
    0
}

/// Nothing of it touches memory once this has returned.
unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    let qp = qp.cast::<Qp>();
    // SAFETY: a Qp of `create_qp`, which only the caller reaches now.
    let this = unsafe { &mut *qp };
    lock(&this.shared.state).stop = true;
    this.shared.work.notify_one();
    if let Some(worker) = this.worker.take() {
        let _ = worker.join();
    }
    // SAFETY: the completion queue outlives the queue pair.
    let cq = unsafe { &*this.shared.cq.0 };
    lock(&cq.state)
        .entries
        .retain(|entry| entry.wc.qp_num != this.head.qp_num);
    // SAFETY: the caller gives it up.
    unsafe { destroy(qp) };
    0
}

unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: a Qp of `create_qp`.
    let qp = unsafe { &*qp.cast::<Qp>() };
    let mut next = wr;
    let mut state = lock(&qp.shared.state);
    while !next.is_null() {
        // SAFETY: a list of the caller's, which ends with null.
        let request = unsafe { *next };
        // SAFETY: as above.
        let posted = unsafe { qp.post(&mut state, &request) };
        if let Err(errno) = posted {
            // SAFETY: the caller's place for it.
            unsafe { *bad_wr = next };
            qp.shared.work.notify_one();
            return errno;
        }
        next = request.next;
    }
    qp.shared.work.notify_one();
    0
}

impl Qp {
    /// # Safety
    ///
    /// The request's list is valid.
    unsafe fn post(&self, state: &mut QpState, wr: &ibv_send_wr) -> Result<(), c_int> {
        if EINVAL_AT.load(Ordering::SeqCst) > 0 && EINVAL_AT.fetch_sub(1, Ordering::SeqCst) == 1 {
            return Err(libc::EINVAL);
        }
        if wr.opcode != IBV_WR_RDMA_WRITE || wr.num_sge as usize > self.max_send_sge {
            return Err(libc::EINVAL);
        }
        if state.count - *lock(&self.shared.freed) >= self.max_send_wr {
            return Err(libc::ENOMEM);
        }
        let mut sges = Vec::new();
        if wr.num_sge > 0 {
            // SAFETY: as the caller promises.
            sges.extend_from_slice(unsafe {
                std::slice::from_raw_parts(wr.sg_list, wr.num_sge as usize)
            });
        }
        state.posted.push_back(Request {
            number: state.count,
            wr_id: wr.wr_id,
            sges,
            signaled: wr.send_flags & IBV_SEND_SIGNALED != 0,
            remote_addr: wr.remote_addr,
            rkey: wr.rkey,
        });
        state.count += 1;
        Ok(())
    }
}

impl QpShared {
    fn run(&self) {
        loop {
            let mut state = lock(&self.state);
            while state.posted.is_empty() && !state.stop {
                state = self
                    .work
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            if state.stop {
                return;
            }
            let Some(request) = state.posted.pop_front() else {
                continue;
            };
            let failed = state.error;
            drop(state);
            let status = match failed {
                true => IBV_WC_WR_FLUSH_ERR,
                false => self.write(&request),
            };
            if status != IBV_WC_SUCCESS {
                lock(&self.state).error = true;
            }
            if request.signaled || status != IBV_WC_SUCCESS {
                self.complete(&request, status);
            }
        }
    }

    /// RDMA WRITE to the queue pair itself.
    fn write(&self, request: &Request) -> c_int {
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        let inside = |granted: Option<&Granted>, addr: u64, len: u32, access: c_int| {
            granted.is_some_and(|granted| {
                let start = (addr as usize).checked_sub(granted.addr);
                let end = start.and_then(|start| start.checked_add(len as usize));
                end.is_some_and(|end| end <= granted.len) && granted.access & access == access
            })
        };
        let total: u32 = request.sges.iter().map(|sge| sge.length).sum();
        for sge in &request.sges {
            if !inside(regions.by_lkey.get(&sge.lkey), sge.addr, sge.length, 0) {
                return IBV_WC_LOC_PROT_ERR;
            }
        }
        let remote = regions.by_rkey.get(&request.rkey);
        if total > 0 && !inside(remote, request.remote_addr, total, IBV_ACCESS_REMOTE_WRITE) {
            return IBV_WC_REM_ACCESS_ERR;
        }
        let mut to = request.remote_addr as usize;
        for sge in &request.sges {
            let from = sge.addr as usize as *const u8;
            // SAFETY: both sides lie in regions that are registered, and stay so while the lock is held.
            unsafe { ptr::copy_nonoverlapping(from, to as *mut u8, sge.length as usize) };
            to += sge.length as usize;
        }
        IBV_WC_SUCCESS
    }

    fn complete(&self, request: &Request, status: c_int) {
        // What is not valid is spoilt.
        let wc = ibv_wc {
            wr_id: request.wr_id,
            status,
            opcode: -7,
            vendor_err: if status == IBV_WC_SUCCESS { 0 } else { 0x88 },
            byte_len: 0xdead_beef,
            qp_num: self.qp_num,
        };
        // SAFETY: the completion queue outlives the queue pair.
        let cq = unsafe { &*self.cq.0 };
        let mut state = lock(&cq.state);
        if state.entries.len() >= cq.head.cqe as usize {
            state.overrun = true;
            return;
        }
        let (freed, number) = (Arc::clone(&self.freed), request.number);
        state.entries.push_back(Entry { wc, freed, number });
        if std::mem::take(&mut state.armed) {
            // SAFETY: the channel outlives its completion queues.
            let channel = unsafe { &*cq.head.channel.cast::<Channel>() };
            lock(&channel.events).push_back(self.cq.0 as usize);
            channel.ring();
        }
    }
}

impl Channel {
    fn ring(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight bytes, as an eventfd takes.
        unsafe { libc::write(self.fd.as_raw_fd(), one.as_ptr().cast(), 8) };
    }
}

unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, num: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: a Cq of `create_cq`.
    let cq = unsafe { &*cq.cast::<Cq>() };
    let mut state = lock(&cq.state);
    if state.overrun {
        return -1;
    }
    let mut polled = 0;
    while polled < num {
        let Some(entry) = state.entries.pop_front() else {
            break;
        };
        let mut freed = lock(&entry.freed);
        *freed = (*freed).max(entry.number + 1);
        // SAFETY: the caller has room for `num`.
        let place = unsafe { wc.add(polled as usize) };
        // SAFETY: as above.
        unsafe { place.write(entry.wc) };
        polled += 1;
    }
    polled
}

unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, _solicited: c_int) -> c_int {
    // SAFETY: a Cq of `create_cq`.
    let cq = unsafe { &*cq.cast::<Cq>() };
    lock(&cq.state).armed = true;
    0
}

unsafe extern "C" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    context: *mut *mut c_void,
) -> c_int {
    // SAFETY: a Channel of `create_comp_channel`.
    let channel = unsafe { &*channel.cast::<Channel>() };
    let mut one = [0u8; 8];
    // SAFETY: eight bytes, as an eventfd gives.
    let read = unsafe { libc::read(channel.fd.as_raw_fd(), one.as_mut_ptr().cast(), 8) };
    if read != 8 {
        debug_assert_eq!(io::Error::last_os_error().kind(), io::ErrorKind::WouldBlock);
        return -1;
    }
    let Some(of) = lock(&channel.events).pop_front() else {
        return -1;
    };
    let of = of as *mut Cq;
    // SAFETY: it is not destroyed before its events were acknowledged.
    let queue = unsafe { &*of };
    lock(&queue.state).unacked += 1;
    // SAFETY: the caller's place for it.
    unsafe { *cq = of.cast() };
    // SAFETY: as above.
    unsafe { *context = queue.head.cq_context };
    0
}

unsafe extern "C" fn ack_cq_events(cq: *mut ibv_cq, nevents: c_uint) {
    // SAFETY: a Cq of `create_cq`.
    let cq = unsafe { &*cq.cast::<Cq>() };
    lock(&cq.state).unacked -= u64::from(nevents);
}
