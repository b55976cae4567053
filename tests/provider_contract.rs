//! The contract suite, run on every provider of the crate and on one over a fake table of verbs.
//!
//! The latter is the test of the contract itself: what libibverbs cannot do may not be asked for.
#![expect(
    unsafe_code,
    reason = "the fake table of verbs is C in shape, queues are driven directly, and a device says less of itself"
)]

mod common;
mod fake_verbs;
#[path = "common/loopback.rs"]
mod loopback;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use common::device::{needs_adapter, under_test};
use direct::Direct;
use fake_verbs::{FakeVerbs, live_objects, refuse_request};
use loopback::Loopback;
use tokio_doca::contract::{self, Peers, Subject};
use tokio_doca::device::{Adapter, Device, Queue, QueueConfig, Registrar};
use tokio_doca::soft::{Fault, Limits, Soft};
use tokio_doca::{
    Algorithm, Buf, BufPool, DevInfo, Dma, ErrorKind, Mmap, Mode, PciAddr, PciFunction, RdmaCaps,
    WorkQ,
};

/// For what must come.
const LONG: Duration = Duration::from_secs(10);

/// The fake adapter counts its objects and has faults for the whole process: one test at a time.
static ADAPTER: Mutex<()> = Mutex::new(());

#[test]
fn soft_inline_keeps_the_contract() {
    contract::dma(&Soft::builder().build().open("pf0").unwrap());
}

#[test]
fn soft_deferred_keeps_the_contract() {
    contract::dma(&Soft::builder().defer(true).build().open("pf0").unwrap());
}

#[test]
fn soft_without_inline_copies_keeps_the_contract() {
    contract::dma(&Soft::builder().inline_limit(0).build().open("pf0").unwrap());
}

#[test]
fn soft_with_the_limits_of_an_adapter_keeps_the_contract() {
    let tiny = Limits::unlimited().max_buf_size(1);
    let small = Limits::unlimited().max_buf_size(300).max_list_len(3);
    let polled = Limits::bluefield2().dma_event_driven(false);
    for limits in [tiny, small, polled, Limits::bluefield3()] {
        let soft = Soft::builder().limits(limits).defer(true).build();
        contract::dma(&soft.open("pf0").unwrap());
    }
}

#[test]
fn soft_inline_hashes_by_the_contract() {
    contract::sha(&Soft::builder().build().open("pf0").unwrap());
}

#[test]
fn soft_deferred_hashes_by_the_contract() {
    contract::sha(&Soft::builder().defer(true).build().open("pf0").unwrap());
}

#[test]
fn soft_with_the_limits_of_an_adapter_hashes_by_the_contract() {
    let tiny = Limits::unlimited().max_buf_size(1);
    let small = Limits::unlimited().max_buf_size(300).max_list_len(3);
    let polled = Limits::bluefield2().sha_event_driven(false);
    for limits in [tiny, small, polled, Limits::bluefield3()] {
        let soft = Soft::builder().limits(limits).defer(true).build();
        let device = soft.open("pf0").unwrap();
        // The longest digest, and the longest blocks.
        contract::all(Subject::sha(&device, Algorithm::Sha512));
        contract::all(Subject::sha_parts(&device, Algorithm::Sha512));
    }
}

#[test]
fn soft_inline_keeps_the_contract_of_remote_operations() {
    contract::rdma(&Soft::builder().build().open("pf0").unwrap());
}

#[test]
fn soft_deferred_keeps_the_contract_of_remote_operations() {
    contract::rdma(&Soft::builder().defer(true).build().open("pf0").unwrap());
}

#[test]
fn two_devices_keep_the_contract_of_remote_operations() {
    let inline = Soft::builder().build().open("pf0").unwrap();
    let deferred = Soft::builder().defer(true).build().open("pf1").unwrap();
    contract::rdma(Peers::of(&inline, &deferred));
}

