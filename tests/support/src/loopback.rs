//! A simple device with endpoints, for the contract tests. All endpoints are in one table under one
//! lock, and the thread that submits or posts does the work. It is obviously correct, but slow.
#![expect(
    unsafe_code,
    reason = "a device touches the memory that it is lent by address"
)]

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio_doca::device::contract::*;
use tokio_doca::device::*;
use tokio_doca::{
    Error, ErrorKind, Result,
    error::{JobError, Reason},
};

/// The handle by which a test controls the device.
#[derive(Clone)]
pub struct Loopback(Arc<Mutex<World>>);

#[derive(Default)]
struct World {
    ends: HashMap<u64, End>,
    /// Exported memory, by its number.
    memory: HashMap<u64, Memory>,
    next: u64,
    /// If true, one-sided jobs are done in the call that submits them.
    inline: bool,
    /// If true, no job makes progress.
    held: bool,
    /// Called once the next endpoint is open.
    opened: Option<Arc<dyn Fn() + Send + Sync>>,
    /// Called before the next receive is taken.
    posts: Option<Arc<dyn Fn() + Send + Sync>>,
    /// Called once the next receive is taken, before the crate knows.
    taken: Option<Arc<dyn Fn() + Send + Sync>>,
    /// Called before the next endpoint is reset.
    resets: Option<Arc<dyn Fn() + Send + Sync>>,
    /// Sends waits to the thread that fails jobs whose time has passed. `None` until a job has
    /// waited. The thread ends once the sender is dropped.
    timer: Option<Sender<Wait>>,
}

/// A job that waits for a receive of its peer, and until when.
struct Wait {
    end: u64,
    token: Token,
    timeout: Duration,
    until: Instant,
}

struct Memory(ExportRequest);

// SAFETY: nothing accesses the memory through this value.
unsafe impl Send for Memory {}

struct End {
    config: EndpointConfig,
    queue: Arc<Completions>,
    state: EndpointState,
    /// The version number in the endpoint's export. Each reset changes it, so that older exports
    /// become invalid.
    blob: u64,
    peer: Option<u64>,
    sends: VecDeque<(Token, RdmaJob)>,
    recvs: VecDeque<(Token, Segments, usize)>,
}

/// Work to do after the lock is released.
#[derive(Default)]
struct Later {
    changed: Vec<Arc<dyn Fn() + Send + Sync>>,
    waits: Vec<Wait>,
}

impl Loopback {
    /// Makes a device that queues its Jobs, or if `inline` is true does them inline where possible.
    pub fn device(inline: bool) -> (Loopback, Device) {
        let mut rdma = RdmaCaps::new(1 << 20, 1 << 10, 8);
        rdma.gid_table_size = 2;
        Loopback::with_caps(inline, rdma)
    }

    pub fn with_caps(inline: bool, rdma: RdmaCaps) -> (Loopback, Device) {
        let mut caps = Caps::default();
        (caps.rdma, caps.share_rdma, caps.max_depth) = (Some(rdma), true, 1 << 10);
        (caps.export_dpu, caps.import_dpu) = (true, true);
        Loopback::of(inline, caps)
    }

    pub fn without_rdma() -> Device {
        Loopback::of(false, Caps::default()).1
    }

    pub fn of(inline: bool, caps: Caps) -> (Loopback, Device) {
        let world = World {
            inline,
            ..World::default()
        };
        let loopback = Loopback(Arc::new(Mutex::new(world)));
        let addr = PciAddr::new(0, 0, 0);
        let adapter = LoopAdapter {
            info: DevInfo::new("loopback", "loop0", addr, PciFunction::Pf, caps),
            world: loopback.clone(),
        };
        (loopback, Device::from_adapter(Arc::new(adapter)))
    }

    /// Stops all progress: Jobs and receives stay in flight until [`Loopback::release`].
    pub fn hold(&self) {
        self.with(|world, _| world.held = true);
    }

    /// Lets Jobs and receives make progress again.
    pub fn release(&self) {
        self.with(|world, later| {
            world.held = false;
            let ends: Vec<u64> = world.ends.keys().copied().collect();
            ends.into_iter().for_each(|id| world.progress(id, later));
        });
    }

    /// Calls `call` once the next endpoint is open, before the crate knows it.
    pub fn when_opened(&self, call: impl Fn() + Send + Sync + 'static) {
        self.with(|world, _| world.opened = Some(Arc::new(call)));
    }

