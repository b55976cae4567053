//! A device that wraps another one with endpoints, and sins against one duty at a time by changing
//! calls and completions.
//!
//! The inner device keeps the contract. The sins access only memory that the suite keeps.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio_doca::device::contract::{
    Adapter, Armed, Arrival, Completion, Endpoint, EndpointConfig, EndpointState, ExportRequest,
    Exported, Imported, Job, KeepAlive, Queue, QueueConfig, RdmaJob, Receive, Region, Registrar,
    Registration, Segments, Signal, Submit, Submitted, Token, Verb,
};
use tokio_doca::device::{Access, RegistrationUse};
use tokio_doca::{Device, ErrorKind, Result, device::DevInfo, error::JobError};

/// A violation of the contract that the device commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RdmaSin {
    /// No violation: the device keeps all duties.
    None,
    /// Endpoint duty 1: every 20th job never completes.
    LosesAJob,
    /// Endpoint duty 1: every 20th message never arrives at its receive.
    LosesAReceive,
    /// Endpoint duty 1: every 20th Job completes twice.
    JobTwice,
    /// Endpoint duty 1: every 20th receive completes twice.
    ReceiveTwice,
    /// Endpoint duty 1: two completions of receives are swapped.
    SwapsReceives,
    /// Endpoint duty 1: two completions of jobs are swapped.
    SwapsJobs,
    /// Endpoint duty 1: the last job of a batch is executed first.
    Overtakes,
    /// Endpoint duty 1: a job reports one byte less than it moved.
    Miscounts,
    /// Endpoint duty 1: a receive reports one byte less than arrived.
    MiscountsReceives,
    /// Endpoint duty 1: immediates are lost.
    LosesImmediates,
    /// Endpoint duty 1: a message with an immediate is reported as one without.
    WrongOpcode,
    /// Endpoint duty 1: a write with an immediate writes nothing.
    ImmediateWithoutData,
    /// Duty 1: the last byte of each read is wrong.
    WrongByte,
    /// Duty 1: the first byte of each received message is wrong.
    WrongMessage,
    /// Duty 1: a read writes one byte too many.
    WritesTooMuch,
    /// Duty 1: an atomic returns the old value but does not change it.
    AtomicWithoutEffect,
    /// Duty 1: a compare-and-swap swaps whatever it finds.
    SwapsAlways,
    /// Duty 1: a write of a list moves only its first piece.
    FirstPieceOnly,
    /// Duty 2: the destination of a read is written again after its completion was reaped.
    WritesLate,
    /// Duty 2: the memory of a receive is written again after its completion was reaped.
    ReceivesLate,
    /// Duty 3: only the first job of a batch is accepted, and the others but the last are executed
    /// all the same.
    DoesTheRefused,
    /// Duty 3: all jobs are refused for ever.
    RefusesForEver,
    /// Duty 4: a job begins inline although the device reports that it did not run.
    BeginsInline,
    /// Duty 4: a job that runs inline reports one byte more than a submitted one.
    MiscountsInline,
    /// Duty 4: a job of a batch is executed inline but not counted.
    BeginsInBatch,
    /// Duty 4: a write of a batch has a result inline but is not executed.
    SkipsInBatch,
    /// Duty 4: jobs of a batch behind one that failed are executed inline.
    GoesOnInBatch,
    /// Duty 5: signals at each submission, without being armed.
    SignalsUnasked,
    /// Duty 5: never signals, because `arm` does nothing.
    NeverSignals,
    /// Duty 5: `arm` returns `Armed` although a completion waits.
    ArmsBlindly,
    /// Duty 6: keeps the argument of `retire` for ever.
    KeepsForEver,
    /// Duty 6: writes the memory of receives after `retire`.
    DropsEarly,
    /// Duty 7: `reset` never returns.
    BlocksInReset,
    /// Endpoint duty 2: the peer has all permissions.
    PermitsAll,
    /// Endpoint duty 2: the state of a failed endpoint stays `Connected`.
    StaysConnected,
    /// Endpoint duty 2: `changed` is never called.
    NeverTells,
    /// Endpoint duty 2: `changed` is called with a lock held that reading the state needs.
    TellsInALock,
    /// Endpoint duty 2: receives of a failed endpoint never complete.
    ForgetsReceives,
    /// Endpoint duty 2: jobs behind the failed one complete with another cause.
    AnotherCause,
    /// Endpoint duty 2: a job waits for ever for a receive of the peer.
    WaitsForEver,
    /// Endpoint duty 1: a job does not wait for a receive of the peer.
    NeverWaits,
    /// Endpoint duty 2: receives are accepted in the state Error.
    PostsInError,
    /// Endpoint duty 3: the memory of a receive is written after a reset.
    TouchesAfterReset,
    /// Endpoint duty 3: jobs and receives that a reset flushes never complete.
    ForgetsTheFlush,
    /// Endpoint duty 3: jobs and receives that a reset flushes complete with success.
    FlushesWell,
    /// Endpoint duty 3: after a reset, `connect` succeeds with an old blob.
    OldBlobs,
    /// Endpoint duty 4: `take_message` reports one byte less than arrived.
    MiscountsTaken,
    /// Endpoint duty 4: the first byte of a message from `take_message` is wrong.
    SpoilsTaken,
    /// Endpoint duty 4: `take_message` loses every other message.
    LosesTaken,
    /// Endpoint duty 4: `has_message` returns false although a message waits.
    HidesMessages,
    /// Endpoint duty 4: the peer gets more credits than requested.
    LendsTooMuch,
    /// Endpoint duty 4: `has_message` returns true after a reset.
    KeepsMessages,
    /// Dropping an export does not revoke it: the memory can still be imported and written.
    ExportsForEver,
    /// An import reports that it permits everything.
    ImportsAll,
    /// Capabilities: lists of more than 4 pieces are refused.
    LiesOfLists,
    /// Capabilities: jobs longer than half of the maximum are refused.
    LiesOfSizes,
    /// Capabilities: an endpoint with the largest queue cannot be opened.
    LiesOfQueues,
}