#[test]
fn soft_with_the_limits_of_an_adapter_keeps_the_contract_of_remote_operations() {
    let tiny = Limits::unlimited()
        .max_message_size(1)
        .max_rdma_queue_size(1);
    let small = Limits::unlimited().max_message_size(8000).max_list_len(3);
    let polled = Limits::bluefield2().rdma_event_driven(false);
    for limits in [tiny, small, polled] {
        let soft = Soft::builder().limits(limits).defer(true).build();
        contract::rdma(&soft.open("pf0").unwrap());
    }
}

#[test]
fn a_loopback_device_keeps_the_contract_of_remote_operations() {
    for inline in [false, true] {
        contract::rdma(&Loopback::device(inline).1);
    }
}

/// Without what not every adapter has: no lists, no atomics, no immediate of a write, and short queues.
#[test]
fn a_device_is_asked_for_the_remote_operations_that_it_declares_alone() {
    let mut caps = RdmaCaps::new(8 << 10, 2, 1);
    (caps.atomics, caps.write_imm) = (false, false);
    contract::rdma(&Loopback::with_caps(true, caps).1);
}

#[test]
fn soft_never_sees_a_refused_operation() {
    for defer in [false, true] {
        let soft = Soft::builder().defer(defer).build();
        let device = soft.open("pf0").unwrap();
        contract::a_refused_operation_was_never_seen(&device, &mut || {
            soft.faults().push(Fault::QueueFull);
        });
    }
}

/// What the crate's other provider has, on the adapter that DOCA_VERBS_DEVICE names.
fn on_the_adapter(check: impl FnOnce(&Device)) {
    if !needs_adapter() {
        check(&under_test(true));
    }
}

#[test]
fn the_adapter_under_test_keeps_the_contract() {
    on_the_adapter(contract::dma);
}

#[test]
fn the_adapter_under_test_keeps_the_contract_of_remote_operations() {
    on_the_adapter(|device| contract::rdma(device));
}

#[test]
fn the_adapter_under_test_hashes_by_the_contract() {
    on_the_adapter(contract::sha);
}

/// A device that says less of itself: SHA-1 alone, and no sessions.
struct Sha1Alone(Device, DevInfo);

// SAFETY: the queues are the device's, each new.
unsafe impl Adapter for Sha1Alone {
    fn info(&self) -> &DevInfo {
        &self.1
    }

    fn registrar(&self) -> &dyn Registrar {
        self.0.adapter().registrar()
    }

    fn open_queue(&self, config: QueueConfig) -> tokio_doca::Result<Arc<dyn Queue>> {
        self.0.adapter().open_queue(config)
    }

    fn jobs(&self) -> Option<u64> {
        self.0.jobs()
    }
}

#[test]
fn a_device_is_asked_for_the_hashes_that_it_declares_alone() {
    let soft = Soft::builder().defer(true).build().open("pf0").unwrap();
    let mut caps = soft.info().caps().clone();
    let sha = caps.sha.as_mut().unwrap();
    (sha.algorithms, sha.sessions) = (vec![Algorithm::Sha1], false);
    let addr = PciAddr::new(9, 0, 0);
    let info = DevInfo::new("less", "less0", addr, PciFunction::Pf, caps);
    contract::sha(&Device::from_adapter(Arc::new(Sha1Alone(soft, info))));
}

#[test]
fn soft_never_sees_a_refused_job() {
    for defer in [false, true] {
        let soft = Soft::builder().defer(defer).build();
        let device = soft.open("pf0").unwrap();
        for subject in [
            Subject::copies(&device),
            Subject::sha(&device, Algorithm::Sha256),
            Subject::sha_parts(&device, Algorithm::Sha256),
        ] {
            contract::a_refused_job_was_never_seen(subject, &mut || {
                soft.faults().push(Fault::QueueFull);
            });
        }
    }
}

/// Runs a check on a fake adapter; nothing of it may be left.
fn on_fake_verbs(send_queue: u32, max_sge: u32, check: impl FnOnce(&Device)) {
    let _one = ADAPTER.lock().unwrap_or_else(PoisonError::into_inner);
    let before = live_objects();
    let provider = FakeVerbs::new("fake0", send_queue, max_sge);
    check(&provider.open_device());
    assert_eq!(
        live_objects(),
        before,
        "an object of the adapter was not destroyed"
    );
}