    /// Calls `call` when the crate posts the next receive, before the device takes it.
    pub fn when_posted(&self, call: impl Fn() + Send + Sync + 'static) {
        self.with(|world, _| world.posts = Some(Arc::new(call)));
    }

    /// Calls `call` once the device has taken the next receive, before the crate knows.
    pub fn when_taken(&self, call: impl Fn() + Send + Sync + 'static) {
        self.with(|world, _| world.taken = Some(Arc::new(call)));
    }

    /// Calls `call` when the crate resets the next endpoint, before the device does so.
    pub fn when_reset(&self, call: impl Fn() + Send + Sync + 'static) {
        self.with(|world, _| world.resets = Some(Arc::new(call)));
    }

    /// Returns the number of open endpoints.
    pub fn endpoints(&self) -> usize {
        lock(&self.0).ends.len()
    }

    /// Returns the number of posted receives of all endpoints.
    pub fn posted(&self) -> usize {
        lock(&self.0).ends.values().map(|end| end.recvs.len()).sum()
    }

    fn with<R>(&self, f: impl FnOnce(&mut World, &mut Later) -> R) -> R {
        let mut later = Later::default();
        let mut world = lock(&self.0);
        let result = f(&mut world, &mut later);
        for wait in later.waits.drain(..) {
            let timer = world.timer.get_or_insert_with(|| {
                let ((timer, waits), world) = (channel(), Arc::downgrade(&self.0));
                std::thread::spawn(move || keep_time(&world, &waits));
                timer
            });
            timer.send(wait).expect("the timer outlives the world");
        }
        drop(world);
        later.changed.iter().for_each(|changed| changed());
        result
    }

    /// Fails the job of a wait whose time has passed, if the job still waits.
    fn give_up(&self, wait: &Wait) {
        let (id, token, timeout) = (wait.end, wait.token, wait.timeout);
        self.with(|world, later| {
            let waits = |end: &End| end.sends.front().is_some_and(|(first, _)| *first == token);
            if !world.held && world.ends.get(&id).is_some_and(waits) {
                let millis = timeout.as_millis() as u64;
                let cause = JobError::endpoint(Reason::NoReceive, millis, 0);
                world.fail(id, cause, true, later);
            }
        });
    }
}

