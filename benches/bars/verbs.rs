//! V2, V7, V8, V11 and V12: writes and sends through the crate over the `verbs` provider, against a
//! loop as a C program would write it, on the same functions.
//!
//! The functions do almost nothing: `post_send` copies the bytes and puts a completion into a ring,
//! and `poll_cq` takes the completion. The remote memory is exported by another process, which runs
//! this program too, so that this process takes no lease for it. The bytes go to a buffer of this
//! process.
#![expect(unsafe_code, reason = "it calls what C would call, and is called so")]

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::hint::black_box;
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use support::counting;
use tokio::runtime::Builder;
use tokio_doca::device::contract::Provider;
use tokio_doca::verbs::Verbs;
use tokio_doca::verbs::ffi::*;
use tokio_doca::{
    Buf, BufPool, Device, Mmap, Mode, Rdma, WorkQ,
    mem::{Access, RemoteBuf, RemoteMmap},
    op::{Op, StartedAll},
};

use super::report::Goal::{AtMost, Exactly};
use super::report::Report;
use super::{locked, scenario};

const LEN: usize = 64;
/// The bytes of a long write. The adapter here copies only the first [`LEN`] bytes.
const LONG: usize = 64 << 10;
const PLACES: usize = 256;
/// The number of writes that are started together.
const BATCH: u64 = 32;

/// A completion queue. One thread posts and polls.
#[repr(C)]
struct Cq {
    head: ibv_cq,
    ring: UnsafeCell<Ring>,
}

struct Ring {
    entries: [Wc; PLACES],
    taken: usize,
    put: usize,
    /// For a late adapter: the number of entries that events have announced, and whether an event
    /// is requested.
    announced: usize,
    is_armed: bool,
    /// The destination of all writes.
    target: [u8; LEN],
}

/// A completion channel: the source of a late adapter's events, with the completion queue that
/// signaled last.
#[repr(C)]
struct Channel {
    head: ibv_comp_channel,
    rung: UnsafeCell<*mut ibv_cq>,
}

/// True for a late adapter: a completion becomes visible once its event was read, as on an adapter
/// that takes its time.
static IS_LATE: AtomicBool = AtomicBool::new(false);

fn made<T>(object: T) -> *mut T {
    // All objects live as long as the process.
    Box::leak(Box::new(object))
}

fn fill<T>(place: *mut T, value: T) -> c_int {
    // SAFETY: `place` is the caller's memory for the answer.
    unsafe { place.write(value) };
    0
}

extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    let mut device = ibv_device {
        transport_type: IBV_TRANSPORT_IB,
        ..ibv_device::default()
    };
    for (to, &from) in device.name.iter_mut().zip(b"bare0") {
        *to = from as c_char;
    }
    fill(count, 1);
    made([made(device), ptr::null_mut()]).cast()
}

extern "C" fn free_device_list(_: *mut *mut ibv_device) {}

extern "C" fn get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: `device` comes from `get_device_list`.
    unsafe { &raw const (*device).name }.cast()
}

extern "C" fn open_device(device: *mut ibv_device) -> *mut ibv_context {
    let mut context = ibv_context {
        device,
        // An eventfd that never signals.
        async_fd: eventfd(),
        ..ibv_context::default()
    };
    context.ops.poll_cq = Some(poll_cq);
    context.ops.req_notify_cq = Some(req_notify_cq);
    context.ops.post_send = Some(post_send);
    context.ops.post_recv = Some(post_recv);
    if IS_LATE.load(Relaxed) {
        context.ops.poll_cq = Some(late_poll_cq);
        context.ops.req_notify_cq = Some(late_req_notify_cq);
        context.ops.post_send = Some(late_post_send);
    }
    made(context)
}

fn eventfd() -> c_int {
    // SAFETY: the call takes no pointers.
    unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }
}

extern "C" fn close_device(_: *mut ibv_context) -> c_int {
    0
}

