//! A call that blocks, awaited: a thread makes it.
//!
//! There are [`THREADS`] at most, each of which ends when no call has waited for [`LINGER`]. A
//! call that waits for a thread spends its own time limit on that; if none is left when a thread is
//! free, it fails at once.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex as StdMutex, PoisonError};
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
            let mut state = lock(&*self.state);
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
        let mut state = lock(&**state);
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
    /// Begins the call, as soon as a thread is free for it. A time limit begins before that.
    ///
    /// # Errors
    ///
    /// `OperatingSystem` if no thread can be started, and none runs.
    pub(crate) fn begin(
        &mut self,
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
        elsewhere(Box::new(run))
            .map_err(|error| Error::os(op, "a thread could not be started", error))?;
        self.0 = Some(state);
        Ok(())
    }
}

/// The most calls that are made at once.
const THREADS: usize = 64;

/// How long a thread waits for the next call: to start one costs as much as a connection's socket.
const LINGER: Duration = Duration::from_millis(10);

type Run = Box<dyn FnOnce() + Send>;

/// The calls of this process that wait for a thread.
struct Queue {
    /// A child of fork(2) inherits the queue, and neither threads nor calls.
    process: u32,
    threads: usize,
    /// Of them, those that wait for a call.
    idle: usize,
    waiting: VecDeque<Run>,
}

static QUEUE: StdMutex<Queue> = StdMutex::new(Queue {
    process: 0,
    threads: 0,
    idle: 0,
    waiting: VecDeque::new(),
});

/// Wakes a thread that waits for a call.
static CALLED: Condvar = Condvar::new();

/// Makes a call on a thread, or puts it in the queue if there are as many threads as there may be.
///
/// # Errors
///
/// The system's, if no thread can be started and none runs.
pub(crate) fn elsewhere(run: Run) -> std::io::Result<()> {
    let mut queue = lock(&QUEUE);
    if queue.process != std::process::id() {
        queue.process = std::process::id();
        (queue.threads, queue.idle) = (0, 0);
        // Calls of the parent's: it makes them.
        std::mem::take(&mut queue.waiting)
            .into_iter()
            .for_each(std::mem::forget);
    }
    queue.waiting.push_back(run);
    if queue.waiting.len() <= queue.idle {
        CALLED.notify_one();
        return Ok(());
    }
    if queue.threads == THREADS {
        return Ok(());
    }
    let thread = std::thread::Builder::new().name("doca-blocking".to_owned());
    match thread.spawn(run_all) {
        Ok(_) => queue.threads += 1,
        // Those that run take it.
        Err(_) if queue.threads > 0 => {}
        Err(error) => {
            let run = queue.waiting.pop_back();
            drop(queue);
            drop(run);
            return Err(error);
        }
    }
    Ok(())
}

/// A thread: makes calls until none has come for a while.
fn run_all() {
    let mut queue = lock(&QUEUE);
    loop {
        if let Some(run) = queue.waiting.pop_front() {
            drop(queue);
            // `Ending` has told of a panic.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
            queue = lock(&QUEUE);
            continue;
        }
        queue.idle += 1;
        let none = |queue: &mut Queue| queue.waiting.is_empty();
        let waited = CALLED.wait_timeout_while(queue, LINGER, none);
        queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        queue.idle -= 1;
        if queue.waiting.is_empty() {
            queue.threads -= 1;
            return;
        }
    }
}

impl<T> Drop for Blocking<T> {
    /// What is under way ends by itself; the task is not kept until then.
    fn drop(&mut self) {
        if let Some(state) = &self.0 {
            let waker = lock(&**state).waker.take();
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
        call.begin("test", run).unwrap();
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