/// Returns a device that works like `device`, except for the sin.
pub fn sinful(device: &Device, sin: RdmaSin) -> Device {
    Device::from_adapter(Arc::new(Sinful {
        info: device.info().clone(),
        device: device.clone(),
        sin,
    }))
}

struct Sinful {
    device: Device,
    info: DevInfo,
    sin: RdmaSin,
}

// SAFETY: the inner device keeps the adapter duties; each queue wraps a new queue of it.
unsafe impl Adapter for Sinful {
    fn info(&self) -> &DevInfo {
        &self.info
    }

    fn registrar(&self) -> &dyn Registrar {
        self
    }

    fn open_queue(&self, config: QueueConfig) -> Result<Arc<dyn Queue>> {
        let signal = Arc::clone(&config.signal);
        let queue = self.device.adapter().open_queue(config)?;
        let caps = self.info.caps().rdma.clone().expect("it has endpoints");
        let shared = Shared {
            sin: self.sin,
            signal,
            queue,
            largest: caps.max_message_size,
            longest_queue: caps.max_recv_queue_size,
            state: Mutex::default(),
            jobs: AtomicU64::new(0),
        };
        Ok(Arc::new(SinfulQueue(Arc::new(shared))))
    }

    fn jobs(&self) -> Option<u64> {
        self.device.jobs()
    }
}

// SAFETY: the inner device keeps the registrar duties, except for the sins, which a test runs only
// under the suite.
unsafe impl Registrar for Sinful {
    fn register(&self, region: &Region, purpose: RegistrationUse) -> Result<Registration> {
        self.device.adapter().registrar().register(region, purpose)
    }

    fn export(&self, offer: &ExportRequest) -> Result<Exported> {
        let exported = self.device.adapter().registrar().export(offer)?;
        if self.sin != RdmaSin::ExportsForEver {
            return Ok(exported);
        }
        let blob = exported.blob().to_vec();
        std::mem::forget(exported);
        Ok(Exported::new(blob, Box::new(())))
    }

    fn import(&self, blob: &[u8], deadline: Instant) -> Result<Imported> {
        let mut imported = self.device.adapter().registrar().import(blob, deadline)?;
        if self.sin == RdmaSin::ImportsAll {
            imported.access = Access::RDMA_READ | Access::RDMA_WRITE | Access::RDMA_ATOMIC;
        }
        Ok(imported)
    }
}

struct SinfulQueue(Arc<Shared>);

struct Shared {
    sin: RdmaSin,
    signal: Arc<Signal>,
    queue: Arc<dyn Queue>,
    largest: u64,
    longest_queue: u32,
    state: Mutex<State>,
    /// Number of completions so far, of jobs or of receives, depending on the sin.
    jobs: AtomicU64,
}