extern "C" fn query_device(_: *mut ibv_context, to: *mut ibv_device_attr) -> c_int {
    fill(
        to,
        ibv_device_attr {
            max_qp_wr: 1024,
            max_sge: 16,
            max_cqe: 1 << 16,
            max_qp_rd_atom: 16,
            max_qp_init_rd_atom: 16,
            atomic_cap: IBV_ATOMIC_HCA,
            phys_port_cnt: 1,
            ..ibv_device_attr::default()
        },
    )
}

extern "C" fn query_port(_: *mut ibv_context, _: u8, to: *mut ibv_port_attr) -> c_int {
    fill(
        to,
        ibv_port_attr {
            state: IBV_PORT_ACTIVE,
            active_mtu: IBV_MTU_4096,
            max_msg_sz: 1 << 30,
            gid_tbl_len: 1,
            lid: 1,
            link_layer: IBV_LINK_LAYER_INFINIBAND,
            ..ibv_port_attr::default()
        },
    )
}

extern "C" fn query_gid_ex(
    _: *mut ibv_context,
    _: u32,
    _: u32,
    to: *mut ibv_gid_entry,
    _: u32,
    _: usize,
) -> c_int {
    fill(
        to,
        ibv_gid_entry {
            gid: ibv_gid { raw: [0xfe; 16] },
            ..ibv_gid_entry::default()
        },
    )
}

extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    made(ibv_pd { context, handle: 1 })
}

extern "C" fn dealloc_pd(_: *mut ibv_pd) -> c_int {
    0
}

extern "C" fn reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, _: c_int) -> *mut ibv_mr {
    made(ibv_mr {
        context: ptr::null_mut(),
        pd,
        addr,
        length,
        handle: 1,
        lkey: 1,
        rkey: 2,
    })
}

extern "C" fn dereg_mr(_: *mut ibv_mr) -> c_int {
    0
}

extern "C" fn create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    let head = ibv_comp_channel {
        context,
        fd: eventfd(),
    };
    let rung = UnsafeCell::new(ptr::null_mut());
    made(Channel { head, rung }).cast()
}

extern "C" fn destroy_comp_channel(_: *mut ibv_comp_channel) -> c_int {
    0
}

extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    _: c_int,
) -> *mut ibv_cq {
    let head = ibv_cq {
        context,
        channel,
        cq_context,
        cqe,
        ..ibv_cq::default()
    };
    let ring = UnsafeCell::new(Ring {
        entries: [Wc::default(); PLACES],
        taken: 0,
        put: 0,
        announced: 0,
        is_armed: false,
        target: [0; LEN],
    });
    made(Cq { head, ring }).cast()
}

extern "C" fn resize_cq(_: *mut ibv_cq, _: c_int) -> c_int {
    0
}

extern "C" fn destroy_cq(_: *mut ibv_cq) -> c_int {
    0
}

unsafe extern "C" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    to: *mut *mut ibv_cq,
    context: *mut *mut c_void,
) -> c_int {
    // SAFETY: `channel` comes from `create_comp_channel`.
    let channel = unsafe { &*channel.cast::<Channel>() };
    let mut rings = 0_u64;
    // SAFETY: an eventfd gives eight bytes, for which `rings` has the space.
    let read = unsafe { libc::read(channel.head.fd, (&raw mut rings).cast(), 8) };
    if read != 8 {
        return -1;
    }
    // SAFETY: only one thread posts, polls and reads events.
    let cq = unsafe { *channel.rung.get() };
    let ring = ring(cq);
    ring.announced = ring.put;
    fill(to, cq);
    // SAFETY: `cq` is the completion queue that signaled, which lives as long as the process.
    fill(context, unsafe { (*cq).cq_context })
}

/// Returns the ring of a completion queue. The caller must not hold two of these references at
/// once.
fn ring<'a>(cq: *mut ibv_cq) -> &'a mut Ring {
    // SAFETY: `cq` comes from `create_cq`, and lives as long as the process.
    let cq = unsafe { &*cq.cast::<Cq>() };
    // SAFETY: only one thread posts and polls, and it keeps no reference to the ring.
    unsafe { &mut *cq.ring.get() }
}

