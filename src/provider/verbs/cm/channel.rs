//! The event channel of the process, and the handlers of its events.
#![expect(unsafe_code, reason = "calls librdmacm")]

use std::cell::Cell;
use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use super::super::adapter::{Context, check_ptr, set_nonblocking, wake};
use super::super::ffi::*;
use super::event::{CmEvent, What};
use super::id::CmId;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{EachProcess, Process, Threads, lock, log};

/// A handler of the events of an id.
pub(in super::super) trait Handler: Send + Sync {
    /// Handles an event. This must not wait, since the watcher, among others, calls it.
    fn handle(self: Arc<Self>, event: CmEvent);

    /// Handles a peer's request for a connection, which has this id. Dropping the id refuses the
    /// request. Like `handle`, this must not wait: it only wakes the application.
    fn offer(&self, _id: CmId, _event: CmEvent) {}
}

/// A time limit, and the handler that is notified when it has passed.
type Deadline = (Instant, Arc<dyn Handler>);

/// librdmacm, with the event channel of this process, which stays open until the process ends.
pub(in super::super) struct Cm {
    pub(super) table: &'static CmTable,
    channel: NonNull<rdma_event_channel>,
    /// The process that opened the channel. A child of fork(2) has a copy, and must not use the ids
    /// of its parent.
    process: Process,
    handlers: Mutex<HashMap<u64, Weak<dyn Handler>>>,
    /// The handlers that are notified once their time limit has passed. They are kept until then.
    waiting: Mutex<HashMap<u64, Deadline>>,
}

// SAFETY: functions of librdmacm may be called from any thread, and a channel stays where it is.
unsafe impl Send for Cm {}
// SAFETY: as above.
unsafe impl Sync for Cm {}

static CM: OnceLock<Cm> = OnceLock::new();

/// The threads on which [`step`] runs its functions. They are not those of
/// [`for_peers`](crate::sync::for_peers), which may all wait for peers, while the events of other
/// connections must be handled at once.
static THREADS: EachProcess<Threads> = EachProcess::new(|| Threads::new(8));

/// Threads that may wait for peers which do not answer, over iWARP. Neither the steps of other
/// connections nor calls of the application wait for them.
static WAITING: EachProcess<Threads> = EachProcess::new(|| Threads::new(64));

/// Runs a function that waits for a peer, while the kernel makes a connection over iWARP.
pub(in super::super) fn wait_for_peer(run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    WAITING.get().run(Box::new(run)).map_err(|(error, _)| error)
}

thread_local! {
    /// True if the current thread is one of `THREADS`.
    static STEPS: Cell<bool> = const { Cell::new(false) };
}

/// Runs a function on a thread for such functions: one that may block, but does not wait for a
/// peer.
pub(in super::super) fn step(run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let run = || {
        STEPS.set(true);
        run();
    };
    THREADS.get().run(Box::new(run)).map_err(|(error, _)| error)
}

/// Runs a function that may block and that takes no lock. If this thread is one of [`step`]'s, it
/// runs the function at once; otherwise it passes the function to `step`.
pub(super) fn step_at_once(run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    if STEPS.get() {
        run();
        return Ok(());
    }
    step(run)
}