#[test]
fn verbs_keep_the_contract() {
    on_fake_verbs(1024, 4, contract::dma);
}

#[test]
fn verbs_with_a_short_send_queue_keep_the_contract() {
    // Sixteen requests for up to 256 Jobs: it is full most of the time.
    on_fake_verbs(16, 1, contract::dma);
}

/// The handle was asked for before the device came, whose completion channel must be read: it is the same one, and quiet
/// when it was cleared.
#[test]
fn a_loop_of_ones_own_waits_for_a_device_with_a_descriptor_of_its_own() {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::os::fd::AsRawFd;
    on_fake_verbs(64, 2, |device| {
        let workq = WorkQ::builder().depth(8).build().unwrap();
        let handle = workq.event_handle().unwrap().as_raw_fd();
        let dma = Dma::builder(device).attach(&workq).unwrap();
        let fires = |ms: u16| {
            let fd = workq.event_handle().unwrap();
            assert_eq!(fd.as_raw_fd(), handle);
            let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
            poll(&mut fds, PollTimeout::from(ms)).unwrap() == 1
        };
        let mmap = Mmap::builder().device(device).alloc(1 << 14).unwrap();
        let pool = BufPool::builder(&mmap).build().unwrap();
        for word in 0..20 {
            let (src, dst) = (pool.try_alloc().unwrap(), pool.try_alloc().unwrap());
            src.extend_from_slice(b"abc").unwrap();
            dma.submit_copy(&src, &dst, word).unwrap();
            let mut told = Vec::new();
            while told.is_empty() {
                workq.arm();
                assert!(fires(10_000), "job {word} was not heard of");
                workq.clear();
                workq.progress(|word, result| told.push((word, result)));
            }
            assert_eq!(told, [(word, Ok(3))]);
            assert!(!fires(5), "it is not quiet");
            assert_eq!(&dst.data().unwrap()[..], b"abc");
        }
        drop((dma, pool));
        workq.block_on(workq.shutdown()).unwrap();
    });
}

#[test]
fn a_provider_that_was_added_is_listed_and_opened_by_name() {
    tokio_doca::add_provider(Arc::new(FakeVerbs::new("fake-by-name", 64, 2))).unwrap();
    let again = tokio_doca::add_provider(Arc::new(FakeVerbs::new("another", 64, 2)));
    assert!(again.is_err(), "a name of a provider stands for one");
    let names: Vec<String> = Device::list()
        .unwrap()
        .iter()
        .map(|info| info.name().to_owned())
        .collect();
    assert!(names.contains(&"fake-by-name".to_owned()), "{names:?}");
    let _one = ADAPTER.lock().unwrap_or_else(PoisonError::into_inner);
    let device = Device::open("fake-by-name").unwrap();
    assert_eq!(
        device,
        Device::open("f0:00.0").unwrap(),
        "opened twice it is the same"
    );
    contract::each_accepted_job_completes_once(&device);
    assert_eq!(device.info().provider(), "fake-verbs");
    assert!(device.jobs().unwrap() > 0);
}

/// Jobs straight into a queue of the fake adapter, with keys of the test's own.
mod direct {
    use std::ptr::NonNull;
    use std::sync::Arc;

    use tokio_doca::JobError;
    use tokio_doca::device::{
        Access, Completion, Device, Job, Queue, QueueConfig, Region, Registration, Segment,
        Segments, Signal, Submitted, Token, Use,
    };

    #[repr(align(4096))]
    struct Memory([u8; 16384]);

    /// A queue, and registered memory of which the first half is read and the second written. Leaked if it fails.
    pub(crate) struct Direct {
        pub(crate) queue: Arc<dyn Queue>,
        registration: Option<Registration>,
        memory: NonNull<Memory>,
        lists: Vec<NonNull<[Segment]>>,
    }