/// Signals the entries put since the last event, if an event is requested.
fn announce(cq: *mut ibv_cq) {
    let ring = ring(cq);
    if !ring.is_armed || ring.announced == ring.put {
        return;
    }
    ring.is_armed = false;
    // SAFETY: `cq` comes from `create_cq`.
    let channel = unsafe { (*cq).channel };
    // SAFETY: `create_cq` stored a channel that comes from `create_comp_channel`.
    let channel = unsafe { &*channel.cast::<Channel>() };
    // SAFETY: only one thread posts, polls and reads events.
    unsafe { *channel.rung.get() = cq };
    // SAFETY: an eventfd takes eight bytes, and `ONE` has them.
    unsafe { libc::write(channel.head.fd, (&raw const ONE).cast(), 8) };
}

static ONE: u64 = 1;

unsafe extern "C" fn late_post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller fulfils the conditions of `post_send`.
    let posted = unsafe { post_send(qp, wr, bad) };
    // SAFETY: `qp` comes from `create_qp`.
    announce(unsafe { (*qp).send_cq });
    posted
}

extern "C" fn late_req_notify_cq(cq: *mut ibv_cq, _: c_int) -> c_int {
    ring(cq).is_armed = true;
    announce(cq);
    0
}

unsafe extern "C" fn late_poll_cq(cq: *mut ibv_cq, max: c_int, to: *mut Wc) -> c_int {
    let ring = ring(cq);
    let max = max.min((ring.announced - ring.taken) as c_int);
    // SAFETY: the caller fulfils the conditions of `poll_cq`.
    unsafe { poll_cq(cq, max, to) }
}

extern "C" fn ack_cq_events(_: *mut ibv_cq, _: c_uint) {}

extern "C" fn create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: `init` is the caller's struct.
    let init = unsafe { *init };
    made(ibv_qp {
        pd,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        // The address of a leaked object makes the number unique.
        qp_num: made(0u64).addr() as u32 >> 3 & 0xff_ffff,
        ..ibv_qp::default()
    })
}

extern "C" fn modify_qp(_: *mut ibv_qp, _: *mut ibv_qp_attr, _: c_int) -> c_int {
    0
}

extern "C" fn destroy_qp(_: *mut ibv_qp) -> c_int {
    0
}

extern "C" fn get_async_event(_: *mut ibv_context, _: *mut ibv_async_event) -> c_int {
    -1
}

extern "C" fn ack_async_event(_: *mut ibv_async_event) {}

/// Posts requests, and copies 64 bytes of each, up to the first one without pieces. That one only
/// checks the connection, and gets no completion.
unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    _: *mut *mut ibv_send_wr,
) -> c_int {
    let mut next = wr;
    loop {
        // SAFETY: `next` is a request of the caller.
        let wr = unsafe { &*next };
        if wr.num_sge == 0 {
            return 0;
        }
        // SAFETY: `qp` comes from `create_qp`.
        let qp = unsafe { &*qp };
        // SAFETY: its completion queue comes from `create_cq`.
        let cq = unsafe { &*qp.send_cq.cast::<Cq>() };
        // SAFETY: only one thread posts and polls.
        let ring = unsafe { &mut *cq.ring.get() };
        // SAFETY: the request has one piece.
        let sge = unsafe { &*wr.sg_list };
        let from = ptr::with_exposed_provenance::<u8>(sge.addr as usize);
        // SAFETY: the source and `target` have 64 bytes each.
        unsafe { ptr::copy_nonoverlapping(from, ring.target.as_mut_ptr(), LEN) };
        let entry = &mut ring.entries[ring.put % PLACES];
        (entry.wr_id, entry.qp_num, entry.status) = (wr.wr_id, qp.qp_num, 0);
        ring.put += 1;
        next = wr.next;
        if next.is_null() {
            return 0;
        }
    }
}

extern "C" fn post_recv(_: *mut ibv_qp, _: *mut ibv_recv_wr, _: *mut *mut ibv_recv_wr) -> c_int {
    libc::EINVAL
}

