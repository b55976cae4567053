//! A provider of your own: an accelerator with two kinds of jobs that the crate does not know,
//! driven as awaited futures.
//!
//! The device is a thread that computes checksums and applies a key. Its half implements the traits
//! of `tokio_doca::device::contract`, whose documentation numbers the duties of each side. The
//! suite of the crate `tokio-doca-contract` checks them. The caller's half is `Accel`.
#![expect(
    unsafe_code,
    reason = "a device touches the memory that it is lent by address"
)]
use std::collections::VecDeque;
use std::error::Error;
use std::process::ExitCode;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use tokio_doca::device::contract::{
    AccelJob, Adapter, Armed, Completion, Job, KeepAlive, Provider, Queue, QueueConfig, Region,
    Registrar, Registration, Segment, Signal, Submit, Submitted, Token,
};
use tokio_doca::device::{RegistrationUse, WeakDevice};
use tokio_doca::{
    BufPool, Device, ErrorKind, Mmap, WorkQ,
    accel::{Accel, AccelCall},
    add_provider,
    device::{AccelCaps, Caps, DevInfo, PciAddr, PciFunction},
    error::JobError,
};

/// Opcode that computes the CRC-32 of the source and returns it.
pub const CRC32: u32 = 1;
/// Opcode that writes the source to the destination, each byte XORed with the argument's lowest
/// byte.
pub const XOR: u32 = 2;

// The device's half
// ---------------------------------------------------------------------------------------------------

/// The provider of these devices. There is one device, `accel0`.
#[derive(Default)]
pub struct Accelerators(Mutex<Option<WeakDevice>>);

impl Provider for Accelerators {
    fn name(&self) -> &'static str {
        "accelerators"
    }

    fn devices(&self) -> tokio_doca::Result<Vec<DevInfo>> {
        let mut caps = Caps::default();
        caps.accel = Some(AccelCaps::new([CRC32, XOR], 1 << 20, 16));
        caps.max_depth = 1024;
        let addr = PciAddr::new(0xac, 0, 0);
        let info = DevInfo::new(self.name(), "accel0", addr, PciFunction::Pf, caps);
        Ok(vec![info])
    }

    /// Opens the device. If it is open already, returns the same device.
    fn open(&self, info: &DevInfo) -> tokio_doca::Result<Device> {
        let mut open = lock(&self.0);
        if let Some(device) = open.as_ref().and_then(WeakDevice::upgrade) {
            return Ok(device);
        }
        let device = Device::from_adapter(Arc::new(Accelerator(info.clone())));
        *open = Some(device.downgrade());
        Ok(device)
    }
}

/// The open device.
struct Accelerator(DevInfo);

// SAFETY: the adapter duties. `open_queue` makes a new queue and keeps no reference to it. The
// information never changes, and the queues accept jobs within its capabilities. There is no other
// duty.
unsafe impl Adapter for Accelerator {
    fn info(&self) -> &DevInfo {
        &self.0
    }

    fn registrar(&self) -> &dyn Registrar {
        self
    }

    fn open_queue(&self, config: QueueConfig) -> tokio_doca::Result<Arc<dyn Queue>> {
        let depth = config.depth as usize;
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                todo: VecDeque::with_capacity(depth),
                done: VecDeque::with_capacity(depth),
                armed: false,
                keep: None,
                closed: false,
            }),
            work: Condvar::new(),
            signal: config.signal,
        });
        let worker = Arc::clone(&shared);
        thread::Builder::new()
            .name("accel0".to_owned())
            .spawn(move || worker.run())
            .map_err(|error| tokio_doca::Error::os("open_queue", "the worker's thread", error))?;
        Ok(Arc::new(AccelQueue(shared)))
    }
}

// SAFETY: the registrar duties. The keys are not used: queues access memory by its address, and
// never after a job's completion. Nothing is exported or imported.
unsafe impl Registrar for Accelerator {
    /// Registers nothing: the device thread shares the addresses of this process.
    fn register(
        &self,
        _region: &Region,
        _purpose: RegistrationUse,
    ) -> tokio_doca::Result<Registration> {
        Ok(Registration::new(0, None))
    }
}

/// The part of the device that belongs to one WorkQ.
struct AccelQueue(Arc<Shared>);

/// The state that the queue shares with its thread.
struct Shared {
    state: Mutex<State>,
    work: Condvar,
    signal: Arc<Signal>,
}

struct State {
    /// Both lists are allocated with the depth of the queue and never grow.
    todo: VecDeque<(Token, AccelJob)>,
    done: VecDeque<Completion>,
    armed: bool,
    keep: Option<KeepAlive>,
    closed: bool,
}

