//! A device that does in `arm` only what the contract demands: if completions wait already, it
//! returns `Ready` and arms nothing.
#![expect(unsafe_code, reason = "implements Adapter and Queue")]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use tokio_doca::device::contract::*;
use tokio_doca::device::*;
use tokio_doca::*;

#[derive(Default)]
pub(super) struct State {
    pending: VecDeque<Token>,
    done: VecDeque<Token>,
    armed: bool,
}

pub(super) struct Frugal {
    info: DevInfo,
    pub(super) state: Arc<Mutex<State>>,
    signal: Mutex<Option<Arc<Signal>>>,
}

impl Frugal {
    pub(super) fn new() -> Arc<Frugal> {
        let caps = Caps::for_dma(1 << 20, 1, 1 << 10);
        let addr = PciAddr::new(0x0c, 0, 0);
        Arc::new(Frugal {
            info: DevInfo::new("frugal", "frugal", addr, PciFunction::Pf, caps),
            state: Arc::default(),
            signal: Mutex::default(),
        })
    }

    /// Completes the oldest Job, and signals if the queue is armed.
    pub(super) fn finish_one(&self) {
        let mut state = self.state.lock().unwrap();
        let token = state.pending.pop_front().unwrap();
        state.done.push_back(token);
        if std::mem::take(&mut state.armed) {
            self.signal.lock().unwrap().as_ref().unwrap().raise();
        }
    }
}

// SAFETY: the duties of an `Adapter`. `open_queue` makes a new queue and keeps none. The
// information is made once, and the queues accept everything within its capabilities. There are no
// further duties.
unsafe impl Adapter for Frugal {
    fn info(&self) -> &DevInfo {
        &self.info
    }

    fn registrar(&self) -> &dyn Registrar {
        self
    }

    fn open_queue(&self, config: QueueConfig) -> Result<Arc<dyn Queue>> {
        *self.signal.lock().unwrap() = Some(config.signal);
        Ok(Arc::new(FrugalQueue(Arc::clone(&self.state))))
    }
}

// SAFETY: the duties of a `Registrar`. Keys are not used: queues access memory by its address, and
// not after a job's completion. Nothing is exported or imported.
unsafe impl Registrar for Frugal {
    fn register(&self, _region: &Region, _purpose: RegistrationUse) -> Result<Registration> {
        Ok(Registration::new(0, None))
    }
}

struct FrugalQueue(Arc<Mutex<State>>);

// SAFETY: the device touches no memory, and hands each Token out once.
unsafe impl Submit for FrugalQueue {
    unsafe fn submit(&self, jobs: &[(Token, Job<'_>)]) -> Submitted {
        let tokens = jobs.iter().map(|(token, _)| *token);
        self.0.lock().unwrap().pending.extend(tokens);
        Submitted {
            accepted: jobs.len(),
            refused: None,
        }
    }
}

// SAFETY: as for `Submit` above.
unsafe impl Queue for FrugalQueue {
    fn ready(&self) -> bool {
        !self.0.lock().unwrap().done.is_empty()
    }

    unsafe fn reap(&self, out: &mut [Completion]) -> usize {
        let mut state = self.0.lock().unwrap();
        let count = out.len().min(state.done.len());
        for (out, token) in out.iter_mut().zip(state.done.drain(..count)) {
            let result = Ok(0);
            *out = Completion::new(token, result);
        }
        count
    }

    fn arm(&self) -> Armed {
        let mut state = self.0.lock().unwrap();
        if state.done.is_empty() {
            state.armed = true;
            Armed::Armed
        } else {
            Armed::Ready
        }
    }

    unsafe fn retire(&self, keep: KeepAlive, outstanding: usize) {
        if outstanding > 0 {
            std::mem::forget(keep);
        }
    }
}