    impl Direct {
        pub(crate) fn new(device: &Device) -> Direct {
            let config = QueueConfig::new(16, Arc::new(Signal::new().unwrap()));
            let mut bytes = Box::new(Memory([0; 16384]));
            bytes.0[..8192].fill(0x5a);
            let memory = NonNull::from(Box::leak(bytes));
            let region = Region {
                addr: memory.cast(),
                len: 16384,
                access: Access::LOCAL_READ_WRITE,
            };
            Direct {
                queue: device.adapter().open_queue(config).unwrap(),
                registration: Some(
                    device
                        .adapter()
                        .registrar()
                        .register(&region, Use::Dma)
                        .unwrap(),
                ),
                memory,
                lists: Vec::new(),
            }
        }

        fn segment(&self, at: usize, len: usize, key: u64) -> Segment {
            assert!(at + len <= 16384);
            // SAFETY: within the memory, as was checked.
            let addr = unsafe { self.memory.cast::<u8>().add(at) };
            Segment { addr, len, key }
        }

        /// Copies 100 bytes to the `number`-th destination, which is cut into pieces: a work request each.
        pub(crate) fn job(&mut self, number: u32, pieces: usize, key: Option<u64>) -> (Token, Job) {
            let key = key.unwrap_or(self.registration.as_ref().unwrap().key());
            let piece = |i| self.segment(8192 + 500 * number as usize + 40 * i, 100 / pieces, key);
            let list: Vec<Segment> = (0..pieces).map(piece).collect();
            let list = NonNull::from(Box::leak(list.into_boxed_slice()));
            self.lists.push(list);
            // SAFETY: leaked above, and freed by `finish` alone.
            let list = unsafe { list.as_ref() };
            // SAFETY: as above.
            let dst = unsafe { Segments::list(list) };
            let src = Segments::one(self.segment(0, 100, key));
            (
                Token::new(0, number, number + 7),
                Job::Copy { src, dst, len: 100 },
            )
        }

        pub(crate) fn submit(&self, jobs: &[(Token, Job)]) -> Submitted {
            // SAFETY: the memory is this struct's and freed by `finish`; sources and destinations are disjoint.
            unsafe { self.queue.submit(jobs) }
        }

        /// Waits for so many completions.
        pub(crate) fn completions(&self, count: usize) -> Vec<(u32, Result<u64, JobError>)> {
            let end = std::time::Instant::now() + tokio_doca::contract::DEADLINE;
            let mut all = Vec::new();
            while all.len() < count {
                assert!(std::time::Instant::now() < end, "{all:?} of {count}");
                all.extend(self.look());
                std::thread::yield_now();
            }
            all
        }

        pub(crate) fn look(&self) -> Vec<(u32, Result<u64, JobError>)> {
            let none = Completion::new(Token::from_raw(u64::MAX), Ok(0));
            let mut out = [none; 32];
            // SAFETY: one caller at a time.
            let reaped = unsafe { self.queue.reap(&mut out) };
            out[..reaped]
                .iter()
                .map(|one| (one.token.index(), one.result))
                .collect()
        }

        /// How many bytes of the `number`-th destination were written. Nothing is in flight.
        pub(crate) fn written(&self, number: u32) -> usize {
            let first = self.segment(8192 + 500 * number as usize, 500, 0).addr;
            // SAFETY: within the memory, and nothing is in flight.
            let bytes = unsafe { std::slice::from_raw_parts(first.as_ptr(), 500) };
            bytes.iter().filter(|&&byte| byte != 0).count()
        }

        /// Retires the queue, with nothing in flight.
        pub(crate) fn finish(mut self) {
            let keep = Arc::new(());
            // SAFETY: nothing is in flight, and nobody uses the queue afterwards.
            unsafe { self.queue.retire(Arc::clone(&keep) as _, 0) };
            assert_eq!(
                Arc::strong_count(&keep),
                1,
                "destroying the queue pair is the quiesce"
            );
            self.registration = None;
            for list in self.lists.drain(..) {
                // SAFETY: leaked by `job`, and nothing is in flight.
                drop(unsafe { Box::from_raw(list.as_ptr()) });
            }
            // SAFETY: leaked by `new`, and nothing is in flight.
            drop(unsafe { Box::from_raw(self.memory.as_ptr()) });
        }
    }
}

