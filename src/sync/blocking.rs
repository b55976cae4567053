//! Calls that block: a thread makes the call, and a task awaits its result.
//!
//! There are at most 64 such threads for the peers that the application names ([`for_peers`]), and
//! 64 for those that come to it ([`for_strangers`]). Each ends when no call has waited for
//! [`LINGER`]. A call that waits for a thread spends its own time limit on that. If no time is left
//! when a thread is free, the call fails at once.

use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::{EachProcess, lock};
use crate::error::{Error, ErrorKind, Result};

/// Returns the time at which `timeout` will have passed. If the clock cannot represent that,
/// returns the time in a day.
pub(crate) fn deadline(timeout: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(timeout)
        .unwrap_or(now + Duration::from_secs(86_400))
}

/// A call that blocks, and the receiver of its result.
pub(crate) enum Blocking<T> {
    Idle,
    Begun(oneshot::Receiver<Result<T>>),
    /// The result was handed out.
    Ended,
}

impl<T> Blocking<T> {
    pub(crate) fn new() -> Blocking<T> {
        Blocking::Idle
    }

    pub(crate) fn is_begun(&self) -> bool {
        !matches!(self, Blocking::Idle)
    }

    /// Returns `BadState` if the future that makes the call was polled before.
    pub(crate) fn check_idle(&self, op: &'static str) -> Result<()> {
        let text = "it was polled already: await it";
        match self {
            Blocking::Idle => Ok(()),
            _ => Err(Error::new(ErrorKind::BadState, op, text)),
        }
    }

    /// Polls the call that was begun.
    pub(crate) fn poll(&mut self, op: &'static str, cx: &mut Context<'_>) -> Poll<Result<T>> {
        let Blocking::Begun(result) = self else {
            let text = "it has ended, and its result was handed out";
            return Poll::Ready(Err(Error::new(ErrorKind::BadState, op, text)));
        };
        // The task's budget must not delay the result: a task that blocks on this future gets no
        // new budget.
        let result = pin!(tokio::task::unconstrained(result));
        let result = ready!(result.poll(cx));
        *self = Blocking::Ended;
        let panicked = Error::new(
            ErrorKind::Unexpected,
            op,
            "the device panicked, or had no thread for it",
        );
        Poll::Ready(result.unwrap_or(Err(panicked)))
    }
}

impl<T> Drop for Blocking<T> {
    /// A call in progress ends by itself. It does not keep the task until then: another waker
    /// replaces the task's waker.
    fn drop(&mut self) {
        if let Blocking::Begun(result) = self
            && !result.is_terminated()
        {
            let _ = pin!(result).poll(&mut Context::from_waker(Waker::noop()));
        }
    }
}

impl<T: Send + 'static> Blocking<T> {
    /// Begins a call whose result comes through a callback, which `call` gets. If the callback is
    /// dropped uncalled, the call has failed.
    pub(crate) fn begin_answered(&mut self, call: impl FnOnce(Box<dyn FnOnce(Result<T>) + Send>)) {
        let (tell, told) = oneshot::channel();
        *self = Blocking::Begun(told);
        call(Box::new(move |result| _ = tell.send(result)));
    }

    /// Begins the call, on one of `threads` as soon as one is free. A time limit of the call begins
    /// before that.
    ///
    /// # Errors
    ///
    /// `OperatingSystem` if no thread can be started, and none runs.
    pub(crate) fn begin(
        &mut self,
        threads: &'static Threads,
        op: &'static str,
        call: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<()> {
        let (tell, told) = oneshot::channel();
        let run = move || match catch_unwind(AssertUnwindSafe(call)) {
            Ok(result) => _ = tell.send(result),
            // Dropping it wakes the task as well: not while the thread panics, since its waker may
            // panic too.
            Err(_) => drop(tell),
        };
        threads
            .run(Box::new(run))
            .map_err(|(error, _)| Error::os(op, "a thread could not be started", error))?;
        *self = Blocking::Begun(told);
        Ok(())
    }
}

/// How long a thread waits for the next call. To start a thread costs twenty system calls, and a
/// task that connects to one peer after the other waits for the network between two calls.
const LINGER: Duration = Duration::from_secs(1);

pub(crate) type Run = Box<dyn FnOnce() + Send>;

/// Threads that make calls: as needed, but at most `most`.
pub(crate) struct Threads {
    most: usize,
    queue: Mutex<Queue>,
    /// Wakes a thread that waits for a call.
    called: Condvar,
}