#[derive(Default)]
struct State {
    /// Jobs and receives in flight.
    jobs: HashMap<u64, RdmaJob>,
    receives: HashMap<u64, Segments>,
    /// Bytes that the next `reap` changes.
    late: Vec<Place>,
    /// Completions that the next `reap` returns again.
    again: Vec<Completion>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes a completion that is reaped; returns `None` to lose it.
    fn tell(&self, mut completion: Completion, state: &mut State) -> Option<Completion> {
        let token = completion.token.as_raw();
        let job = state.jobs.remove(&token);
        let receive = state.receives.remove(&token);
        let (sin, well) = (self.sin, completion.result.is_ok());
        let reset = |error: JobError| error.kind() == ErrorKind::ConnectionAborted;
        let counted =
            job.is_some() != matches!(sin, RdmaSin::LosesAReceive | RdmaSin::ReceiveTwice);
        let sinful = well && counted && self.jobs.fetch_add(1, Ordering::Relaxed) % 20 == 19;
        if let (Some(job), true) = (job, well) {
            let moved = job.len > 0 && job.verb == Verb::Read;
            match sin {
                RdmaSin::Miscounts if job.len > 0 => completion.result = Ok(job.len as u64 - 1),
                RdmaSin::WrongByte if moved => spoil(&job.local, job.len - 1),
                RdmaSin::WritesTooMuch if moved => beyond(&job.local),
                RdmaSin::WritesLate if moved => state.late.extend(places(&job.local)),
                _ => {}
            }
        }
        if let (Some(room), Ok(result)) = (receive, completion.result) {
            let len = result as usize;
            match sin {
                RdmaSin::LosesImmediates => {
                    completion.received = completion.received.map(|arrival| match arrival {
                        Arrival::Send => Arrival::Send,
                        Arrival::SendImm(_) => Arrival::SendImm(0),
                        Arrival::WriteImm(_) => Arrival::WriteImm(0),
                    });
                }
                RdmaSin::WrongOpcode => completion.received = Some(Arrival::Send),
                RdmaSin::MiscountsReceives if len > 0 => completion.result = Ok(result - 1),
                RdmaSin::WrongMessage if len > 0 => spoil(&room, 0),
                RdmaSin::ReceivesLate => state.late.extend(places(&room)),
                _ => {}
            }
        }
        match (sin, completion.result) {
            (RdmaSin::LosesAJob | RdmaSin::LosesAReceive, Ok(_)) if sinful => return None,
            (RdmaSin::JobTwice | RdmaSin::ReceiveTwice, Ok(_)) if sinful => {
                state.again.push(completion)
            }
            (RdmaSin::ForgetsReceives, Err(_)) if receive.is_some() => return None,
            (RdmaSin::ForgetsTheFlush, Err(error)) if reset(error) => return None,
            (RdmaSin::FlushesWell, Err(error)) if reset(error) => {
                completion.result = Ok(0);
                completion.received = receive.map(|_| Arrival::Send);
            }
            (RdmaSin::AnotherCause, Err(error)) => {
                completion.result = Err(JobError::device(error.kind(), 9))
            }
            _ => {}
        }
        Some(completion)
    }
}

/// The address of a byte that belongs to the suite.
struct Place(*mut u8);

// SAFETY: only an address, whose use is checked where it is accessed.
unsafe impl Send for Place {}

/// Returns the address of each byte, in order.
fn places(segments: &Segments) -> impl Iterator<Item = Place> {
    segments.as_slice().iter().flat_map(|segment| {
        let addr = segment.addr().as_ptr();
        (0..segment.len()).map(move |at| Place(addr.wrapping_add(at)))
    })
}

fn spoil(segments: &Segments, at: usize) {
    flip(places(segments).nth(at).expect("it is that long"));
}

/// Changes the byte behind the last piece, which is the suite's memory too.
fn beyond(segments: &Segments) {
    let Place(last) = places(segments).last().expect("it has some");
    flip(Place(last.wrapping_add(1)));
}

fn flip(Place(place): Place) {
    // SAFETY: the suite keeps the memory of each piece, and some before and behind it, until it
    // ends.
    let byte = unsafe { place.read_volatile() };
    // SAFETY: as above.
    unsafe { place.write_volatile(!byte) };
}

