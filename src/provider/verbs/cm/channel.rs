//! The event channel of the process, and whom its events are for.
#![expect(unsafe_code, reason = "calls librdmacm")]

use std::cell::Cell;
use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use super::super::adapter::{Context, check_ptr, wake};
use super::super::ffi::*;
use super::super::transport::set_nonblocking;
use super::event::{CmEvent, What};
use super::id::CmId;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{EachProcess, Process, Threads, lock, log};

/// Whom the events of an id are for.
pub(in super::super) trait Handler: Send + Sync {
    /// On the watcher's thread, among others: it does not wait.
    fn handle(self: Arc<Self>, event: CmEvent);

    /// A peer asks for a connection. The id is that of the connection, which whoever drops it
    /// refuses. As for `handle`, and it wakes the application at most.
    fn offer(&self, _id: CmId, _event: CmEvent) {}
}

/// When it is too late, and who is told then.
type Deadline = (Instant, Arc<dyn Handler>);

/// librdmacm, with the event channel of this process, which stays open until the process ends.
pub(in super::super) struct Cm {
    pub(super) table: &'static CmTable,
    channel: NonNull<rdma_event_channel>,
    /// A child of fork(2) has a copy, and its parent's ids are not its own.
    process: Process,
    handlers: Mutex<HashMap<u64, Weak<dyn Handler>>>,
    /// Those that shall be notified once the time has passed. They are kept until then.
    waiting: Mutex<HashMap<u64, Deadline>>,
}

// SAFETY: functions of librdmacm may be called from any thread, and a channel stays where it is.
unsafe impl Send for Cm {}
// SAFETY: as above.
unsafe impl Sync for Cm {}

static CM: OnceLock<Cm> = OnceLock::new();

/// Its own threads: those of [`elsewhere`](crate::sync::elsewhere) may all wait for peers, while
/// events of other connections are to be heard at once.
static THREADS: EachProcess<Threads> = EachProcess::new(|| Threads::new(8));

/// Those that may wait for peers that do not answer, over iWARP: neither the steps of other
/// connections wait for them, nor calls of the application's.
static WAITING: EachProcess<Threads> = EachProcess::new(|| Threads::new(64));

/// Does what waits for the peer of a connection that the kernel makes over iWARP.
pub(in super::super) fn wait_for_peer(run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    WAITING.get().run(Box::new(run))
}

thread_local! {
    /// This is one of `THREADS`.
    static STEPS: Cell<bool> = const { Cell::new(false) };
}

/// Does what may block, and waits for no peer.
pub(in super::super) fn step(run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    THREADS.get().run(Box::new(|| {
        STEPS.set(true);
        run();
    }))
}

/// As `step`, for what takes no lock: on a thread of steps it is done at once.
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
        // Before any lock: a child may have inherited a locked one. It has no watcher either, and
        // opens no adapter of its own.
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
        // It waits for the descriptor from now on.
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
        // SAFETY: just made.
        set_nonblocking(unsafe { (*channel.as_ptr()).fd })?;
        Ok(Cm {
            table,
            channel,
            process: Process::current(),
            handlers: Mutex::default(),
            waiting: Mutex::default(),
        })
    }

    pub(super) fn channel(&self) -> *mut rdma_event_channel {
        self.channel.as_ptr()
    }

    pub(super) fn is_forked(&self) -> bool {
        !self.process.is_current()
    }

    /// Returns a number of an id's, which no other has or had.
    pub(super) fn next_number() -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        NEXT.fetch_add(1, Relaxed)
    }

    pub(super) fn set_handler(&self, number: u64, handler: Weak<dyn Handler>) {
        lock(&self.handlers).insert(number, handler);
    }

    pub(super) fn set_deadline(&self, number: u64, until: Instant, handler: Arc<dyn Handler>) {
        let mut waiting = lock(&self.waiting);
        // The watcher wakes for the earliest one: most are later than those before them.
        let is_first = waiting.values().all(|(other, _)| until < *other);
        waiting.insert(number, (until, handler));
        drop(waiting);
        if is_first {
            wake();
        }
    }

    pub(super) fn clear_deadline(&self, number: u64) {
        // Dropped outside of the lock: it may be the last handle.
        let kept = lock(&self.waiting).remove(&number);
        drop(kept);
    }

    pub(super) fn forget(&self, number: u64) {
        lock(&self.handlers).remove(&number);
    }

    fn handler(&self, number: u64) -> Option<Arc<dyn Handler>> {
        lock(&self.handlers).get(&number)?.upgrade()
    }

    /// Reads an event, acknowledges it, and passes it on. Returns whether there was one.
    fn next_event(&'static self) -> bool {
        let mut read = ptr::null_mut();
        // SAFETY: the channel is open; the pointer is this function's.
        if unsafe { (self.table.get_cm_event)(self.channel(), &mut read) } != 0 {
            return false;
        }
        // SAFETY: read above, and not acknowledged.
        let raw = unsafe { *read };
        // SAFETY: as above.
        let event = unsafe { CmEvent::of(&raw) };
        let (about, new) = match event.what {
            What::Request => (raw.listen_id, NonNull::new(raw.id)),
            _ => (raw.id, None),
        };
        // SAFETY: an id is not destroyed before its events are acknowledged.
        let number = unsafe { (*about).context }.addr() as u64;
        // SAFETY: the id of a request is nobody's before, and no other party reads the channel.
        let new = new.map(|id| unsafe { CmId::of_request(self, id) });
        // SAFETY: read above; nothing of it is used after this.
        unsafe { (self.table.ack_cm_event)(read) };
        match (self.handler(number), new) {
            (Some(handler), Some(id)) => handler.offer(id, event),
            (Some(handler), None) => handler.handle(event),
            // Whom it was for has gone.
            (None, _) => {}
        }
        true
    }
}

fn current() -> Option<&'static Cm> {
    CM.get().filter(|cm| !cm.is_forked())
}

/// Returns what the watcher waits for, once something has used the connection manager.
pub(in super::super) fn channel_fd() -> Option<BorrowedFd<'static>> {
    let channel = current()?.channel();
    // SAFETY: the channel stays open until the process ends.
    let fd = unsafe { (*channel).fd };
    // SAFETY: as above.
    Some(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Events that are read before others have their turn.
const TURN: usize = 64;

/// Reads events, up to [`TURN`] of them. Returns whether reading has failed: it must not be tried
/// again at once.
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

/// Tells those whose time has passed. Returns in how long to come again.
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