extern "C" fn req_notify_cq(_: *mut ibv_cq, _: c_int) -> c_int {
    0
}

unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, max: c_int, to: *mut Wc) -> c_int {
    // SAFETY: `cq` comes from `create_cq`.
    let cq = unsafe { &*cq.cast::<Cq>() };
    // SAFETY: only one thread posts and polls.
    let ring = unsafe { &mut *cq.ring.get() };
    let mut polled = 0;
    while polled < max && ring.taken < ring.put {
        let to = to.cast::<Wc>().wrapping_add(polled as usize);
        // SAFETY: the caller's array has space for `max` entries.
        unsafe { to.write(ring.entries[ring.taken % PLACES]) };
        ring.taken += 1;
        polled += 1;
    }
    polled
}

const TABLE: Table = Table {
    get_device_list,
    free_device_list,
    get_device_name,
    open_device,
    close_device,
    query_device,
    query_port,
    query_gid_ex,
    alloc_pd,
    dealloc_pd,
    reg_mr,
    dereg_mr,
    create_comp_channel,
    destroy_comp_channel,
    create_cq,
    resize_cq,
    destroy_cq,
    get_cq_event,
    ack_cq_events,
    create_qp,
    modify_qp,
    destroy_qp,
    get_async_event,
    ack_async_event,
    create_srq: None,
    modify_srq: None,
    destroy_srq: None,
    cm: || Err("none".to_owned()),
};

/// Runs the loop of a C program: fills a request, posts it, and polls its completion.
fn c_loop(jobs: u64) {
    let mut count = 0;
    let list = get_device_list(&mut count);
    // SAFETY: the list has one device.
    let context = open_device(unsafe { *list });
    let pd = alloc_pd(context);
    let bytes = made([7u8; LEN]);
    let mr = reg_mr(pd, bytes.cast(), LEN, 0);
    let cq = create_cq(
        context,
        16,
        ptr::null_mut(),
        create_comp_channel(context),
        0,
    );
    let mut init = ibv_qp_init_attr {
        send_cq: cq,
        recv_cq: cq,
        ..ibv_qp_init_attr::default()
    };
    let qp = create_qp(pd, &mut init);
    // SAFETY: `context` comes from `open_device`.
    let ops = unsafe { (*context).ops };
    // SAFETY: `mr` comes from `reg_mr`.
    let lkey = unsafe { (*mr).lkey };
    let post_send = ops.post_send.expect("filled");
    let poll_cq = ops.poll_cq.expect("filled");
    for job in 0..jobs {
        let mut sge = ibv_sge {
            addr: bytes.expose_provenance() as u64,
            length: LEN as u32,
            lkey,
        };
        let mut wr = ibv_send_wr {
            wr_id: job,
            sg_list: &mut sge,
            num_sge: 1,
            opcode: IBV_WR_RDMA_WRITE,
            send_flags: (ibv_send_flags::IBV_SEND_SIGNALED | ibv_send_flags::IBV_SEND_INLINE).0,
            ..ibv_send_wr::default()
        };
        wr.wr.rdma = ibv_send_wr_rdma {
            remote_addr: 4096,
            rkey: 2,
        };
        let mut bad = ptr::null_mut();
        // SAFETY: `wr` is a single request with one piece.
        let posted = unsafe { black_box(post_send)(qp, &mut wr, &mut bad) };
        assert_eq!(posted, 0);
        let mut wc = Wc::default();
        // SAFETY: `wc` has space for one entry.
        while unsafe { black_box(poll_cq)(cq, 1, (&raw mut wc).cast()) } == 0 {}
        assert!(wc.status == 0 && wc.wr_id == job);
    }
}

/// Two connected contexts of this process, and a source Buf to write from.
struct Rig {
    device: Device,
    workq: WorkQ,
    rdmas: [Rdma; 2],
    src: Buf,
}

