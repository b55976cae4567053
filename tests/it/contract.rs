//! The contract suite, run on the software device and on devices of the tests; `tests/verbs` runs
//! it on the adapter provider.
#![expect(unsafe_code, reason = "a device says less of itself")]

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use support::LIMIT;
use support::device::required_adapter;
use support::loopback::Loopback;
use tokio_doca::device::Device;
use tokio_doca::device::contract::{
    Adapter, Armed, Completion, CopyJob, Job, KeepAlive, Queue, QueueConfig, Registrar, Segment,
    Segments, Submit, Submitted, Token,
};
use tokio_doca::soft::{Fault, Limits, Soft, SoftBuilder, View};
use tokio_doca::{
    Buf, BufPool, Dma, ErrorKind, Mmap, WorkQ,
    device::{DevInfo, PciAddr, PciFunction, RdmaCaps},
    error::JobError,
    sha::Algorithm,
};
use tokio_doca_contract::{self as contract, Peers, Subject, Verdict, selftest};

#[test]
fn soft_inline_keeps_the_contract() {
    contract::dma(&Soft::builder().build().open("pf0").unwrap());
}

/// Returns the host's device, and the software devices of the DPU's side.
fn host_and_dpu(dpu: SoftBuilder) -> (Device, Soft) {
    let host = Soft::builder().build().open("pf0").unwrap();
    (host, dpu.view(View::Dpu).build())
}

#[test]
fn soft_gathers_and_scatters_imported_memory_by_the_contract() {
    let one = Limits::unlimited().max_list_len(1);
    let tiny = Limits::unlimited().max_buf_size(40);
    for soft in [
        Soft::builder(),
        Soft::builder().defer(true),
        Soft::builder().limits(one),
        Soft::builder().limits(tiny),
    ] {
        let (host, dpu) = host_and_dpu(soft);
        let dpu = dpu.open("p0").unwrap();
        contract::imported_lists_are_gathered_and_scattered(&host, &dpu);
        contract::each_import_of_a_list_is_checked(&host, &dpu);
    }
}

/// A queue that checks the registration of only the first import in a copy, and passes all other
/// memory to the device as registered.
struct FirstImportAlone(Arc<dyn Queue>);

// SAFETY: the inner queue runs each job on the same bytes, which are mapped here and leased to the
// caller.
unsafe impl Submit for FirstImportAlone {
    unsafe fn try_inline(&self, job: Job<'_>) -> Option<Result<u64, JobError>> {
        let Job::Copy(&CopyJob { src, dst, len }) = job else {
            return None;
        };
        let mut first = 0;
        let mut checked = |list: Segments| -> Vec<Segment> {
            let checked = |segment: &Segment| {
                let key = segment.key();
                first = if first == 0 { key } else { first };
                let key = if key == first { key } else { 0 };
                // SAFETY: the same bytes. The device accesses imported memory without a key too.
                unsafe { Segment::new(segment.addr(), segment.len(), key) }
            };
            list.as_slice().iter().map(checked).collect()
        };
        let lists = [checked(src), checked(dst)];
        // SAFETY: the lists outlive the call, which keeps nothing of them.
        let [src, dst] = lists.each_ref().map(|list| unsafe { Segments::list(list) });
        let job = CopyJob { src, dst, len };
        // SAFETY: the caller keeps the promises of `try_inline`.
        unsafe { self.0.try_inline(Job::Copy(&job)) }
    }