/// Fails waiting jobs of a world, each once its time has passed, until the world is dropped.
fn keep_time(world: &Weak<Mutex<World>>, waits: &Receiver<Wait>) {
    // Sorted by time, and then by number, since several may have the same time.
    let mut pending = BTreeMap::<_, Wait>::new();
    for number in 0_u64.. {
        while let Some(first) = pending.first_entry()
            && first.get().until <= Instant::now()
        {
            let wait = first.remove();
            let Some(world) = world.upgrade() else {
                return;
            };
            Loopback(world).give_up(&wait);
        }
        let next = pending.first_key_value();
        let left = next.map(|(_, wait)| wait.until.saturating_duration_since(Instant::now()));
        let wait = match left {
            Some(left) => waits.recv_timeout(left),
            None => waits.recv().map_err(RecvTimeoutError::from),
        };
        match wait {
            Ok(wait) => _ = pending.insert((wait.until, number), wait),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Returns the peer's id, once both ends are connected to each other.
    fn peer_of(&self, id: u64) -> Option<u64> {
        let peer = self.ends.get(&id)?.peer?;
        (self.ends.get(&peer)?.peer == Some(id)).then_some(peer)
    }

    /// Does the Jobs of an end in order, for as long as they can be done.
    fn progress(&mut self, id: u64, later: &mut Later) {
        while !self.held
            && let Some(peer) = self.peer_of(id)
            && let Some(&(token, job)) = self.ends[&id].sends.front()
        {
            match self.execute(peer, &job, later) {
                Ok(Some(answer)) => {
                    let end = self.ends.get_mut(&id).unwrap();
                    end.sends.pop_front();
                    end.queue.push(Completion::new(token, Ok(answer)));
                }
                Ok(None) => {
                    let timeout = self.ends[&id].config.rnr_timeout;
                    return later.waits.push(Wait {
                        end: id,
                        token,
                        timeout,
                        until: Instant::now() + timeout,
                    });
                }
                Err(cause) => return self.fail(id, cause, true, later),
            }
        }
    }

    /// Does a Job. Returns its result value, or `None` if the peer has no receive for it.
    fn execute(
        &mut self,
        peer: u64,
        job: &RdmaJob,
        later: &mut Later,
    ) -> Result<Option<u64>, JobError> {
        let permitted = self.ends[&peer].config.permissions;
        let needs = match job.verb {
            Verb::Write(_) if job.len > 0 => Access::RDMA_WRITE,
            Verb::Read if job.len > 0 => Access::RDMA_READ,
            Verb::CompareSwap { .. } | Verb::FetchAdd(_) => Access::RDMA_ATOMIC,
            _ => Access::empty(),
        };
        if !permitted.contains(needs) {
            let cause = JobError::endpoint(Reason::RemoteAccess, 0, 0);
            self.fail(peer, cause, false, later);
            return Err(cause);
        }
        let remote = job.remote.map(Segments::one);
        let (local, len) = (&job.local, job.len);
        match job.verb {
            Verb::Send(immediate) => {
                let Some((token, room, capacity)) = self.receive(peer) else {
                    return Ok(None);
                };
                if len > capacity {
                    let (need, have) = (len as u64, capacity as u64);
                    let theirs = JobError::endpoint(Reason::ReceiveTooSmall, need, have);
                    self.ends[&peer]
                        .queue
                        .push(Completion::new(token, Err(theirs)));
                    self.fail(peer, theirs, false, later);
                    return Err(JobError::endpoint(Reason::MessageTooLong, need, have));
                }
                copy(local, &room, len);
                let arrival = immediate.map_or(Arrival::Send, Arrival::SendImm);
                let received = Completion::received(token, arrival, len);
                self.ends[&peer].queue.push(received);
            }
            Verb::Write(immediate) => {
                let token = match immediate.map(|_| self.receive(peer)) {
                    Some(None) => return Ok(None),
                    Some(Some((token, ..))) => Some(token),
                    None => None,
                };
                remote.inspect(|remote| copy(local, remote, len));
                if let (Some(token), Some(immediate)) = (token, immediate) {
                    let arrival = Arrival::WriteImm(immediate);
                    let received = Completion::received(token, arrival, len);
                    self.ends[&peer].queue.push(received);
                }
            }
            Verb::Read => {
                remote.inspect(|remote| copy(remote, local, len));
            }
            Verb::CompareSwap { compare, swap } => {
                return Ok(Some(atomic(job, |word| {
                    match word.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst) {
                        Ok(was) | Err(was) => was,
                    }
                })));
            }
            Verb::FetchAdd(add) => {
                return Ok(Some(atomic(job, |word| {
                    word.fetch_add(add, Ordering::SeqCst)
                })));
            }
        }
        Ok(Some(len as u64))
    }

    fn receive(&mut self, id: u64) -> Option<(Token, Segments, usize)> {
        self.ends.get_mut(&id)?.recvs.pop_front()
    }

    /// Fails an endpoint with this cause, and flushes its Jobs and receives. If `by_first` is true,
    /// its first Job fails with the cause itself.
    fn fail(&mut self, id: u64, cause: JobError, by_first: bool, later: &mut Later) {
        let Some(end) = self.ends.get_mut(&id) else {
            return;
        };
        if let EndpointState::Error(_) = end.state {
            return;
        }
        end.state = EndpointState::Error(cause);
        later.changed.push(Arc::clone(&end.config.changed));
        let first = if by_first {
            end.sends.pop_front()
        } else {
            None
        };
        if let Some((token, _)) = first {
            end.queue.push(Completion::new(token, Err(cause)));
        }
        end.flush(cause);
    }

    /// Disconnects an end. A peer that was connected to it fails.
    fn disconnect(&mut self, id: u64, later: &mut Later) {
        let Some(end) = self.ends.get_mut(&id) else {
            return;
        };
        if let Some(peer) = end.peer.take()
            && self
                .ends
                .get(&peer)
                .is_some_and(|peer| peer.peer == Some(id))
        {
            let cause = JobError::endpoint(Reason::PeerClosed, 0, 0);
            self.fail(peer, cause, false, later);
        }
    }
}

impl End {
    fn flush(&mut self, cause: JobError) {
        let jobs = self.sends.drain(..).map(|(token, _)| token);
        let receives = self.recvs.drain(..).map(|(token, ..)| token);
        for token in jobs.chain(receives) {
            let flushed = Err(JobError::flushed(cause));
            self.queue.push(Completion::new(token, flushed));
        }
    }

    /// Returns the error of a submission, if the state of the end takes no Jobs.
    fn refusal(&self) -> Option<JobError> {
        match self.state {
            EndpointState::Connected => None,
            EndpointState::Init => Some(JobError::endpoint(Reason::NotConnected, 0, 0)),
            EndpointState::Error(cause) => Some(JobError::flushed(cause)),
        }
    }
}

fn copy(from: &Segments, to: &Segments, len: usize) {
    let bytes = |segments: &Segments| {
        let each = |segment: &Segment| {
            let addr = segment.addr().as_ptr();
            (0..segment.len()).map(move |at| addr.wrapping_add(at))
        };
        segments
            .as_slice()
            .iter()
            .flat_map(each)
            .collect::<Vec<_>>()
    };
    for (from, to) in bytes(from).into_iter().zip(bytes(to)).take(len) {
        // SAFETY: the addresses lie in Segments, which the crate keeps valid and leased.
        let byte = unsafe { from.read_volatile() };
        // SAFETY: as for the read above.
        unsafe { to.write_volatile(byte) };
    }
}

/// Returns the RDMA job. The crate submits only those to an endpoint.
fn remote(job: &Job<'_>) -> RdmaJob {
    match job {
        Job::Rdma(job) => **job,
        job => unreachable!("{job:?} for an endpoint"),
    }
}

fn atomic(job: &RdmaJob, change: impl FnOnce(&AtomicU64) -> u64) -> u64 {
    let word = job.remote.unwrap().addr().cast::<AtomicU64>();
    // SAFETY: the crate has checked the length and alignment of the range, which the import keeps.
    change(unsafe { word.as_ref() })
}

/// An endpoint: its entry in the table.
struct LoopEndpoint {
    world: Loopback,
    id: u64,
}

// SAFETY: the duties of an Endpoint:
// 1. Jobs and receives lie in two queues, and are taken from the front, under one lock.
// 2. `fail` flushes both, and `refusal` what comes later.
// 3. `reset` empties both queues under the lock in which alone memory is touched.
unsafe impl Submit for LoopEndpoint {
    unsafe fn try_inline(&self, job: Job<'_>) -> Option<Result<u64, JobError>> {
        let job = &remote(&job);
        self.world.with(|world, later| {
            let end = &world.ends[&self.id];
            if let Some(error) = end.refusal() {
                return Some(Err(error));
            }
            let one_sided = !matches!(job.verb, Verb::Send(_) | Verb::Write(Some(_)));
            if !world.inline || !one_sided || world.held || !end.sends.is_empty() {
                return None;
            }
            let peer = world.peer_of(self.id)?;
            let answer = world.execute(peer, job, later);
            if let Err(cause) = answer {
                world.fail(self.id, cause, false, later);
            }
            answer.transpose()
        })
    }

    unsafe fn submit(&self, jobs: &[(Token, Job<'_>)]) -> Submitted {
        self.world.with(|world, later| {
            let end = world.ends.get_mut(&self.id).unwrap();
            if let Some(error) = end.refusal() {
                return Submitted {
                    accepted: 0,
                    refused: Some(error),
                };
            }
            end.sends
                .extend(jobs.iter().map(|(token, job)| (*token, remote(job))));
            world.progress(self.id, later);
            Submitted {
                accepted: jobs.len(),
                refused: None,
            }
        })
    }
}

// SAFETY: as for `Submit` above.
unsafe impl Endpoint for LoopEndpoint {
    fn state(&self) -> EndpointState {
        let world = lock(&self.world.0);
        world
            .ends
            .get(&self.id)
            .map_or(EndpointState::Init, |end| end.state)
    }

    fn peer_permissions(&self) -> Access {
        let world = lock(&self.world.0);
        let peer = world.ends.get(&self.id).and_then(|end| end.peer);
        let peer = peer.and_then(|peer| world.ends.get(&peer));
        peer.map_or(Access::empty(), |peer| peer.config.permissions)
    }

    fn export(&self) -> Result<Vec<u8>> {
        let world = lock(&self.world.0);
        let end = &world.ends[&self.id];
        if let EndpointState::Error(_) = end.state {
            let text = "the endpoint has failed: reset it";
            return Err(Error::new(ErrorKind::BadState, "export", text));
        }
        let words = [self.id, end.blob].map(u64::to_le_bytes);
        Ok([&b"LOOP"[..], &words.concat()].concat())
    }

    fn listen(&self, blob: &[u8]) -> Result<()> {
        self.connect(blob, Instant::now())
    }

    fn connect(&self, blob: &[u8], _deadline: Instant) -> Result<()> {
        let error = |kind, text| Err(Error::new(kind, "connect", text));
        let Some((b"LOOP", words)) = blob.split_first_chunk::<4>().filter(|_| blob.len() == 20)
        else {
            return error(ErrorKind::InvalidValue, "no blob of an endpoint");
        };
        let word = |at: usize| u64::from_le_bytes(words[at..at + 8].try_into().unwrap());
        let (peer, version) = (word(0), word(8));
        self.world.with(|world, later| {
            if world.ends[&self.id].state != EndpointState::Init {
                return error(ErrorKind::BadState, "it is connected, or has failed");
            }
            match world.ends.get(&peer) {
                Some(theirs) if theirs.blob == version => {
                    if theirs.peer.is_some_and(|theirs| theirs != self.id) {
                        return error(ErrorKind::ConnectionAborted, "it has another peer");
                    }
                }
                Some(_) => return error(ErrorKind::ConnectionAborted, "it was reset"),
                None => return error(ErrorKind::ConnectionReset, "it has gone"),
            }
            let end = world.ends.get_mut(&self.id).unwrap();
            (end.peer, end.state) = (Some(peer), EndpointState::Connected);
            later.changed.push(Arc::clone(&end.config.changed));
            world.progress(self.id, later);
            world.progress(peer, later);
            Ok(())
        })
    }

    unsafe fn post_recvs(&self, receives: &[Receive]) -> Submitted {
        let posts = lock(&self.world.0).posts.take();
        if let Some(posts) = posts {
            posts();
        }
        self.world.with(|world, later| {
            let end = world.ends.get_mut(&self.id).unwrap();
            if let EndpointState::Error(cause) = end.state {
                return Submitted::none(JobError::flushed(cause));
            }
            let posted = end.recvs.len() + receives.len();
            assert!(posted <= end.config.recv_queue_size as usize);
            let receives_of = |receive: &Receive| (receive.token, receive.dst, receive.len);
            end.recvs.extend(receives.iter().map(receives_of));
            later.changed.extend(world.taken.take());
            if let Some(peer) = world.peer_of(self.id) {
                world.progress(peer, later);
            }
            Submitted {
                accepted: receives.len(),
                refused: None,
            }
        })
    }

    fn reset(&self) {
        let resets = lock(&self.world.0).resets.take();
        if let Some(resets) = resets {
            resets();
        }
        self.world.with(|world, later| {
            world.disconnect(self.id, later);
            let blob = world.number();
            let Some(end) = world.ends.get_mut(&self.id) else {
                return; // it was retired meanwhile
            };
            end.flush(JobError::endpoint(Reason::Reset, 0, 0));
            (end.state, end.blob) = (EndpointState::Init, blob);
            later.changed.push(Arc::clone(&end.config.changed));
        });
    }

    unsafe fn retire(&self, keep: KeepAlive) {
        let end = self.world.with(|world, later| {
            world.disconnect(self.id, later);
            let mut end = world.ends.remove(&self.id)?;
            end.recvs.clear();
            end.flush(JobError::endpoint(Reason::Reset, 0, 0));
            Some(end)
        });
        drop(end);
        drop(keep);
    }
}

// Queue, adapter and memory
// -------------------------------------------------------------------------------------------

struct Completions {
    state: Mutex<(VecDeque<Completion>, bool)>,
    signal: Arc<Signal>,
}

impl Completions {
    fn push(&self, completion: Completion) {
        let mut state = lock(&self.state);
        state.0.push_back(completion);
        if std::mem::take(&mut state.1) {
            self.signal.raise();
        }
    }
}

struct LoopQueue {
    world: Loopback,
    completions: Arc<Completions>,
}

// SAFETY: the duties of a Queue. Jobs of Endpoints are pushed once; all others are refused. Under
// the lock, either `arm` sees a completion, or the next completion sees the queue armed and
// signals. All Endpoints of the queue are retired before the queue, so that nothing of it is in
// flight then.
unsafe impl Submit for LoopQueue {
    unsafe fn submit(&self, _jobs: &[(Token, Job<'_>)]) -> Submitted {
        Submitted {
            accepted: 0,
            refused: Some(JobError::device(ErrorKind::NotSupported, 0)),
        }
    }
}

// SAFETY: as for `Submit` above.
unsafe impl Queue for LoopQueue {
    fn open_endpoint(&self, config: EndpointConfig) -> Result<Arc<dyn Endpoint>> {
        self.world.with(|world, later| {
            later.changed.extend(world.opened.take());
            let (id, blob) = (world.number(), world.number());
            let end = End {
                recvs: VecDeque::with_capacity(config.recv_queue_size as usize),
                sends: VecDeque::with_capacity(1 << 10),
                config,
                queue: Arc::clone(&self.completions),
                state: EndpointState::Init,
                blob,
                peer: None,
            };
            world.ends.insert(id, end);
            let world = self.world.clone();
            Ok(Arc::new(LoopEndpoint { world, id }) as Arc<dyn Endpoint>)
        })
    }

    fn ready(&self) -> bool {
        !lock(&self.completions.state).0.is_empty()
    }

    unsafe fn reap(&self, out: &mut [Completion]) -> usize {
        let mut state = lock(&self.completions.state);
        let count = state.0.len().min(out.len());
        for (place, completion) in out.iter_mut().zip(state.0.drain(..count)) {
            *place = completion;
        }
        count
    }

    fn arm(&self) -> Armed {
        let mut state = lock(&self.completions.state);
        state.1 = true;
        match state.0.is_empty() {
            true => Armed::Armed,
            false => Armed::Ready,
        }
    }

    unsafe fn retire(&self, keep: KeepAlive, _outstanding: usize) {
        drop(keep);
    }
}

struct LoopAdapter {
    info: DevInfo,
    world: Loopback,
}

// SAFETY: the duties of an `Adapter`. `open_queue` makes a new queue and keeps none. The
// information is made once, and the queues accept everything within its capabilities. There are no
// further duties.
unsafe impl Adapter for LoopAdapter {
    fn info(&self) -> &DevInfo {
        &self.info
    }

    fn registrar(&self) -> &dyn Registrar {
        self
    }

    fn open_queue(&self, config: QueueConfig) -> Result<Arc<dyn Queue>> {
        let completions = Completions {
            state: Mutex::new((VecDeque::with_capacity(1 << 12), false)),
            signal: config.signal,
        };
        Ok(Arc::new(LoopQueue {
            world: self.world.clone(),
            completions: Arc::new(completions),
        }))
    }
}

/// Keeps memory exported until it is dropped.
struct Export {
    world: Weak<Mutex<World>>,
    number: u64,
}

impl Drop for Export {
    fn drop(&mut self) {
        if let Some(world) = self.world.upgrade() {
            let offer = lock(&world).memory.remove(&self.number);
            drop(offer);
        }
    }
}

struct Somewhere {
    world: Weak<Mutex<World>>,
    number: u64,
}

impl ImportOrigin for Somewhere {
    fn check(&self) -> Result<(), JobError> {
        let world = self.world.upgrade().ok_or(JobError::exporter_gone())?;
        let known = lock(&world).memory.contains_key(&self.number);
        known.then_some(()).ok_or(JobError::export_revoked())
    }
}

// SAFETY: the duties of a `Registrar`. Keys are not used: queues access memory by its address, and
// not after a job's completion. An import describes the memory of the export with its number.
unsafe impl Registrar for LoopAdapter {
    /// Returns an empty registration: the device uses the addresses of this process.
    fn register(&self, _region: &Region, _purpose: RegistrationUse) -> Result<Registration> {
        Ok(Registration::new(0, None))
    }

    fn export(&self, offer: &ExportRequest) -> Result<Exported> {
        let mut world = lock(&self.world.0);
        let number = world.number();
        world.memory.insert(number, Memory(offer.clone()));
        let guard = Export {
            world: Arc::downgrade(&self.world.0),
            number,
        };
        // The blob has the number twice, once inverted, so that a changed blob is refused.
        let blob = [number, !number].map(u64::to_le_bytes).concat();
        Ok(Exported::new(blob, Box::new(guard)))
    }

    /// Imports an export as memory of this process, with its owner.
    fn import(&self, blob: &[u8], _deadline: Instant) -> Result<Imported> {
        let error = |text| Error::new(ErrorKind::InvalidValue, "import", text);
        let blob = u128::from_le_bytes(blob.try_into().map_err(|_| error("no blob"))?);
        let number = blob as u64;
        if !number != (blob >> 64) as u64 {
            return Err(error("it was changed"));
        }
        let world = lock(&self.world.0);
        let Memory(offer) = world.memory.get(&number).ok_or(error("unknown"))?;
        let origin = Somewhere {
            world: Arc::downgrade(&self.world.0),
            number,
        };
        let (region, audience) = (offer.region(), offer.audience());
        let (addr, len, access) = (
            region.addr(),
            region.len(),
            audience.part_of(region.access()),
        );
        let imported = Imported::new(addr, len, access, audience, 0, Arc::new(origin));
        let owner = offer.owner().upgrade().ok_or(error("its owner has gone"))?;
        Ok(imported.with_owner(owner))
    }
}