impl Rig {
    /// Opens the adapter, with a source of `len` bytes.
    fn open(len: usize, mode: Mode) -> Rig {
        // SAFETY: the functions do what this bar needs, and are called on one thread.
        let verbs = unsafe { Verbs::over(TABLE) };
        let infos = verbs.devices().expect("a list");
        let device = verbs.open(&infos[0]).expect("a device");
        let workq = WorkQ::builder().mode(mode).build().expect("a WorkQ");
        let rdma = || Rdma::builder(&device).attach(&workq).expect("a context");
        let rdmas = [rdma(), rdma()];
        let blobs = rdmas.each_ref().map(|rdma| rdma.export().expect("a blob"));
        for (rdma, blob) in rdmas.iter().zip(blobs.iter().rev()) {
            rdma.connect(blob).wait().expect("a connection");
        }
        let mmap = Mmap::builder().device(&device).alloc(LONG).expect("memory");
        let pool = BufPool::builder(&mmap).element_size(len).build();
        let src = pool.expect("a pool").try_alloc().expect("an element");
        src.set_data(0, len).expect("it fits");
        Rig {
            device,
            workq,
            rdmas,
            src,
        }
    }

    /// Imports memory of another process.
    fn remote(&self) -> RemoteBuf {
        let this = std::env::current_exe().expect("a path");
        let output = Command::new(this)
            .args(["scenario", "verbs-export", "0"])
            .output();
        let text = output.expect("a child").stdout;
        let digits = text.trim_ascii().chunks(2);
        let byte = |two: &[u8]| {
            let two = std::str::from_utf8(two).expect("hex digits");
            u8::from_str_radix(two, 16).expect("a byte")
        };
        let blob: Vec<u8> = digits.map(byte).collect();
        let remote = RemoteMmap::from_export(&self.device, &blob).wait();
        remote
            .expect("an import")
            .buf(..self.src.data_len())
            .expect("a range")
    }

    fn write(&self, remote: &RemoteBuf, jobs: u64) {
        let rdma = &self.rdmas[0];
        self.workq.block_on(async {
            for _ in 0..jobs {
                rdma.write(&self.src, remote).await.expect("a write");
            }
        });
    }

    /// Writes in batches of [`BATCH`] writes that are started together.
    fn write_batches(&self, remote: &RemoteBuf, jobs: u64) {
        let rdma = &self.rdmas[0];
        self.workq.block_on(async {
            for _ in 0..jobs / BATCH {
                let writes = (0..BATCH).map(|_| rdma.write(&self.src, remote));
                let StartedAll { started, refused } = Op::start_all(writes);
                assert!(refused.is_none());
                for write in started {
                    write.await.expect("a write");
                }
            }
        });
    }

    fn send(&self, jobs: u64) {
        let rdma = &self.rdmas[0];
        self.workq.block_on(async {
            for _ in 0..jobs {
                rdma.send(&self.src).await.expect("a send");
            }
        });
    }
}

/// Runs a scenario under callgrind, or the child process that exports memory.
pub(crate) fn run(name: &str, jobs: u64) {
    match name {
        "verbs-c" => c_loop(jobs),
        "verbs-send" => {
            let rig = Rig::open(LEN, Mode::BusyPoll);
            rig.send(jobs);
            std::mem::forget(rig);
        }
        "verbs-batch" => {
            let rig = Rig::open(LEN, Mode::BusyPoll);
            let remote = rig.remote();
            rig.write_batches(&remote, jobs);
            std::mem::forget((rig, remote));
        }
        "verbs-write" | "verbs-long" => {
            let rig = Rig::open(
                if name == "verbs-long" { LONG } else { LEN },
                Mode::BusyPoll,
            );
            let remote = rig.remote();
            rig.write(&remote, jobs);
            // Leak these: dropping them would race with the end of the process.
            std::mem::forget((rig, remote));
        }
        "verbs-asleep" => {
            IS_LATE.store(true, Relaxed);
            let rig = Rig::open(LEN, Mode::EventDriven);
            let remote = rig.remote();
            let runtime = Builder::new_current_thread().enable_io().build();
            runtime.expect("a runtime").block_on(async {
                for _ in 0..jobs {
                    rig.rdmas[0]
                        .write(&rig.src, &remote)
                        .await
                        .expect("a write");
                }
            });
            std::mem::forget((rig, remote));
        }
        "verbs-export" => {
            let rig = Rig::open(LEN, Mode::BusyPoll);
            let access = Access::LOCAL_READ_WRITE | Access::RDMA_WRITE;
            let mmap = Mmap::builder().device(&rig.device).access(access);
            let mmap = mmap.alloc(LONG).expect("memory");
            let blob = mmap.export_rdma(&rig.device).expect("a blob");
            let digits: Vec<String> = blob.iter().map(|byte| format!("{byte:02x}")).collect();
            println!("{}", digits.concat());
        }
        other => panic!("no scenario {other}"),
    }
}

