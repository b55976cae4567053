//! State that several tasks await. They take what comes in the order in which they began to wait,
//! but a future that is not polled does not delay the others.
//!
//! The rule of all lines (ADR 0004) holds: a task that was notified owns nothing. The number of
//! things to take is not counted, so each change notifies all tasks in line. They take in order,
//! and a task that is not polled is passed.
#![expect(unsafe_code, reason = "a task in line is a pinned node")]

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker, ready};

use pin_project::{pin_project, pinned_drop};
use tokio::task::coop::poll_proceed;

use super::atomic::{AtomicBool, Ordering::SeqCst};
use super::{Mutex, Order, Turn, WaitNode, Waiters, lock};

pub(crate) struct Polled<T> {
    state: Mutex<T>,
    tasks: Arc<Tasks>,
}

/// The tasks that wait. As a waker, this notifies all of them.
struct Tasks {
    line: Waiters,
    order: Arc<Order>,
    /// True while a task polls the state. Wakers of the application then run only once the lock was
    /// dropped.
    polls: AtomicBool,
    woken: AtomicBool,
}

impl Wake for Tasks {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // An exchange, as in `notify_if_woken`: the later one sees what the other thread did.
        self.woken.swap(true, SeqCst);
        if !self.polls.load(SeqCst) {
            self.notify_if_woken();
        }
    }
}

impl Tasks {
    fn notify_if_woken(&self) {
        if self.woken.swap(false, SeqCst) {
            self.notify();
        }
    }

    fn notify(&self) {
        self.line.notify_and_wake(|who| who.waiting);
    }
}

/// Marks, until it is dropped, that a poll is in progress under the lock of the state.
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

/// Notifies, when dropped, the tasks that were woken during the poll. It is dropped after the lock
/// was released.
struct Notifies<'a>(&'a Tasks);

impl Drop for Notifies<'_> {
    fn drop(&mut self) {
        self.0.notify_if_woken();
    }
}

impl<T> Polled<T> {
    pub(crate) fn new(state: T) -> Polled<T> {
        Polled {
            state: Mutex::new(state),
            tasks: Arc::new(Tasks {
                line: Waiters::new(),
                order: Order::new(),
                polls: AtomicBool::new(false),
                woken: AtomicBool::new(false),
            }),
        }
    }

    /// Polls the state once, under its lock, with the waker of all tasks that [`wait`](Self::wait).
    pub(crate) fn poll<R>(&self, poll: impl FnOnce(&mut T, &mut Context<'_>) -> R) -> R {
        let waker = Waker::from(Arc::clone(&self.tasks));
        // The guards are dropped in reverse order, also if the poll panics.
        let _notifies = Notifies(&self.tasks);
        let mut state = lock(&self.state);
        let _polls = Polls::begin(&self.tasks);
        poll(&mut state, &mut Context::from_waker(&waker))
    }

    /// Notifies all tasks that wait. Called when the state, or anything else that their polls read,
    /// has changed. The caller holds no lock.
    pub(crate) fn notify(&self) {
        self.tasks.notify();
    }

    /// Waits in line until `poll`, which calls [`Polled::poll`], is ready.
    pub(crate) async fn wait<R>(&self, mut poll: impl FnMut() -> Poll<R>) -> R {
        let mut task = pin!(QueuedTask {
            node: WaitNode::new(),
            tasks: Arc::clone(&self.tasks),
        });
        loop {
            let turn = poll_fn(|cx| {
                let Poll::Ready(budget) = poll_proceed(cx) else {
                    // A task gets into line before it yields.
                    task.as_mut().join(cx);
                    return Poll::Pending;
                };
                let came = ready!(task.as_mut().poll(cx, &mut poll));
                budget.made_progress();
                Poll::Ready(came)
            });
            match turn.await {
                Some(came) => return came,
                // All tasks that were woken before are polled first.
                None => tokio::task::yield_now().await,
            }
        }
    }

    /// Returns true if a caller that does not wait may poll the state: if no task waits, or if the
    /// tasks that wait were notified and are not polled.
    pub(crate) fn lets_pass(&self) -> bool {
        self.tasks.line.lets_pass(Some(&self.tasks.order), || true)
    }
}

/// A task's node in line.
#[pin_project(PinnedDrop)]
struct QueuedTask {
    // Declared first, so that the node is dropped before the line.
    #[pin]
    node: WaitNode,
    tasks: Arc<Tasks>,
}

impl QueuedTask {
    /// Enters the line, unless the task is in it. It enters as a notified task, since the tasks in
    /// front may have been notified of something that they do not take.
    fn join(self: Pin<&mut Self>, cx: &mut Context<'_>) {
        let this = self.project();
        let (tasks, node) = (&**this.tasks, this.node.as_ref());
        if !node.is_linked() {
            // SAFETY: the line lies in the Arc of the tasks, which is dropped after the node.
            unsafe {
                tasks.line.enqueue_in(Some(&tasks.order), node, cx.waker());
            }
            tasks.line.notify_self(node);
        }
    }

