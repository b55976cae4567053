//! A call that blocks, awaited: it has a thread of its own, which ends with it, and no call waits for another one.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::{Mutex, discard, lock, wake};
use crate::error::{Error, ErrorKind, Result};

/// When so much time will be over. What lies beyond the clock is a day.
pub(crate) fn deadline(timeout: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(timeout)
        .unwrap_or(now + Duration::from_secs(86_400))
}

/// A call that blocks, and whoever awaits it.
pub(crate) struct Blocking<T>(Option<Arc<Mutex<State<T>>>>);

struct State<T> {
    result: Option<Result<T>>,
    /// The result was handed out.
    taken: bool,
    waker: Option<Waker>,
}

/// Tells the waiting task how it ended, whatever becomes of the thread.
struct Ending<T> {
    state: Arc<Mutex<State<T>>>,
    op: &'static str,
    result: Option<Result<T>>,
}

impl<T> Drop for Ending<T> {
    fn drop(&mut self) {
        let panicked = || {
            let text = "the device panicked";
            Err(Error::new(ErrorKind::Unexpected, self.op, text))
        };
        let result = self.result.take().unwrap_or_else(panicked);
        let waker = {
            let mut state = lock(&self.state);
            state.result = Some(result);
            state.waker.take()
        };
        waker.into_iter().for_each(wake);
    }
}

impl<T> Blocking<T> {
    pub(crate) fn new() -> Blocking<T> {
        Blocking(None)
    }

    pub(crate) fn is_begun(&self) -> bool {
        self.0.is_some()
    }

    /// Polls what was begun.
    pub(crate) fn poll(&mut self, op: &'static str, cx: &mut Context<'_>) -> Poll<Result<T>> {
        let state = self.0.as_ref().expect("it was begun");
        let waker = cx.waker().clone();
        let mut state = lock(state);
        if let Some(result) = state.result.take() {
            state.taken = true;
            return Poll::Ready(result);
        }
        if state.taken {
            let text = "it has ended, and its result was handed out";
            return Poll::Ready(Err(Error::new(ErrorKind::BadState, op, text)));
        }
        let before = state.waker.replace(waker);
        drop(state);
        // Outside of the lock: it is user code.
        discard(before);
        Poll::Pending
    }
}

impl<T: Send + 'static> Blocking<T> {
    /// Begins the call on a thread of this name.
    ///
    /// # Errors
    ///
    /// `OperatingSystem` if there is none.
    pub(crate) fn begin(
        &mut self,
        thread: &str,
        op: &'static str,
        call: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<()> {
        let state = Arc::new(Mutex::new(State {
            result: None,
            taken: false,
            waker: None,
        }));
        let ending = Arc::clone(&state);
        let run = move || {
            let mut ending = Ending {
                state: ending,
                op,
                result: None,
            };
            ending.result = Some(call());
        };
        std::thread::Builder::new()
            .name(thread.into())
            .spawn(run)
            .map_err(|error| Error::os(op, "a thread could not be started", error))?;
        self.0 = Some(state);
        Ok(())
    }
}

impl<T> Drop for Blocking<T> {
    /// What is under way ends by itself; the task is not kept until then.
    fn drop(&mut self) {
        if let Some(state) = &self.0 {
            let waker = lock(state).waker.take();
            discard(waker);
        }
    }
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use std::task::Wake;

    use super::*;

    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("woken");
        }
    }

    /// A panic beside another one would end the process.
    #[test]
    fn a_call_that_panics_wakes_a_waker_that_panics_too() {
        let mut call = Blocking::<()>::new();
        let (go, gone) = std::sync::mpsc::channel::<()>();
        let run = move || {
            gone.recv().unwrap();
            panic!("called");
        };
        call.begin("panics", "test", run).unwrap();
        let waker = Waker::from(Arc::new(Panics));
        let mut cx = Context::from_waker(&waker);
        assert!(call.poll("test", &mut cx).is_pending());
        go.send(()).unwrap();
        // Until the thread has let go of it: a poll before would put another waker there.
        let state = call.0.as_ref().unwrap();
        while Arc::strong_count(state) > 1 {
            std::thread::yield_now();
        }
        let Poll::Ready(Err(error)) = call.poll("test", &mut cx) else {
            panic!("it has failed");
        };
        assert_eq!(error.kind(), ErrorKind::Unexpected);
    }
}
