//! An import under way.
//!
//! It blocks: it asks another process, and maps what may be gigabytes. So it has a thread of its own, which ends with it, and
//! no import waits for another one.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::RemoteMmap;
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{Mutex, lock};

/// The future of [`RemoteMmap::from_export`].
#[must_use = "futures do nothing unless polled"]
pub struct Import {
    device: Device,
    blob: Vec<u8>,
    timeout: Duration,
    begun: Option<Arc<Mutex<State>>>,
}

#[derive(Default)]
struct State {
    result: Option<Result<RemoteMmap>>,
    /// The result was handed out.
    taken: bool,
    waker: Option<Waker>,
}

impl Import {
    pub(super) const OP: &str = "RemoteMmap::from_export";

    pub(super) fn new(device: &Device, blob: &[u8]) -> Import {
        Import {
            device: device.clone(),
            blob: blob.to_vec(),
            timeout: Duration::from_secs(5),
            begun: None,
        }
    }

    /// How long the exporter may take to answer, from the first poll on; 5 s if not said.
    pub fn timeout(mut self, timeout: Duration) -> Import {
        self.timeout = timeout;
        self
    }

    /// Imports on this thread, and blocks meanwhile.
    ///
    /// # Errors
    ///
    /// As [`RemoteMmap::from_export`]. `BadState` if it was polled.
    pub fn wait(self) -> Result<RemoteMmap> {
        if self.begun.is_some() {
            let text = "it was polled: go on to await it";
            return Err(Error::new(ErrorKind::BadState, "Import::wait", text));
        }
        import(&self.device, &self.blob, self.timeout)
    }
}

fn import(device: &Device, blob: &[u8], timeout: Duration) -> Result<RemoteMmap> {
    let now = Instant::now();
    // What lies beyond the clock is a day.
    let deadline = now
        .checked_add(timeout)
        .unwrap_or(now + Duration::from_secs(86_400));
    let imported = device.adapter().registrar().import(blob, deadline)?;
    RemoteMmap::new(device, imported)
}

/// Tells the waiting task how it ended, whatever becomes of the thread.
struct Ending {
    state: Arc<Mutex<State>>,
    result: Option<Result<RemoteMmap>>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        let panicked = || {
            let text = "the device panicked";
            Err(Error::new(ErrorKind::Unexpected, Import::OP, text))
        };
        let waker = {
            let mut state = lock(&self.state);
            state.result = Some(self.result.take().unwrap_or_else(panicked));
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Future for Import {
    type Output = Result<RemoteMmap>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<RemoteMmap>> {
        let this = &mut *self;
        if let Some(state) = &this.begun {
            let waker = cx.waker().clone();
            let mut state = lock(state);
            if let Some(result) = state.result.take() {
                state.taken = true;
                return Poll::Ready(result);
            }
            if state.taken {
                let text = "it has ended, and its result was handed out";
                return Poll::Ready(Err(Error::new(ErrorKind::BadState, Import::OP, text)));
            }
            let before = state.waker.replace(waker);
            drop(state);
            // Outside of the lock: it is user code.
            drop(before);
            return Poll::Pending;
        }
        let state = Arc::new(Mutex::new(State {
            waker: Some(cx.waker().clone()),
            ..State::default()
        }));
        let (device, blob) = (this.device.clone(), std::mem::take(&mut this.blob));
        let (timeout, ending) = (this.timeout, Arc::clone(&state));
        let run = move || {
            let mut ending = Ending {
                state: ending,
                result: None,
            };
            ending.result = Some(import(&device, &blob, timeout));
        };
        let thread = std::thread::Builder::new().name("doca-import".into());
        if let Err(error) = thread.spawn(run) {
            let error = Error::os(Import::OP, "a thread could not be started", error);
            return Poll::Ready(Err(error));
        }
        this.begun = Some(state);
        Poll::Pending
    }
}

impl Drop for Import {
    /// What is under way ends by itself; the task is not kept until then.
    fn drop(&mut self) {
        if let Some(state) = &self.begun {
            let waker = lock(state).waker.take();
            drop(waker);
        }
    }
}

impl fmt::Debug for Import {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Import")
            .field("device", &self.device)
            .field("timeout", &self.timeout)
            .finish()
    }
}