// SAFETY: the inner queue keeps the duties, except for the sins, which a test runs only under the
// suite, which keeps the memory.
unsafe impl Submit for SinfulQueue {
    unsafe fn submit(&self, jobs: &[(Token, Job<'_>)]) -> Submitted {
        // SAFETY: the caller keeps the promises of `submit`.
        unsafe { self.0.queue.submit(jobs) }
    }
}

// SAFETY: as above for `Submit`.
unsafe impl Queue for SinfulQueue {
    fn open_endpoint(&self, mut config: EndpointConfig) -> Result<Arc<dyn Endpoint>> {
        let sin = self.0.sin;
        let lock = Arc::new(Mutex::new(()));
        match sin {
            RdmaSin::PermitsAll => {
                config.permissions = Access::RDMA_READ | Access::RDMA_WRITE | Access::RDMA_ATOMIC;
            }
            RdmaSin::WaitsForEver => config.rnr_timeout = Duration::from_secs(1 << 20),
            RdmaSin::NeverWaits => config.rnr_timeout = Duration::ZERO,
            RdmaSin::NeverTells => config.changed = Arc::new(|| ()),
            RdmaSin::TellsInALock => {
                let (lock, changed) = (Arc::clone(&lock), Arc::clone(&config.changed));
                config.changed = Arc::new(move || {
                    let _locked = lock.lock().unwrap_or_else(PoisonError::into_inner);
                    changed();
                });
            }
            RdmaSin::LendsTooMuch => config.recv_queue_size *= 2,
            RdmaSin::LiesOfQueues if config.recv_queue_size == self.0.longest_queue => {
                let text = "not such large queues";
                return Err(tokio_doca::Error::new(ErrorKind::NotSupported, None, text));
            }
            _ => {}
        }
        let endpoint = self.0.queue.open_endpoint(config)?;
        Ok(Arc::new(SinfulEndpoint {
            shared: Arc::clone(&self.0),
            endpoint,
            lock,
            blob: OnceLock::new(),
            was_reset: AtomicBool::new(false),
        }))
    }

    unsafe fn reap(&self, out: &mut [Completion]) -> usize {
        let shared = &self.0;
        let late = std::mem::take(&mut shared.state().late);
        late.into_iter().for_each(flip);
        let mut again = std::mem::take(&mut shared.state().again);
        if let Some(completion) = again.pop()
            && let Some(place) = out.first_mut()
        {
            *place = completion;
            return 1;
        }
        // SAFETY: the caller keeps the promises of `reap`.
        let count = unsafe { shared.queue.reap(out) };
        let mut filled = 0;
        for at in 0..count {
            if let Some(completion) = shared.tell(out[at], &mut shared.state()) {
                out[filled] = completion;
                filled += 1;
            }
        }
        let table = match shared.sin {
            RdmaSin::SwapsJobs => 0,
            RdmaSin::SwapsReceives => 1,
            _ => return filled,
        };
        let mut of_table: Vec<usize> = (0..filled).collect();
        of_table.retain(|&at| out[at].token.table() == table);
        if let [first, second, ..] = of_table[..] {
            out.swap(first, second);
        }
        filled
    }

    fn ready(&self) -> bool {
        true
    }

    fn arm(&self) -> Armed {
        match self.0.sin {
            RdmaSin::NeverSignals => Armed::Armed,
            RdmaSin::ArmsBlindly => {
                self.0.queue.arm();
                Armed::Armed
            }
            _ => self.0.queue.arm(),
        }
    }

    fn event_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        match self.0.sin {
            RdmaSin::NeverSignals => None,
            _ => self.0.queue.event_fd(),
        }
    }

    fn clear(&self) {
        self.0.queue.clear();
    }

    unsafe fn retire(&self, keep: KeepAlive, outstanding: usize) {
        // SAFETY: the caller keeps the promises of `retire`.
        unsafe { self.0.queue.retire(keep, outstanding) }
    }
}

struct SinfulEndpoint {
    shared: Arc<Shared>,
    endpoint: Arc<dyn Endpoint>,
    lock: Arc<Mutex<()>>,
    /// The first blob that was exported.
    blob: OnceLock<Vec<u8>>,
    was_reset: AtomicBool,
}

impl SinfulEndpoint {
    /// Returns a job as the sin changes it.
    fn twisted(&self, mut job: RdmaJob) -> RdmaJob {
        match (self.shared.sin, &mut job.verb) {
            (RdmaSin::AtomicWithoutEffect, Verb::FetchAdd(add)) => *add = 0,
            (RdmaSin::AtomicWithoutEffect, Verb::CompareSwap { compare, swap }) => *swap = *compare,
            (RdmaSin::SwapsAlways, Verb::CompareSwap { compare, .. }) => {
                let remote = Segments::one(job.remote.expect("an atomic has some"));
                // The remote memory belongs to the suite, in this process.
                let mut word = [0; 8];
                for (byte, Place(place)) in word.iter_mut().zip(places(&remote)) {
                    // SAFETY: the suite keeps the memory, and no other thread writes it.
                    *byte = unsafe { place.read_volatile() };
                }
                *compare = u64::from_ne_bytes(word);
            }
            (RdmaSin::ImmediateWithoutData, Verb::Write(Some(_))) => {
                (job.local, job.remote, job.len) = (Segments::none(), None, 0);
            }
            (RdmaSin::FirstPieceOnly, Verb::Write(None)) if job.local.as_slice().len() > 1 => {
                job.len = job.local.as_slice()[0].len();
            }
            _ => {}
        }
        job
    }

