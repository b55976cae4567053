//! A device that has only sync events, each behind a lock, and that sins against one duty at a
//! time.

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio_doca::device::RegistrationUse;
use tokio_doca::device::contract::{
    Adapter, Armed, Completion, EventConfig, EventCounter, EventJob, EventPort, EventWait, Job,
    KeepAlive, Queue, QueueConfig, Region, Registrar, Registration, Signal, Submit, Submitted,
    Token,
};
use tokio_doca::{
    Device, Error, ErrorKind, Result,
    device::{Caps, DevInfo, PciAddr, PciFunction, SyncEventCaps},
    error::JobError,
};

/// A violation of the contract that the device commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventSin {
    /// No violation: the device keeps all duties.
    None,
    /// Duty 1: an add returns the new value instead of the old one.
    AnswersTheSum,
    /// Duty 1: the 20th job never completes.
    LosesAJob,
    /// Duty 1: the 20th Job completes twice.
    JobTwice,
    /// The last job of a batch is executed first.
    Overtakes,
    /// Duty 1: a wait completes if the value equals its threshold.
    NotStrict,
    /// Duty 1: waits ignore their mask.
    IgnoresTheMask,
    /// Duty 1: neither a set nor an add completes waits.
    SleepsThroughSets,
    /// Duty 1: canceled waits complete.
    EndsTheCancelled,
    /// Waits for values beyond the device's limit are accepted.
    IgnoresItsLimit,
    /// Waits do not complete when the event is stopped.
    WaitsGoOn,
    /// Jobs are executed although the event is stopped.
    JobsGoOn,
    /// Duty 5: never signals.
    NeverSignals,
    /// Duty 5: signals without being armed.
    SignalsUnasked,
    /// Violates adapter duty 4: the counter is not stored in the memory that the device was given
    /// for it.
    IgnoresTheBacking,
}

/// Returns a device with this sin.
pub fn device(sin: EventSin) -> Device {
    let mut caps = Caps::default();
    caps.max_depth = 64;
    let mut sync_event = SyncEventCaps::new(64);
    if sin == EventSin::IgnoresItsLimit {
        sync_event.max_wait = Some(254);
    }
    caps.sync_event = Some(sync_event);
    let addr = PciAddr::new(0x0f, 0, 1);
    let info = DevInfo::new("outside-events", "events0", addr, PciFunction::Pf, caps);
    Device::from_adapter(Arc::new(Opened { info, sin }))
}

struct Opened {
    info: DevInfo,
    sin: EventSin,
}

// SAFETY: keeps the adapter duties. `open_queue` makes a new queue and keeps none. The information
// is made once, and the queues accept all jobs within its capabilities. The device has no other
// calls.
unsafe impl Adapter for Opened {
    fn info(&self) -> &DevInfo {
        &self.info
    }

    fn registrar(&self) -> &dyn Registrar {
        self
    }

    fn open_queue(&self, config: QueueConfig) -> Result<Arc<dyn Queue>> {
        let signal = Arc::clone(&config.signal);
        let (sin, inner) = (self.sin, Mutex::default());
        Ok(Arc::new(Events(Arc::new(Shared { sin, signal, inner }))))
    }

    fn open_event(&self, config: EventConfig) -> Result<Arc<dyn EventCounter>> {
        if config.backing.is_some() && self.sin != EventSin::IgnoresTheBacking {
            let text = "its counters lie in memory of its own";
            return Err(Error::new(ErrorKind::NotSupported, None, text));
        }
        let (sin, inner) = (self.sin, Mutex::default());
        Ok(Arc::new(Counter { sin, inner }))
    }
}

// SAFETY: keeps the registrar duties. The keys are unused: queues access memory by its address, and
// never after a job's completion. Nothing is exported or imported.
unsafe impl Registrar for Opened {
    fn register(&self, _region: &Region, _purpose: RegistrationUse) -> Result<Registration> {
        Ok(Registration::new(0, None))
    }
}

/// A queue of the device, which its ports share.
struct Events(Arc<Shared>);

struct Shared {
    sin: EventSin,
    signal: Arc<Signal>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    done: Vec<Completion>,
    armed: bool,
    jobs: u32,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn put(&self, token: Token, result: Result<u64, JobError>) {
        let mut inner = lock(&self.inner);
        inner.done.push(Completion::new(token, result));
        let signals = match self.sin {
            EventSin::NeverSignals => false,
            EventSin::SignalsUnasked => true,
            _ => inner.armed,
        };
        inner.armed = false;
        if signals {
            self.signal.raise();
        }
    }
}