    /// Polls in turn. Returns `None` if tasks in front, which may be polled yet, go first: the
    /// caller polls again soon.
    fn poll<R>(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        poll: &mut impl FnMut() -> Poll<R>,
    ) -> Poll<Option<R>> {
        let this = self.project();
        let (tasks, node) = (&**this.tasks, this.node.as_ref());
        if !node.is_linked()
            && tasks.line.is_empty()
            && let Poll::Ready(came) = poll()
        {
            return Poll::Ready(Some(came));
        }
        // SAFETY: as in `join`.
        let turn = unsafe { tasks.line.enqueue_for_turn(&tasks.order, node, cx.waker()) };
        match turn {
            Turn::Hold => Poll::Ready(None),
            Turn::Wait => Poll::Pending,
            Turn::Take => {
                let came = ready!(poll());
                tasks.line.leave(node);
                // There may be more to take.
                tasks.notify();
                Poll::Ready(Some(came))
            }
        }
    }
}

#[pinned_drop]
impl PinnedDrop for QueuedTask {
    fn drop(self: Pin<&mut Self>) {
        let this = self.project();
        let node = this.node.as_ref();
        if node.is_linked() {
            this.tasks.line.leave(node);
            // Others may have waited for this task's turn.
            this.tasks.notify();
        }
    }
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use std::future::Future;
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

    #[test]
    fn tasks_take_in_order_and_one_that_nobody_polls_is_passed() {
        let polled = Polled::new(0);
        let take = || {
            polled.poll(|left, _| match *left {
                0 => Poll::Pending,
                _ => {
                    *left -= 1;
                    Poll::Ready(())
                }
            })
        };
        let put = |some| {
            polled.poll(|left, cx| {
                *left += some;
                cx.waker().wake_by_ref();
            });
        };
        let mut cx = Context::from_waker(Waker::noop());
        let mut waits: Vec<_> = (0..4).map(|_| Box::pin(polled.wait(take))).collect();
        let mut poll = |at: usize| waits[at].as_mut().poll(&mut cx).is_ready();
        assert!((0..4).all(|at| !poll(at)));
        assert!(!polled.lets_pass(), "nothing has come");
        put(1);
        assert!(!poll(2), "those in front may be polled yet");
        assert!(poll(0) && !poll(2) && !poll(1), "the first has it");
        put(2);
        assert!(
            !poll(3) && poll(3),
            "it has passed those that are not polled"
        );
        assert!(poll(1) && !poll(2));
        put(1);
        assert!(
            !polled.lets_pass() && polled.lets_pass(),
            "a call that does not wait, too"
        );
        assert!(poll(2));
    }
}

#[cfg(all(test, tokio_doca_loom))]
mod models {
    use super::super::loom::{block_on, check, deep, spawn, take_one};
    use super::*;

    /// Two tasks wait for two items, which two changes add, and each takes one.
    #[test]
    fn what_comes_is_taken_by_all_that_wait() {
        check(deep(2), || {
            let polled = Arc::new(Polled::new(0));
            let takers = [(); 2].map(|()| {
                let polled = Arc::clone(&polled);
                spawn(move || {
                    let take = || polled.poll(|left, _| take_one(left));
                    block_on(pin!(polled.wait(take)));
                })
            });
            for _ in 0..2 {
                polled.poll(|left, cx| {
                    *left += 1;
                    cx.waker().wake_by_ref();
                });
            }
            takers.into_iter().for_each(|taker| taker.join().unwrap());
        });
    }
}