    /// Returns the error with which the sin refuses a job, against the device's capabilities.
    fn refusal(&self, job: &RdmaJob) -> Option<JobError> {
        let refused = JobError::device(ErrorKind::NotSupported, 0);
        match self.shared.sin {
            RdmaSin::RefusesForEver => Some(JobError::device(ErrorKind::Again, 0)),
            RdmaSin::LiesOfLists if job.local.as_slice().len() > 4 => Some(refused),
            RdmaSin::LiesOfSizes if job.len as u64 > self.shared.largest / 2 => Some(refused),
            _ => None,
        }
    }
}

/// Returns the remote operation of a job: the crate submits no other kind to an endpoint.
fn remote(job: &Job<'_>) -> RdmaJob {
    match job {
        Job::Rdma(job) => **job,
        job => unreachable!("{job:?} for an endpoint"),
    }
}

// SAFETY: the inner endpoint keeps the duties, except for the sins, as for the queue.
unsafe impl Submit for SinfulEndpoint {
    unsafe fn try_inline(&self, job: Job<'_>) -> Option<std::result::Result<u64, JobError>> {
        match self.shared.sin {
            RdmaSin::BeginsInline if remote(&job).verb == Verb::Read => {
                places(&remote(&job).local).take(1).for_each(flip);
                None
            }
            // SAFETY: the caller keeps the promises of `try_inline`.
            RdmaSin::MiscountsInline => unsafe { self.endpoint.try_inline(job) }
                .map(|answer| answer.map(|answer| answer + 1)),
            _ => None,
        }
    }