// SAFETY: the duties of `tokio_doca::device::contract`:
// 1. Each Job passes through `todo` and `done` once.
// 2. A Job is pushed to `done` after the last access to its memory.
// 3. `submit` accepts jobs of its own kinds only.
// 4. The default of `try_inline` finishes no job.
// 5. Under the lock, either `arm` sees a completion, or the thread that adds the completion sees
//    `armed` and clears it.
// 6. The thread drops `keep` at its end, when no job is left.
// 7. The lock is held for a few instructions.
unsafe impl Submit for AccelQueue {
    unsafe fn submit(&self, jobs: &[(Token, Job<'_>)]) -> Submitted {
        let known = jobs.iter().map_while(|(token, job)| match job {
            Job::Accel(job) => Some((*token, **job)),
            _ => None,
        });
        let mut state = lock(&self.0.state);
        let before = state.todo.len();
        state.todo.extend(known);
        let accepted = state.todo.len() - before;
        drop(state);
        self.0.work.notify_one();
        Submitted {
            accepted,
            ..Submitted::unsupported(&jobs[accepted..])
        }
    }
}

// SAFETY: as above.
unsafe impl Queue for AccelQueue {
    fn ready(&self) -> bool {
        !lock(&self.0.state).done.is_empty()
    }

    unsafe fn reap(&self, out: &mut [Completion]) -> usize {
        let mut state = lock(&self.0.state);
        let count = state.done.len().min(out.len());
        for (place, completion) in out.iter_mut().zip(state.done.drain(..count)) {
            *place = completion;
        }
        count
    }

    fn arm(&self) -> Armed {
        let mut state = lock(&self.0.state);
        state.armed = true;
        if state.done.is_empty() {
            Armed::Armed
        } else {
            Armed::Ready
        }
    }

    unsafe fn retire(&self, keep: KeepAlive, _outstanding: usize) {
        lock(&self.0.state).keep = Some(keep);
        self.0.close();
    }
}

impl Drop for AccelQueue {
    /// Closes the queue. A queue that is dropped without being retired never had a job.
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Shared {
    fn close(&self) {
        lock(&self.state).closed = true;
        self.work.notify_one();
    }

    /// Runs the accelerator itself, on its own thread.
    fn run(&self) {
        while let Some((token, job)) = self.next() {
            // SAFETY: the memory of an accepted Job is valid and leased until its completion has
            // been reaped.
            let result = unsafe { execute(&job) };
            let mut state = lock(&self.state);
            state.done.push_back(Completion::new(token, result));
            if std::mem::take(&mut state.armed) {
                self.signal.raise();
            }
        }
        let keep = lock(&self.state).keep.take();
        // `keep` is dropped outside the lock, because that may drop the queue itself.
        drop(keep);
    }

    /// Waits for the next Job. Returns `None` if the queue is closed and has no Job left.
    fn next(&self) -> Option<(Token, AccelJob)> {
        let mut state = lock(&self.state);
        loop {
            if let Some(next) = state.todo.pop_front() {
                return Some(next);
            }
            if state.closed {
                return None;
            }
            state = self
                .work
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Executes the job's opcode.
///
/// # Safety
///
/// The Job's memory must be valid and leased.
unsafe fn execute(job: &AccelJob) -> Result<u64, JobError> {
    let read = |segment: &Segment, at| {
        // SAFETY: the offset lies in the Segment.
        let place = unsafe { segment.addr().add(at) };
        // SAFETY: the Segment's memory is leased for reading.
        unsafe { place.read() }
    };
    let mut source = (job.src.as_slice().iter())
        .flat_map(|segment| (0..segment.len()).map(move |at| read(segment, at)));
    match job.opcode {
        CRC32 => {
            let crc = source.fold(!0, |crc: u32, byte| {
                (0..8).fold(crc ^ u32::from(byte), |crc, _| {
                    (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg())
                })
            });
            Ok(u64::from(!crc))
        }
        XOR => {
            let mut written = 0;
            for segment in job.dst.as_slice() {
                for (at, byte) in (0..segment.len()).zip(&mut source) {
                    // SAFETY: the offset lies in the Segment.
                    let place = unsafe { segment.addr().add(at) };
                    // SAFETY: the Segment's memory is leased for writing.
                    unsafe { place.write(byte ^ job.arg as u8) };
                    written += 1;
                }
            }
            Ok(written)
        }
        _ => Err(JobError::device(ErrorKind::NotSupported, job.opcode.into())),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// The caller's half
// ---------------------------------------------------------------------------------------------------

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("custom_provider: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    add_provider(Arc::new(Accelerators::default()))?;
    for info in Device::list()? {
        let kinds = info.caps().accel.as_ref();
        let opcodes = kinds.map(|accel| accel.opcodes.as_slice());
        println!("{} {}: opcodes {opcodes:?}", info.provider(), info.name());
    }

    let device = Device::open("accel0")?;
    let mmap = Mmap::builder().device(&device).alloc(1 << 16)?;
    let pool = BufPool::builder(&mmap).element_size(4096).build()?;
    let workq = WorkQ::builder().build()?;
    let accel = Accel::builder(&device).attach(&workq)?;

    let text = pool.alloc().await;
    text.extend_from_slice(b"123456789")?;
    let crc = accel.call(AccelCall::new(CRC32).src(&text)).await?;
    println!("CRC-32 of 123456789: {crc:#010x}");
    assert_eq!(crc, 0xcbf4_3926, "the check value of CRC-32");

    // Each key has a task of its own. Applying the key a second time restores the text.
    let mut tasks = Vec::new();
    for key in 1..=8 {
        let (accel, text) = (accel.clone(), text.clone());
        let (coded, plain) = (pool.alloc().await, pool.alloc().await);
        tasks.push(tokio::spawn(async move {
            let call = AccelCall::new(XOR).arg(key);
            accel.call(call.clone().src(&text).dst(&coded)).await?;
            accel.call(call.src(&coded).dst(&plain)).await?;
            assert_ne!(coded.data()?[..], text.data()?[..]);
            assert_eq!(plain.data()?[..], text.data()?[..]);
            Ok::<_, tokio_doca::Error>(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    println!("XOR there and back with 8 keys");

    // An opcode that the device does not have is refused before any memory is leased.
    let unknown = accel.call(AccelCall::new(99).src(&text)).await;
    println!("opcode 99: {}", unknown.err().ok_or("it was done")?);
    let other = Accel::builder(&Device::open_default()?).attach(&workq);
    println!("another device: {}", other.err().ok_or("it attached")?);
    workq.shutdown().await?;
    Ok(())
}