#[test]
fn a_verbs_job_that_fails_completes_once_and_those_behind_it_are_flushed_with_its_cause() {
    on_fake_verbs(64, 2, |device| {
        let mut rig = Direct::new(device);
        // Five requests each. The second Job names no region: its first request fails, the others are flushed, and so
        // is the third Job.
        let jobs = [
            rig.job(0, 5, None),
            rig.job(1, 5, Some(3)),
            rig.job(2, 5, None),
        ];
        let late = rig.job(3, 1, None);
        assert_eq!(rig.submit(&jobs).accepted, 3);
        let ends = rig.completions(3);
        let cause = ends[1].1.unwrap_err();
        assert_eq!(cause.kind(), ErrorKind::NotPermitted);
        assert_eq!(ends, [(0, Ok(100)), (1, Err(cause)), (2, Err(cause))]);
        let after = rig.submit(&[late]);
        assert_eq!(
            (after.accepted, after.refused),
            (0, Some(cause)),
            "the first cause is kept"
        );
        assert_eq!(
            (rig.written(0), rig.written(1), rig.written(2)),
            (100, 0, 0)
        );
        assert!(rig.look().is_empty(), "each completed once");
        rig.finish();
    });
}

#[test]
fn a_verbs_job_that_was_posted_by_half_is_accepted_and_completes_once() {
    // Three Jobs of five requests; the adapter refuses one of them somewhere.
    for refused in 1..=15 {
        on_fake_verbs(64, 2, |device| {
            let mut rig = Direct::new(device);
            let jobs = [
                rig.job(0, 5, None),
                rig.job(1, 5, None),
                rig.job(2, 5, None),
            ];
            refuse_request(refused);
            let submitted = rig.submit(&jobs);
            refuse_request(0);
            let (whole, half) = ((refused as usize - 1) / 5, (refused - 1) % 5 > 0);
            assert_eq!(
                submitted.accepted,
                whole + usize::from(half),
                "request {refused}"
            );
            let all = submitted.accepted == jobs.len();
            assert_eq!(submitted.refused.is_none(), all);
            let ends = rig.completions(submitted.accepted);
            for (number, (index, result)) in ends.into_iter().enumerate() {
                assert_eq!(index as usize, number, "in order");
                assert!(result == Ok(100) || half, "{result:?}");
                assert_eq!(
                    result.is_ok(),
                    rig.written(index) == 100 && (number < whole),
                    "{result:?}"
                );
            }
            for index in submitted.accepted as u32..3 {
                assert_eq!(rig.written(index), 0, "a refused Job left a trace");
            }
            assert!(rig.look().is_empty(), "each completed once");
            rig.finish();
        });
    }
}

/// A current-thread runtime with timers, a WorkQ in event mode, and what it takes to copy on a device.
struct Copies {
    runtime: tokio::runtime::Runtime,
    workq: WorkQ,
    pool: BufPool,
}

impl Copies {
    fn new(devices: &[&Device]) -> Copies {
        let mmap = devices
            .iter()
            .fold(Mmap::builder(), |mmap, device| mmap.device(device));
        let mmap = mmap.alloc(1 << 16).unwrap();
        Copies {
            runtime: tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap(),
            workq: WorkQ::builder().depth(8).build().unwrap(),
            pool: BufPool::builder(&mmap).element_size(4096).build().unwrap(),
        }
    }

    fn dma(&self, device: &Device) -> Dma {
        Dma::builder(device).attach(&self.workq).unwrap()
    }

    fn bufs(&self) -> (Buf, Buf) {
        let (src, dst) = (
            self.pool.try_alloc().unwrap(),
            self.pool.try_alloc().unwrap(),
        );
        src.extend_from_slice(&[7; 1000]).unwrap();
        (src, dst)
    }

