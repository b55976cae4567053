//! State that several tasks await: the task that is polled takes what has come, so that a future
//! that nobody polls keeps nothing from the others.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use tokio::sync::Notify;

use super::lock;

pub(crate) struct Polled<T> {
    state: Mutex<T>,
    tasks: Arc<Tasks>,
}

/// The tasks that wait. As a waker it wakes all of them, since one alone may not be polled.
#[derive(Default)]
struct Tasks {
    all: Notify,
    /// A task polls the state: wakers of the application run once the lock was dropped.
    polls: AtomicBool,
    woken: AtomicBool,
}

impl Wake for Tasks {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, SeqCst);
        if !self.polls.load(SeqCst) {
            self.notify();
        }
    }
}

impl Tasks {
    fn notify(&self) {
        if self.woken.swap(false, SeqCst) {
            self.all.notify_waiters();
        }
    }
}

/// A poll, under the lock of the state.
struct Polls<'a>(&'a Tasks);

impl Polls<'_> {
    fn begin(tasks: &Tasks) -> Polls<'_> {
        tasks.polls.store(true, SeqCst);
        Polls(tasks)
    }
}

impl Drop for Polls<'_> {
    fn drop(&mut self) {
        self.0.polls.store(false, SeqCst);
    }
}

/// Notifies the tasks that were woken meanwhile, once the lock was dropped.
struct Notifies<'a>(&'a Tasks);

impl Drop for Notifies<'_> {
    fn drop(&mut self) {
        self.0.notify();
    }
}

impl<T> Polled<T> {
    pub(crate) fn new(state: T) -> Polled<T> {
        Polled {
            state: Mutex::new(state),
            tasks: Arc::default(),
        }
    }

    /// Polls the state once, under its lock, with the waker of all tasks that [`wait`](Self::wait).
    pub(crate) fn poll<R>(&self, poll: impl FnOnce(&mut T, &mut Context<'_>) -> R) -> R {
        let waker = Waker::from(Arc::clone(&self.tasks));
        // Dropped in reverse, by a panic of the poll as well.
        let _notifies = Notifies(&self.tasks);
        let mut state = lock(&self.state);
        let _polls = Polls::begin(&self.tasks);
        poll(&mut state, &mut Context::from_waker(&waker))
    }

    /// Waits until `poll`, which calls [`Polled::poll`], is ready.
    pub(crate) async fn wait<R>(&self, mut poll: impl FnMut() -> Poll<R>) -> R {
        loop {
            // Before the poll, so that a wake-up after it is not lost.
            let mut woken = pin!(self.tasks.all.notified());
            woken.as_mut().enable();
            if let Poll::Ready(came) = poll() {
                return came;
            }
            // If the poll itself has woken it, other tasks of this thread are first, and so is the
            // runtime, which may have had this one stop (tokio::task::coop).
            let at_once = poll_fn(|cx| Poll::Ready(woken.as_mut().poll(cx).is_ready()));
            match at_once.await {
                true => tokio::task::yield_now().await,
                false => woken.await,
            }
        }
    }
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_poll_that_panics_leaves_tasks_that_can_be_woken() {
        let polled = Polled::new(());
        let mut waker = None;
        let _: Poll<()> = polled.poll(|(), cx| {
            waker = Some(cx.waker().clone());
            Poll::Pending
        });
        let mut waits = pin!(polled.wait(|| polled.poll(|(), _| Poll::<()>::Pending)));
        let mut task = Context::from_waker(Waker::noop());
        assert!(waits.as_mut().poll(&mut task).is_pending());
        let panics = || polled.poll(|(), _| -> Poll<()> { panic!("as a runtime without time") });
        assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
        waker.unwrap().wake();
        assert!(!polled.tasks.woken.load(SeqCst), "the tasks were notified");
    }
}