    unsafe fn try_inline_all(
        &self,
        jobs: &[Job<'_>],
        outcomes: &mut [std::result::Result<u64, JobError>],
    ) -> usize {
        let mut finished = 0;
        for (job, outcome) in jobs.iter().zip(outcomes) {
            let is_write = remote(job).verb == Verb::Write(None);
            let answer = match self.shared.sin {
                RdmaSin::SkipsInBatch if is_write => Some(Ok(remote(job).len as u64)),
                RdmaSin::BeginsInBatch | RdmaSin::GoesOnInBatch => {
                    // SAFETY: the caller keeps the promises of `try_inline_all`.
                    unsafe { self.endpoint.try_inline(*job) }
                }
                _ => None,
            };
            let Some(answer) = answer else { break };
            if self.shared.sin == RdmaSin::BeginsInBatch && answer.is_ok() {
                break;
            }
            *outcome = answer;
            finished += 1;
        }
        finished
    }

    unsafe fn submit(&self, jobs: &[(Token, Job<'_>)]) -> Submitted {
        let shared = &self.shared;
        let refused = jobs.iter().find_map(|(_, job)| self.refusal(&remote(job)));
        if refused.is_some() {
            return Submitted {
                accepted: 0,
                refused,
            };
        }
        if shared.sin == RdmaSin::SignalsUnasked {
            shared.signal.raise();
        }
        if let (RdmaSin::DoesTheRefused, [first, others @ .., _]) = (shared.sin, jobs) {
            for (_, job) in others {
                // SAFETY: a sin; the caller keeps the memory of all jobs valid.
                unsafe { self.endpoint.try_inline(*job) };
            }
            // SAFETY: the caller keeps the promises of `submit`.
            let first = unsafe { self.endpoint.submit(&[*first]) };
            return Submitted {
                accepted: first.accepted,
                refused: Some(JobError::device(ErrorKind::Again, 0)),
            };
        }
        let mut twisted: Vec<_> = jobs
            .iter()
            .map(|(token, job)| (*token, self.twisted(remote(job))))
            .collect();
        if shared.sin == RdmaSin::Overtakes && twisted.len() > 1 {
            // Swaps the first and the last job, which keep their tokens.
            let last = twisted.len() - 1;
            let (first, other) = (twisted[0].1, twisted[last].1);
            (twisted[0].1, twisted[last].1) = (other, first);
        }
        let named = twisted.iter().zip(jobs);
        let named = named.map(|((token, _), (_, job))| (token.as_raw(), remote(job)));
        shared.state().jobs.extend(named);
        let twisted: Vec<_> = twisted.iter().map(|(at, job)| (*at, job.into())).collect();
        // SAFETY: the caller keeps the promises of `submit` for the memory of all jobs.
        unsafe { self.endpoint.submit(&twisted) }
    }
}

// SAFETY: as above for `Submit`.
unsafe impl Endpoint for SinfulEndpoint {
    fn state(&self) -> EndpointState {
        if self.shared.sin == RdmaSin::TellsInALock {
            drop(self.lock.lock());
        }
        match (self.endpoint.state(), self.shared.sin) {
            (EndpointState::Error(_), RdmaSin::StaysConnected) => EndpointState::Connected,
            (state, _) => state,
        }
    }

    fn export(&self) -> Result<Vec<u8>> {
        let blob = self.endpoint.export()?;
        if self.shared.sin == RdmaSin::OldBlobs {
            self.blob.get_or_init(|| blob.clone());
        }
        Ok(blob)
    }

    fn listen(&self, blob: &[u8]) -> Result<()> {
        self.endpoint.listen(blob)
    }

    fn dial(&self, blob: &[u8], deadline: Instant) -> Result<()> {
        self.endpoint.dial(blob, deadline)
    }

    fn connect(&self, blob: &[u8], deadline: Instant) -> Result<()> {
        let connected = self.endpoint.connect(blob, deadline);
        match self.shared.sin {
            RdmaSin::OldBlobs if self.was_reset.load(Ordering::SeqCst) => Ok(()),
            _ => connected,
        }
    }

    unsafe fn post_recvs(&self, receives: &[Receive]) -> Submitted {
        let shared = &self.shared;
        let named = receives
            .iter()
            .map(|receive| (receive.token.as_raw(), receive.dst));
        shared.state().receives.extend(named);
        // SAFETY: the caller keeps the promises of `post_recvs`.
        let posted = unsafe { self.endpoint.post_recvs(receives) };
        match shared.sin {
            RdmaSin::PostsInError => Submitted {
                accepted: receives.len(),
                refused: None,
            },
            _ => posted,
        }
    }

    fn has_message(&self) -> bool {
        match self.shared.sin {
            RdmaSin::HidesMessages => false,
            RdmaSin::KeepsMessages if self.was_reset.load(Ordering::SeqCst) => true,
            _ => self.endpoint.has_message(),
        }
    }

    unsafe fn take_message(
        &self,
        dst: &Segments,
        room: usize,
    ) -> std::result::Result<Option<(Arrival, usize)>, JobError> {
        if self.shared.sin == RdmaSin::LosesTaken {
            // SAFETY: the caller keeps the promises of `take_message`.
            unsafe { self.endpoint.take_message(dst, room) }?;
        }
        // SAFETY: as above.
        let taken = unsafe { self.endpoint.take_message(dst, room) }?;
        Ok(match (self.shared.sin, taken) {
            (RdmaSin::MiscountsTaken, Some((arrival, len))) if len > 0 => Some((arrival, len - 1)),
            (RdmaSin::SpoilsTaken, Some((Arrival::Send | Arrival::SendImm(_), len))) if len > 0 => {
                spoil(dst, 0);
                taken
            }
            _ => taken,
        })
    }

    fn reset(&self) {
        match self.shared.sin {
            RdmaSin::BlocksInReset => loop {
                std::thread::park();
            },
            RdmaSin::TouchesAfterReset => {
                let mut state = self.shared.state();
                let posted: Vec<Place> = state.receives.values().flat_map(places).collect();
                state.late.extend(posted);
            }
            _ => {}
        }
        self.was_reset.store(true, Ordering::SeqCst);
        self.endpoint.reset();
    }

    unsafe fn retire(&self, keep: KeepAlive) {
        match self.shared.sin {
            RdmaSin::KeepsForEver => std::mem::forget(Arc::clone(&keep)),
            RdmaSin::DropsEarly => {
                let mut state = self.shared.state();
                let posted: Vec<Place> = state.receives.values().flat_map(places).collect();
                state.late.extend(posted);
            }
            _ => {}
        }
        // SAFETY: the caller keeps the promises of `retire`.
        unsafe { self.endpoint.retire(keep) }
    }
}