/// Returns the instructions of a request that C posts and polls, and of an awaited write of 64
/// bytes.
pub(crate) fn instructions() -> Result<[f64; 2], String> {
    let c = scenario::instructions("verbs-c")?;
    Ok([c, scenario::instructions("verbs-write")?])
}

/// V11: the cost of a write in a batch of writes that are started together and awaited.
pub(crate) fn v11(report: &mut Report) {
    let what = "instructions of a 64-byte write, busy-poll, of 32 that are started together";
    let each = scenario::instructions("verbs-batch").map(f64::round);
    report.counted("V11", each, AtMost(900.0), what);
}

/// V8: the locked instructions of an awaited write of 64 bytes.
pub(crate) fn v8(report: &mut Report) {
    let what = "locked instructions of a 64-byte write, busy-poll";
    let each = locked::instructions("verbs-write");
    report.counted("V8", each, AtMost(9.0), what);
}

/// V12: the cost of an awaited write of 64 bytes in event mode, whose task sleeps until the event
/// comes.
pub(crate) fn v12(report: &mut Report) {
    let what = "instructions of a 64-byte write by event, asleep at its completion";
    let each = scenario::instructions("verbs-asleep").map(f64::round);
    report.counted("V12", each, AtMost(2900.0), what);
    // Subtract one call: the one by which the adapter here signals.
    let calls = scenario::system_calls("verbs-asleep", 1_000, 11_000).map(|calls| calls - 1.0);
    let what = "system calls of such a write";
    report.counted("V12.calls", calls, AtMost(2.0), what);
}

/// V7: the cost of an awaited send of 64 bytes, and of a write of 64 KiB, beyond a request that C
/// posts and polls.
pub(crate) fn v7(report: &mut Report) {
    let each =
        |name| Ok::<_, String>(scenario::instructions(name)? - scenario::instructions("verbs-c")?);
    for (name, what) in [
        ("verbs-send", "a send of 64 bytes"),
        ("verbs-long", "a write of 64 KiB"),
    ] {
        let what = format!("instructions of {what}, over a loop in C's way on the same functions");
        report.counted("V7", each(name).map(f64::round), AtMost(1000.0), &what);
    }
}

/// V2: the cost of an awaited write of 64 bytes beyond a request that C posts and polls.
pub(crate) fn v2(report: &mut Report) {
    let what =
        "instructions of a 64-byte write, busy-poll, over a loop in C's way on the same functions";
    match instructions() {
        Ok([c, op]) => {
            let what = format!("{what} ({op:.1} against {c:.1})");
            report.line("V2", (op - c).round(), AtMost(1050.0), "", &what);
        }
        Err(error) => report.skip("V2", &error),
    }
    let rig = Rig::open(LEN, Mode::BusyPoll);
    let remote = rig.remote();
    rig.write(&remote, 64);
    let allocations = |jobs| {
        let before = counting::here();
        rig.write(&remote, jobs);
        counting::here() - before
    };
    // `block_on` allocates a waker per call, which does not count.
    let (few, many) = (allocations(1), allocations(1001));
    let each = (many as f64 - few as f64) / 1000.0;
    report.line("V2.alloc", each, Exactly(0.0), "", "allocations of one");
}