    unsafe fn submit(&self, jobs: &[(Token, Job<'_>)]) -> Submitted {
        // SAFETY: the caller keeps the promises of `submit`.
        unsafe { self.0.submit(jobs) }
    }
}

// SAFETY: the inner queue keeps the duties.
unsafe impl Queue for FirstImportAlone {
    unsafe fn reap(&self, out: &mut [Completion]) -> usize {
        // SAFETY: the caller keeps the promises of `reap`.
        unsafe { self.0.reap(out) }
    }

    fn arm(&self) -> Armed {
        self.0.arm()
    }

    unsafe fn retire(&self, keep: KeepAlive, outstanding: usize) {
        // SAFETY: the caller keeps the promises of `retire`.
        unsafe { self.0.retire(keep, outstanding) }
    }
}

struct ChecksFirstImportAlone(Device);

// SAFETY: the inner device keeps the adapter duties; each queue wraps a new queue of it.
unsafe impl Adapter for ChecksFirstImportAlone {
    fn info(&self) -> &DevInfo {
        self.0.info()
    }

    fn registrar(&self) -> &dyn Registrar {
        self.0.adapter().registrar()
    }

    fn open_queue(&self, config: QueueConfig) -> tokio_doca::Result<Arc<dyn Queue>> {
        let queue = self.0.adapter().open_queue(config)?;
        Ok(Arc::new(FirstImportAlone(queue)))
    }
}

#[test]
#[should_panic = "registrar duty 3: a copy reaches piece 1"]
fn a_device_that_checks_the_first_import_of_a_list_alone_is_found() {
    let (host, dpu) = host_and_dpu(Soft::builder());
    let dpu = ChecksFirstImportAlone(dpu.open("p0").unwrap());
    let dpu = Device::from_adapter(Arc::new(dpu));
    contract::imported_lists_are_gathered_and_scattered(&host, &dpu);
    contract::each_import_of_a_list_is_checked(&host, &dpu);
}

#[test]
#[should_panic = "duty 1: a copy of 1 pieces to 3"]
fn a_list_of_imported_memory_that_is_not_copied_is_found() {
    let (host, dpu) = host_and_dpu(Soft::builder());
    let device = dpu.open("p0").unwrap();
    let fails = Fault::Error(ErrorKind::IoFailed, 1);
    for fault in [Fault::Pass, Fault::Pass, fails] {
        dpu.faults().push(fault);
    }
    contract::imported_lists_are_gathered_and_scattered(&host, &device);
}

#[test]
fn sync_events_of_soft_keep_the_contract() {
    for limits in [
        Limits::unlimited(),
        Limits::bluefield2(),
        Limits::bluefield3(),
    ] {
        for defer in [false, true] {
            let soft = Soft::builder().defer(defer).limits(limits.clone());
            contract::sync_event(&soft.build().open("pf0").unwrap());
        }
    }
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
fn soft_with_the_limits_of_an_adapter_hashes_by_the_contract() {
    let tiny = Limits::unlimited().max_buf_size(1);
    let small = Limits::unlimited().max_buf_size(300).max_list_len(3);
    let polled = Limits::bluefield2().sha_event_driven(false);
    for limits in [tiny, small, polled, Limits::bluefield3()] {
        let soft = Soft::builder().limits(limits).defer(true).build();
        let device = soft.open("pf0").unwrap();
        // The algorithm with the longest digest and the longest blocks.
        contract::all(Subject::sha(&device, Algorithm::Sha512));
        contract::all(Subject::sha_parts(&device, Algorithm::Sha512));
    }
}

#[test]
fn soft_computes_crcs_by_the_contract() {
    let tiny = Limits::unlimited().max_buf_size(1);
    let small = Limits::unlimited().max_buf_size(300).max_list_len(3);
    let polled = Limits::bluefield2().crc_event_driven(false);
    for limits in [tiny, small, polled, Limits::unlimited()] {
        for defer in [false, true] {
            let soft = Soft::builder().limits(limits.clone()).defer(defer).build();
            contract::crc(&soft.open("pf0").unwrap());
        }
    }
}

#[test]
fn soft_inline_keeps_the_contract_of_remote_operations() {
    contract::rdma(&Soft::builder().build().open("pf0").unwrap());
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

/// The device lacks features that are optional for adapters: it has no lists, no atomics and no
/// writes with immediates, and its queues are short.
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

/// Returns the checks of a self-test whose verdict is wanted, as `subject: check`.
fn verdicts(device: &Device, wanted: fn(&Verdict) -> bool) -> Vec<String> {
    // A deadline that overflows if it is added to a time.
    let mut test = selftest(device).deadline(Duration::MAX);
    let tried = test.len();
    let mut outcomes = Vec::new();
    while let Some((subject, check)) = test.upcoming() {
        let upcoming = (subject.to_owned(), check);
        let outcome = test.next().unwrap();
        assert_eq!((outcome.subject.clone(), outcome.check), upcoming);
        outcomes.push(outcome);
    }
    assert_eq!(outcomes.len(), tried);
    let found = outcomes.iter().filter(|outcome| wanted(&outcome.verdict));
    found
        .map(|outcome| format!("{}: {}", outcome.subject, outcome.check))
        .collect()
}

#[test]
fn a_self_test_passes_what_soft_has_and_sees_the_rest_refused() {
    let soft = Soft::builder().defer(true).build();
    let others = verdicts(&soft.open("pf0").unwrap(), |verdict| {
        *verdict != Verdict::Passed
    });
    assert_eq!(others, ["accelerator: attach"]);
}

#[test]
fn a_self_test_tells_what_a_device_says_that_it_lacks() {
    let limits = Limits::unlimited().dma_event_driven(false);
    let soft = Soft::builder().limits(limits).build();
    let refused = verdicts(&soft.open("pf0").unwrap(), |verdict| {
        matches!(verdict, Verdict::Refused(_))
    });
    assert_eq!(
        refused,
        [
            "copies: armed_completions_signal_once",
            "copies: no_completion_is_slept_through",
            "copies: sleeps_and_wakes",
            "copies: serves_several_runtimes",
            "accelerator: attach",
        ]
    );
}

/// Runs a check on the adapter that DOCA_VERBS_DEVICE names.
fn on_the_adapter(check: impl FnOnce(&Device)) {
    // There is only one adapter, and the suite counts its jobs, so tests use it one after the
    // other.
    static ONE: Mutex<()> = Mutex::new(());
    let _alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    check(&required_adapter());
}

#[test]
#[ignore = "needs DOCA_VERBS_DEVICE"]
fn the_adapter_under_test_keeps_the_contract() {
    on_the_adapter(contract::dma);
}

#[test]
#[ignore = "needs DOCA_VERBS_DEVICE"]
fn the_adapter_under_test_keeps_the_contract_of_remote_operations() {
    on_the_adapter(|device| contract::rdma(device));
}

#[test]
#[ignore = "needs DOCA_VERBS_DEVICE"]
fn the_adapter_under_test_computes_crcs_by_the_contract() {
    on_the_adapter(contract::crc);
}

#[test]
#[ignore = "needs DOCA_VERBS_DEVICE"]
fn the_adapter_under_test_hashes_by_the_contract() {
    on_the_adapter(contract::sha);
}

#[test]
#[ignore = "needs DOCA_VERBS_DEVICE"]
fn the_adapter_under_test_fails_no_check_of_a_self_test() {
    on_the_adapter(|device| {
        let failed = verdicts(device, Verdict::is_failure);
        assert_eq!(failed, Vec::<String>::new());
    });
}

/// A device that declares fewer capabilities than it has: only SHA-1, and no sessions.
struct Sha1Alone(Device, DevInfo);

// SAFETY: the inner device keeps the adapter duties; each queue is a new queue of it.
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

/// A current-thread runtime with timers, an event-driven WorkQ, and memory for copies.
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

    /// Awaits the future on the runtime; a lost wake-up is an error.
    fn within<F: Future>(&self, future: F) -> Result<F::Output, tokio::time::error::Elapsed> {
        self.runtime
            .block_on(async { tokio::time::timeout(LIMIT, future).await })
    }
}

/// Polls a condition of the device without touching the WorkQ.
fn wait_until(mut condition: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + LIMIT;
    while !condition() {
        assert!(std::time::Instant::now() < end, "it never came");
        std::thread::yield_now();
    }
}

// The refused copy must be retried by itself, although a slot is occupied by a completed job whose
// `Op` is not polled.
#[test]
fn a_copy_that_the_device_refused_does_not_wait_for_an_op_that_nobody_polls() {
    let soft = Soft::builder().defer(true).build();
    let device = soft.open("pf0").unwrap();
    let copies = Copies::new(&[&device]);
    let dma = copies.dma(&device);
    let ((a, b), (c, d)) = (copies.bufs(), copies.bufs());
    let first = {
        let _runtime = copies.runtime.enter();
        dma.copy(&a, &b).start().unwrap()
    };
    wait_until(|| device.jobs() == Some(1));
    for _ in 0..4 {
        soft.faults().push(Fault::QueueFull);
    }
    // The first copy has completed, and is awaited later.
    assert_eq!(
        copies.within(dma.copy(&c, &d)),
        Ok(Ok(1000)),
        "it was not told to try again"
    );
    assert_eq!(copies.within(first), Ok(Ok(1000)));
}