/// The calls of this process that wait for a thread.
struct Queue {
    threads: usize,
    /// The number of `threads` that wait for a call.
    idle: usize,
    waiting: VecDeque<Run>,
}

/// The threads for calls that may wait for a peer that the application has named.
pub(crate) fn for_peers() -> &'static Threads {
    static PEERS: EachProcess<Threads> = EachProcess::new(|| Threads::new(64));
    PEERS.get()
}

/// The threads for calls that may wait for a peer which has come to a listener, and may never
/// answer. Calls for peers that the application named do not wait for these threads.
pub(crate) fn for_strangers() -> &'static Threads {
    static STRANGERS: EachProcess<Threads> = EachProcess::new(|| Threads::new(64));
    STRANGERS.get()
}

impl Threads {
    pub(crate) const fn new(most: usize) -> Threads {
        let queue = Queue {
            threads: 0,
            idle: 0,
            waiting: VecDeque::new(),
        };
        Threads {
            most,
            queue: Mutex::new(queue),
            called: Condvar::new(),
        }
    }

    /// Makes a call on a thread. If all of them run, the call waits in the queue.
    ///
    /// # Errors
    ///
    /// The error of the system, with the call, if no thread can be started and none runs.
    pub(crate) fn run(&'static self, run: Run) -> Result<(), (std::io::Error, Run)> {
        let mut queue = lock(&self.queue);
        queue.waiting.push_back(run);
        if queue.waiting.len() <= queue.idle {
            // The lock is released first, so that the woken thread need not wait for it.
            drop(queue);
            self.called.notify_one();
            return Ok(());
        }
        if queue.threads == self.most {
            return Ok(());
        }
        let thread = std::thread::Builder::new().name("doca-blocking".to_owned());
        match thread.spawn(|| self.make_calls()) {
            Ok(_) => queue.threads += 1,
            // The threads that run will make the call.
            Err(_) if queue.threads > 0 => {}
            Err(error) => {
                let run = queue.waiting.pop_back().expect("it was pushed above");
                return Err((error, run));
            }
        }
        Ok(())
    }

    /// The body of a thread: makes calls until none has come for a while.
    fn make_calls(&self) {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(run) = queue.waiting.pop_front() {
                drop(queue);
                // A waker may panic.
                let _ = catch_unwind(AssertUnwindSafe(run));
                queue = lock(&self.queue);
                continue;
            }
            queue.idle += 1;
            let none = |queue: &mut Queue| queue.waiting.is_empty();
            let waited = self.called.wait_timeout_while(queue, LINGER, none);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
            queue.idle -= 1;
            if queue.waiting.is_empty() {
                queue.threads -= 1;
                return;
            }
        }
    }
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use std::sync::{Arc, mpsc};
    use std::task::Wake;

    use super::*;

    struct Panics(mpsc::Sender<()>);

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            self.0.send(()).expect("the test waits for it");
            panic!("woken");
        }
    }

    #[test]
    fn a_call_that_is_dropped_lets_go_of_its_task() {
        struct Task;
        impl Wake for Task {
            fn wake(self: Arc<Self>) {}
        }
        let mut call = Blocking::<()>::new();
        let (go, gone) = mpsc::channel::<()>();
        let run = move || {
            gone.recv().unwrap();
            Ok(())
        };
        call.begin(for_peers(), "test", run).unwrap();
        let task = Arc::new(Task);
        let waker = Waker::from(Arc::clone(&task));
        assert!(
            call.poll("test", &mut Context::from_waker(&waker))
                .is_pending()
        );
        drop(waker);
        assert_eq!(Arc::strong_count(&task), 2);
        drop(call);
        assert_eq!(Arc::strong_count(&task), 1);
        go.send(()).unwrap();
    }

    /// A waker that panics during the panic of the call would end the process.
    #[test]
    fn a_call_that_panics_wakes_a_waker_that_panics_too() {
        let mut call = Blocking::<()>::new();
        let (go, gone) = mpsc::channel::<()>();
        let run = move || {
            gone.recv().unwrap();
            panic!("called");
        };
        call.begin(for_peers(), "test", run).unwrap();
        let (woken, is_woken) = mpsc::channel();
        let waker = Waker::from(Arc::new(Panics(woken)));
        let mut cx = Context::from_waker(&waker);
        assert!(call.poll("test", &mut cx).is_pending());
        go.send(()).unwrap();
        is_woken.recv().unwrap();
        let Poll::Ready(Err(error)) = call.poll("test", &mut cx) else {
            panic!("it has failed");
        };
        assert_eq!(error.kind(), ErrorKind::Unexpected);
    }
}