    /// Awaits it on the runtime; a wake-up that is lost is an error.
    fn within<F: Future>(&self, future: F) -> Result<F::Output, tokio::time::error::Elapsed> {
        self.runtime
            .block_on(async { tokio::time::timeout(LONG, future).await })
    }
}

/// Polls a condition of the device's, without touching the WorkQ.
fn wait_until(mut condition: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + LONG;
    while !condition() {
        assert!(std::time::Instant::now() < end, "it never came");
        std::thread::yield_now();
    }
}

#[test]
fn one_workq_serves_a_signal_and_a_channel() {
    on_fake_verbs(64, 2, |verbs| {
        let soft = Soft::builder().defer(true).build().open("pf0").unwrap();
        let copies = Copies::new(&[&soft, verbs]);
        let (by_soft, by_verbs) = (copies.dma(&soft), copies.dma(verbs));
        for _ in 0..300 {
            let ((a, b), (c, d)) = (copies.bufs(), copies.bufs());
            let both = futures::future::join(by_soft.copy(&a, &b), by_verbs.copy(&c, &d));
            assert_eq!(copies.within(both).unwrap(), (Ok(1000), Ok(1000)));
        }
        assert_eq!((soft.jobs(), verbs.jobs()), (Some(300), Some(300)));
    });
}

#[test]
fn a_workq_that_goes_with_verbs_jobs_in_flight_leaves_nothing_behind() {
    for mode in [Mode::EventDriven, Mode::BusyPoll] {
        on_fake_verbs(64, 2, |verbs| {
            let copies = Copies::new(&[verbs]);
            let _runtime = copies.runtime.enter();
            let workq = WorkQ::builder().depth(8).mode(mode).build().unwrap();
            let dma = Dma::builder(verbs).attach(&workq).unwrap();
            for _ in 0..4 {
                let (src, dst) = copies.bufs();
                std::mem::forget(dma.try_copy(&src, &dst).unwrap());
            }
            // The forgotten Ops only borrow: the last handles go here.
            drop((dma, workq));
        });
    }
}

// It must be tried again by itself though a Slot is taken: that of a Job that is over, but whose Op nobody polls.
#[test]
fn a_copy_that_the_device_refused_does_not_wait_for_an_op_that_nobody_polls() {
    let soft = Soft::builder().defer(true).build();
    let device = soft.open("pf0").unwrap();
    let copies = Copies::new(&[&device]);
    let dma = copies.dma(&device);
    let ((a, b), (c, d)) = (copies.bufs(), copies.bufs());
    let first = {
        let _runtime = copies.runtime.enter();
        dma.try_copy(&a, &b).unwrap()
    };
    wait_until(|| device.jobs() == Some(1));
    for _ in 0..4 {
        soft.faults().push(Fault::QueueFull);
    }
    // The first is over, and is awaited later.
    assert_eq!(
        copies.within(dma.copy(&c, &d)),
        Ok(Ok(1000)),
        "it was not told to try again"
    );
    assert_eq!(copies.within(first), Ok(Ok(1000)));
}

// Attaching a device with a descriptor of its own gives up the registrations of the event handle, and an orphan has no Op that
// would register anew.
#[test]
fn an_orphan_is_heard_of_though_a_channel_was_attached_meanwhile() {
    on_fake_verbs(64, 2, |verbs| {
        let soft = Soft::builder().defer(true).build();
        let device = soft.open("pf0").unwrap();
        let copies = Copies::new(&[&device, verbs]);
        let dma = copies.dma(&device);
        let hold = soft.faults().hold();
        let (src, dst) = copies.bufs();
        // Polled once, and dropped in flight.
        let polled = copies.runtime.block_on(async {
            let mut copy = std::pin::pin!(dma.copy(&src, &dst));
            futures::poll!(copy.as_mut())
        });
        assert!(polled.is_pending());
        let _by_verbs = copies.dma(verbs);
        drop(hold);
        let freed = copies.within(async {
            while copies.workq.in_flight() > 0 {
                tokio::task::yield_now().await;
            }
        });
        assert_eq!(freed, Ok(()), "nobody reaped the orphan");
    });
}