impl Cm {
    /// # Errors
    ///
    /// `NotSupported` for a device that the application lent, and where the process has no
    /// connection manager: no library, or no support in the kernel. `BadState` in a child of
    /// fork(2).
    pub(in super::super) fn get(context: &Context) -> Result<&'static Cm> {
        // This comes before any lock, since a child of fork may have inherited a locked one. Such a
        // child has no watcher either, and cannot open an adapter.
        if context.is_forked() {
            let text =
                "this process is a fork of one that has the adapter open: open it after execve(2)";
            return Err(Error::new(ErrorKind::BadState, None, text));
        }
        if context.is_lent() {
            let text = "a device over a protection domain of yours does not connect by rdma_cm: open it by its name";
            return Err(Error::new(ErrorKind::NotSupported, None, text));
        }
        static MAKING: Mutex<()> = Mutex::new(());
        let _making = lock(&MAKING);
        if let Some(cm) = CM.get() {
            return Ok(cm);
        }
        let made = Cm::new(context)?;
        let cm = CM.get_or_init(|| made);
        // The watcher waits for the descriptor from now on.
        wake();
        Ok(cm)
    }

    fn new(context: &Context) -> Result<Cm> {
        let none = |why: String| {
            let text = format!("there is no rdma_cm: {why}");
            Error::new(ErrorKind::NotSupported, None, text)
        };
        let table = (context.table.cm)().map_err(none)?;
        // SAFETY: no arguments.
        let made = unsafe { (table.create_event_channel)() };
        let channel = check_ptr("rdma_create_event_channel", made).map_err(|error| {
            none(format!(
                "{error}; is the module rdma_ucm loaded (modprobe rdma_ucm)?"
            ))
        })?;
        let cm = Cm {
            table,
            channel,
            process: Process::current(),
            handlers: Mutex::default(),
            waiting: Mutex::default(),
        };
        set_nonblocking(cm.fd())?;
        Ok(cm)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel stays open until the process ends.
        let fd = unsafe { (*self.channel()).fd };
        // SAFETY: as above.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    pub(super) fn channel(&self) -> *mut rdma_event_channel {
        self.channel.as_ptr()
    }

    pub(super) fn is_forked(&self) -> bool {
        !self.process.is_current()
    }

    /// Returns the number of a new id. No other id has it or had it.
    pub(super) fn next_number() -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        NEXT.fetch_add(1, Relaxed)
    }

    pub(super) fn set_handler(&self, number: u64, handler: Weak<dyn Handler>) {
        lock(&self.handlers).insert(number, handler);
    }

    pub(super) fn set_deadline(&self, number: u64, until: Instant, handler: Arc<dyn Handler>) {
        let mut waiting = lock(&self.waiting);
        // The watcher is woken only if this is the earliest time limit, which is rare.
        let is_first = waiting.values().all(|(other, _)| until < *other);
        waiting.insert(number, (until, handler));
        drop(waiting);
        if is_first {
            wake();
        }
    }

    pub(super) fn clear_deadline(&self, number: u64) {
        // The handler is dropped outside of the lock, since this may be its last handle.
        let kept = lock(&self.waiting).remove(&number);
        drop(kept);
    }

    pub(super) fn forget(&self, number: u64) {
        lock(&self.handlers).remove(&number);
    }

    fn handler(&self, number: u64) -> Option<Arc<dyn Handler>> {
        lock(&self.handlers).get(&number)?.upgrade()
    }

    /// Reads an event, acknowledges it, and passes it on. Returns true if there was one.
    fn next_event(&'static self) -> bool {
        let mut read = ptr::null_mut();
        // SAFETY: the channel is open; the pointer is this function's.
        if unsafe { (self.table.get_cm_event)(self.channel(), &mut read) } != 0 {
            return false;
        }
        // SAFETY: the event was read above, and is not acknowledged.
        let raw = unsafe { *read };
        // SAFETY: as above.
        let event = unsafe { CmEvent::of(&raw) };
        let (about, new) = match event.what {
            What::Request => (raw.listen_id, NonNull::new(raw.id)),
            _ => (raw.id, None),
        };
        // SAFETY: an id is not destroyed before its events are acknowledged.
        let number = unsafe { (*about).context }.addr() as u64;
        // SAFETY: no other code has the id of a request, since no other thread reads the channel.
        let new = new.map(|id| unsafe { CmId::of_request(self, id) });
        // SAFETY: the event was read above, and is not used after this.
        unsafe { (self.table.ack_cm_event)(read) };
        match (self.handler(number), new) {
            (Some(handler), Some(id)) => handler.offer(id, event),
            (Some(handler), None) => handler.handle(event),
            // The handler was dropped, so that the event is ignored.
            (None, _) => {}
        }
        true
    }
}

fn current() -> Option<&'static Cm> {
    CM.get().filter(|cm| !cm.is_forked())
}

/// Returns the descriptor on which the watcher waits, once an endpoint or a listener has used the
/// connection manager.
pub(in super::super) fn channel_fd() -> Option<BorrowedFd<'static>> {
    current().map(Cm::fd)
}

/// The maximum number of events that are read before other sources have their turn.
const TURN: usize = 64;

/// Reads up to [`TURN`] events. Returns true if reading has failed. In that case, the caller must
/// not try again at once.
pub(in super::super) fn read_events() -> bool {
    let Some(cm) = current() else {
        return false;
    };
    for _ in 0..TURN {
        if cm.next_event() {
            continue;
        }
        let error = std::io::Error::last_os_error();
        let is_none = error.kind() == std::io::ErrorKind::WouldBlock;
        if !is_none {
            log(|| tracing::error!(target: "tokio_doca::verbs", %error, "rdma_get_cm_event"));
        }
        return !is_none;
    }
    false
}

/// Notifies the handlers whose time limit has passed. Returns the time until the next limit.
pub(in super::super) fn deliver_overdue(now: Instant) -> Option<Duration> {
    let cm = current()?;
    let mut waiting = lock(&cm.waiting);
    let over = waiting.extract_if(|_, (until, _)| *until <= now);
    let over: Vec<_> = over.map(|(_, (_, handler))| handler).collect();
    let next = waiting.values().map(|(until, _)| *until).min();
    drop(waiting);
    for handler in over {
        handler.handle(CmEvent::TIMED_OUT);
    }
    next.map(|next| next.saturating_duration_since(now))
}
