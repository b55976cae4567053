//! A stream over RDMA, and the tasks that send what it has accepted or owes.
//!
//! One of these tasks runs on the runtime of the stream. If the stream is polled on another
//! runtime, a second task runs there, since each of the two runtimes may have ended, or may not be
//! driven.
//!
//! The application and these tasks use the [`Core`] in turn. While there is nothing to send, the
//! stream holds the Core, and the tasks do not poll it. Otherwise the Core is in [`Shared`], and
//! the one that uses it takes it out, so that no code of the application runs under a lock. A task
//! that finds that the Core was taken out is woken once it is back.
//!
//! Invariant: when the Core is in `Shared` with something to send, it was polled after `has_rest`
//! was set, with the waker of all tasks of the stream. So the event for which it waits wakes the
//! tasks, which are registered or about to be polled. If the Core could not wait where it was
//! polled, it has woken them.

use std::future::poll_fn;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use tokio::runtime::{self, Handle};
use tokio::task::JoinHandle;

use crate::error::JobError;
use crate::mem::Buf;
use crate::reactor::budget;
use crate::stream::core::{Core, StreamRdma, StreamStats, Unread};
use crate::stream::wakers::{OwnTask, Wakers};
use crate::sync::{Mutex, lock};

/// The index of a stream's task on the stream's own runtime (`OWN`), and on another one (`GUEST`).
const OWN: usize = 0;
const GUEST: usize = 1;

pub(in crate::stream) struct RdmaLink {
    /// `None` while the Core is in `shared`, or a task uses it.
    core: Option<Box<Core>>,
    /// The frame that the application reads.
    front: Option<Unread>,
    shared: Arc<Shared>,
    /// The task on the runtime of the stream. It ends with that runtime.
    own: Option<JoinHandle<()>>,
    /// The task on the runtime on which the stream was polled last, if that is another one.
    guest: Option<Task>,
    /// The runtime on which the stream was made.
    runtime: Handle,
    /// True once the stream is only polled to close it.
    ends: bool,
    view: StreamRdma,
    max_message_size: usize,
}

struct Shared {
    state: Mutex<State>,
    wakers: Arc<Wakers>,
}

#[derive(Default)]
struct State {
    core: Option<Box<Core>>,
    /// Set if the application has found the Core taken out (`missed`), or if a task has
    /// (`tasks_missed`).
    missed: bool,
    tasks_missed: bool,
    /// Set if the reader has returned its frame, or has given up its turn in line, while the Core
    /// was taken out. The value is true if the reader still holds a frame.
    popped: Option<bool>,
    /// The statistics of the Core when a task took it out.
    stats: StreamStats,
    /// True once the stream was dropped.
    dropped: bool,
}

/// A task of the stream on another runtime than its own.
struct Task {
    handle: JoinHandle<()>,
    runtime: runtime::Id,
}

impl RdmaLink {
    pub(super) fn new(mut core: Box<Core>, wakers: &Arc<Wakers>, runtime: Handle) -> RdmaLink {
        core.connected();
        RdmaLink {
            view: core.view(),
            max_message_size: core.max_message_size(),
            core: Some(core),
            front: None,
            shared: Arc::new(Shared {
                state: Mutex::default(),
                wakers: Arc::clone(wakers),
            }),
            own: None,
            guest: None,
            runtime,
            ends: false,
        }
    }

    /// Returns the part of the connection that the application may use.
    pub(super) fn view(&self) -> &StreamRdma {
        &self.view
    }

    pub(super) fn stats(&self) -> StreamStats {
        match &self.core {
            Some(core) => core.stats(),
            None => {
                let state = lock(&self.shared.state);
                state.core.as_ref().map_or(state.stats, |core| core.stats())
            }
        }
    }

    /// Returns the maximum number of bytes of a message.
    pub(super) fn max_message_size(&self) -> usize {
        self.max_message_size
    }