// SAFETY: the queue accesses no memory of its callers.
unsafe impl Submit for Events {
    unsafe fn submit(&self, jobs: &[(Token, Job<'_>)]) -> Submitted {
        let refused = JobError::device(ErrorKind::NotSupported, 0);
        Submitted {
            accepted: 0,
            refused: (!jobs.is_empty()).then_some(refused),
        }
    }
}

// SAFETY: the queue accesses no memory of its callers.
unsafe impl Queue for Events {
    fn open_event_port(
        &self,
        event: &Arc<dyn EventCounter>,
        _waits: u32,
    ) -> Result<Arc<dyn EventPort>> {
        let counter = Arc::clone(event).as_any().downcast::<Counter>();
        let counter = counter.expect("an event of this device");
        lock(&counter.inner).queue = Arc::downgrade(&self.0);
        Ok(Arc::new(Port {
            counter,
            shared: Arc::clone(&self.0),
        }))
    }

    unsafe fn reap(&self, out: &mut [Completion]) -> usize {
        let mut inner = lock(&self.0.inner);
        let count = out.len().min(inner.done.len());
        for (to, done) in out.iter_mut().zip(inner.done.drain(..count)) {
            *to = done;
        }
        count
    }

    fn arm(&self) -> Armed {
        let mut inner = lock(&self.0.inner);
        inner.armed = true;
        match inner.done.is_empty() {
            true => Armed::Armed,
            false => Armed::Ready,
        }
    }

    unsafe fn retire(&self, keep: KeepAlive, _outstanding: usize) {
        drop(keep);
    }
}

struct Counter {
    sin: EventSin,
    inner: Mutex<State>,
}

#[derive(Default)]
struct State {
    value: u64,
    stopped: bool,
    waits: Vec<(Token, EventWait)>,
    queue: Weak<Shared>,
}

impl Counter {
    fn is_met(&self, wait: &EventWait, value: u64) -> bool {
        match self.sin {
            EventSin::NotStrict => value & wait.mask >= wait.threshold,
            EventSin::IgnoresTheMask => value > wait.threshold,
            _ => wait.is_met(value),
        }
    }

    fn wake(&self, state: &mut State) {
        let (value, stopped) = (state.value, state.stopped);
        let result = match stopped {
            true => Err(JobError::event_stopped()),
            false => Ok(value),
        };
        let Some(queue) = state.queue.upgrade() else {
            return;
        };
        state.waits.retain(|(token, wait)| {
            let over = stopped || self.is_met(wait, value);
            if over {
                queue.put(*token, result);
            }
            !over
        });
    }
}

impl EventCounter for Counter {
    fn perform(&self, job: EventJob) -> Result<u64, JobError> {
        let mut state = lock(&self.inner);
        if state.stopped && self.sin != EventSin::JobsGoOn {
            return Err(JobError::event_stopped());
        }
        let answer = match job {
            EventJob::Get => state.value,
            EventJob::Set(value) => {
                state.value = value;
                value
            }
            EventJob::Add(add) => {
                let before = state.value;
                state.value = before.wrapping_add(add);
                match self.sin {
                    EventSin::AnswersTheSum => state.value,
                    _ => before,
                }
            }
        };
        if !state.stopped && self.sin != EventSin::SleepsThroughSets {
            self.wake(&mut state);
        }
        Ok(answer)
    }

    fn ask(&self, wait: &EventWait) -> Result<Option<u64>, JobError> {
        let state = lock(&self.inner);
        if state.stopped {
            return Err(JobError::event_stopped());
        }
        Ok(wait.is_met(state.value).then_some(state.value))
    }

    fn export(&self) -> Result<Vec<u8>> {
        let text = "not by this device";
        Err(tokio_doca::Error::new(ErrorKind::NotSupported, None, text))
    }

    fn stop(&self) {
        let mut state = lock(&self.inner);
        state.stopped = true;
        if self.sin != EventSin::WaitsGoOn {
            self.wake(&mut state);
        }
    }

    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

struct Port {
    counter: Arc<Counter>,
    shared: Arc<Shared>,
}

// SAFETY: a port accesses no memory of its callers.
unsafe impl Submit for Port {
    unsafe fn submit(&self, jobs: &[(Token, Job<'_>)]) -> Submitted {
        let known = jobs.iter().map_while(|(token, job)| match job {
            Job::Event(job) => Some((*token, **job)),
            _ => None,
        });
        let mut order: Vec<_> = known.collect();
        let accepted = order.len();
        if self.shared.sin == EventSin::Overtakes {
            order.reverse();
        }
        for (token, job) in order {
            let result = self.counter.perform(job);
            let number = {
                let mut inner = lock(&self.shared.inner);
                inner.jobs += 1;
                inner.jobs
            };
            let times = match self.shared.sin {
                EventSin::LosesAJob if number == 20 => 0,
                EventSin::JobTwice if number == 20 => 2,
                _ => 1,
            };
            (0..times).for_each(|_| self.shared.put(token, result));
        }
        Submitted {
            accepted,
            ..Submitted::unsupported(&jobs[accepted..])
        }
    }
}

impl EventPort for Port {
    fn wait(&self, token: Token, wait: EventWait) -> Result<(), JobError> {
        let mut state = lock(&self.counter.inner);
        state.waits.push((token, wait));
        self.counter.wake(&mut state);
        Ok(())
    }

    fn cancel(&self, token: Token) {
        if self.shared.sin != EventSin::EndsTheCancelled {
            let mut state = lock(&self.counter.inner);
            state.waits.retain(|(waiting, _)| *waiting != token);
        }
    }

    fn retire(&self) {
        lock(&self.counter.inner).waits.clear();
    }
}