    /// Calls `poll` with the Core, and has the background tasks of the stream send what is left to
    /// send. Waits while a task uses the Core.
    #[inline]
    fn poll_with<T>(
        &mut self,
        cx: &mut Context<'_>,
        poll: impl FnOnce(&mut Core, &mut Option<Unread>, &mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        if self.core.is_none() && !self.take_back(|state| state.missed = true) {
            return Poll::Pending;
        }
        let core = self.core.as_mut().expect("it was taken");
        let polled = poll(core, &mut self.front, cx);
        if core.has_rest() && !self.ends {
            self.hand_over(cx);
        }
        polled
    }

    /// Takes the Core back. If a task uses it, calls `note` to leave that task a message, and
    /// returns false.
    #[cold]
    fn take_back(&mut self, note: impl FnOnce(&mut State)) -> bool {
        let mut state = lock(&self.shared.state);
        let Some(core) = state.core.take() else {
            note(&mut state);
            return false;
        };
        drop(state);
        self.taken_back(core);
        true
    }

    fn taken_back(&mut self, core: Box<Core>) {
        self.shared.wakers.has_rest.store(false, Ordering::Relaxed);
        self.core = Some(core);
    }

    /// Puts the Core where the tasks find it, unless it can send everything now.
    #[cold]
    fn hand_over(&mut self, cx: &mut Context<'_>) {
        let Some(mut core) = self.core.take() else {
            return;
        };
        self.shared.wakers.has_rest.store(true, Ordering::Relaxed);
        core.poll_rest(cx);
        if !core.has_rest() {
            return self.taken_back(core);
        }
        self.attend();
        let mut state = lock(&self.shared.state);
        state.core = Some(core);
        let missed = std::mem::take(&mut state.tasks_missed);
        drop(state);
        if missed {
            self.shared.wakers.wake_tasks(None);
        }
    }

    /// Spawns the tasks that are missing: one on the runtime of the stream, and one on the runtime
    /// that polls now, if that is another one.
    fn attend(&mut self) {
        let here = self.elsewhere();
        if self.own.is_none() {
            self.own = Some(self.continue_on(OWN, &self.runtime));
        }
        let Some(here) = here.filter(|here| !self.has_guest(here)) else {
            return;
        };
        if let Some(last) = self.guest.take() {
            last.handle.abort();
        }
        self.guest = Some(Task {
            handle: self.continue_on(GUEST, &here),
            runtime: here.id(),
        });
    }

    /// Spawns a task of the stream, which sends the frames that the Core could not send at once.
    fn continue_on(&self, which: usize, runtime: &Handle) -> JoinHandle<()> {
        let shared = Arc::clone(&self.shared);
        let task = shared.wakers.next_task(which);
        runtime.spawn(poll_fn(move |cx| {
            task.register(cx.waker());
            shared.poll(&task)
        }))
    }

    /// Returns the current runtime, if it is not the runtime of the stream.
    fn elsewhere(&self) -> Option<Handle> {
        let here = Handle::try_current().ok();
        here.filter(|here| here.id() != self.runtime.id())
    }

    fn has_guest(&self, here: &Handle) -> bool {
        let mut guest = self.guest.iter();
        guest.any(|task| task.runtime == here.id() && !task.handle.is_finished())
    }

    fn is_attended(&self) -> bool {
        self.own.is_some() && self.elsewhere().is_none_or(|here| self.has_guest(&here))
    }

    /// Waits until there is something to read, or the end of the stream.
    #[inline]
    pub(super) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        if self.front.is_some() {
            return Poll::Ready(Ok(()));
        }
        self.poll_with(cx, Core::poll_fill)
    }

    /// Returns the bytes that can be read at once.
    #[inline]
    pub(super) fn unread(&self) -> &[u8] {
        self.front.as_ref().map_or(&[], Unread::data)
    }

    #[inline]
    pub(super) fn consume(&mut self, len: usize, cx: &mut Context<'_>) {
        let Some(front) = &mut self.front else {
            return;
        };
        front.advance(len);
        if front.data().is_empty() {
            self.front = None;
            self.popped(cx);
        }
    }

    /// Tells the Core that the reader has returned its frame, or has given up its turn in line.
    fn popped(&mut self, cx: &mut Context<'_>) {
        let lends = self.front.is_some();
        if self.core.is_none() && !self.take_back(|state| state.popped = Some(lends)) {
            return;
        }
        _ = self.poll_with(cx, |core, _, cx| {
            core.popped(lends, cx);
            Poll::Ready(())
        });
    }

    /// Takes what is left of the frame that the application reads; `None` at the end of the stream.
    pub(super) fn poll_take_buf(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Buf>, JobError>> {
        self.poll_with(cx, Core::poll_take_buf)
    }

    /// Takes a dropped `recv_buf` out of the line in which it waited for a shared receive Buf.
    pub(super) fn leave_bufs(&mut self, cx: &mut Context<'_>) {
        self.popped(cx);
    }

    /// Sends as many of these bytes as fit into one frame, or copies them into the frame that was
    /// begun. Returns how many bytes were taken; `None` if the stream was closed.
    #[inline]
    pub(super) fn poll_write(
        &mut self,
        slices: &[IoSlice<'_>],
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<usize>, JobError>> {
        if self.core.is_none()
            && let Some(taken) = ready!(self.poll_try_fill(slices, cx))
        {
            return Poll::Ready(Ok(Some(taken)));
        }
        self.poll_with(cx, |core, _, cx| core.poll_write(slices, cx))
    }

    /// Copies what fits of these bytes into the frame that was begun. Returns `None` if there is no
    /// such frame, or if no task would send it.
    fn poll_try_fill(&self, slices: &[IoSlice<'_>], cx: &mut Context<'_>) -> Poll<Option<usize>> {
        if !self.is_attended() {
            return Poll::Ready(None);
        }
        ready!(budget::proceed(cx));
        let mut state = lock(&self.shared.state);
        let core = state.core.as_mut();
        let taken = core.and_then(|core| core.try_fill(slices, cx));
        drop(state);
        budget::spent(taken.unwrap_or_default());
        Poll::Ready(taken)
    }

    /// Sends the data of a Buf as a frame. Returns `None` if the stream was closed.
    pub(super) fn poll_send_buf(
        &mut self,
        buf: &Buf,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<()>, JobError>> {
        self.poll_with(cx, |core, _, cx| core.poll_send_buf(buf, cx))
    }

    /// Waits until the device has everything that was written.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        self.poll_with(cx, |core, _, cx| core.poll_flush(cx))
    }

    /// Sends the end of the stream, and waits until the peer has the whole stream.
    pub(super) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        self.poll_with(cx, |core, _, cx| core.poll_shutdown(cx))
    }

    /// Shuts down a stream that the application does not read any more. The caller also sends what
    /// is left to send.
    pub(super) fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), JobError>> {
        self.ends = true;
        self.front = None;
        self.poll_with(cx, |core, _, cx| core.poll_close(cx))
    }
}

impl Drop for RdmaLink {
    fn drop(&mut self) {
        let mut state = lock(&self.shared.state);
        state.dropped = true;
        let core = state.core.take();
        drop(state);
        let guest = self.guest.iter().map(|task| &task.handle);
        self.own.iter().chain(guest).for_each(JoinHandle::abort);
        drop(core);
    }
}

impl Shared {
    /// Has this task send the frames that can be sent now.
    fn poll(&self, task: &OwnTask) -> Poll<()> {
        let mut state = lock(&self.state);
        if state.dropped {
            return Poll::Ready(());
        }
        let Some(mut core) = state.core.take() else {
            state.tasks_missed = true;
            return Poll::Pending;
        };
        state.stats = core.stats();
        drop(state);
        // A frame that the reader has returned may make the stream owe credits; the tasks then have
        // to send them.
        self.wakers.has_rest.store(true, Ordering::Relaxed);
        let waker = self.wakers.waker();
        let cx = &mut Context::from_waker(&waker);
        // If the Core cannot wait on this runtime, the other task waits, and its registrations stay
        // as they are.
        let hears = core.is_notified_here();
        loop {
            if hears {
                core.poll_rest(cx);
            }
            let mut state = lock(&self.state);
            if state.dropped {
                drop(state);
                return Poll::Ready(());
            }
            if let Some(lends) = state.popped.take() {
                drop(state);
                core.popped(lends, cx);
                continue;
            }
            if !core.has_rest() {
                self.wakers.has_rest.store(false, Ordering::Relaxed);
            }
            state.core = Some(core);
            let missed = std::mem::take(&mut state.missed);
            let tasks_missed = std::mem::take(&mut state.tasks_missed);
            drop(state);
            if missed {
                self.wakers.wake_reader();
                self.wakers.wake_writer();
            }
            if tasks_missed {
                // This task is not woken: otherwise the two tasks would wake each other forever.
                self.wakers.wake_tasks(Some(task));
            }
            return Poll::Pending;
        }
    }
}
