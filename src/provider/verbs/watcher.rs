//! The watcher: one thread per process that reads the events of adapters, and checks the time
//! limits of connections.
//!
//! Events of a device are read and acknowledged at once, since the object of an unacknowledged
//! event cannot be destroyed (ibv_get_async_event(3)). A side of a reliable connection that only
//! waits does not notice that its peer is gone. So while there are connections, the thread checks
//! their time limits. Otherwise it sleeps.
#![expect(unsafe_code, reason = "calls libibverbs")]

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;
use tracing::{debug, error, warn};

use super::adapter::{Context, event, set_nonblocking, wake};
use super::cm::{self, CmEvent};
use super::connection::EventTargets;
use super::ffi::*;
use crate::error::{Error, ErrorKind, JobError, Reason, Result};
use crate::sync::{Process, lock, log};

struct Watcher {
    /// Wakes the thread after a change.
    wake: &'static EventFd,
    devices: Mutex<Vec<Device>>,
}

struct Device {
    /// `None` for a device that belongs to the application.
    context: Option<Weak<Context>>,
    watched: Arc<EventTargets>,
    /// A duplicate of the device's descriptor. The device closes its own descriptor when it is
    /// dropped, which may happen while this thread waits.
    events: Option<Arc<OwnedFd>>,
}

impl Device {
    fn context(&self) -> Option<Arc<Context>> {
        self.context.as_ref()?.upgrade()
    }

    fn is_open(&self) -> bool {
        match &self.context {
            Some(context) => context.strong_count() > 0,
            // The device and its queues hold the other references.
            None => Arc::strong_count(&self.watched) > 1,
        }
    }
}

static WATCHER: OnceLock<Watcher> = OnceLock::new();

/// How long the thread waits before it retries after a failure, so that it does not spin.
const TROUBLE: Duration = Duration::from_secs(1);

/// Watches a device as long as it is open.
pub(super) fn watch(context: &Arc<Context>, watched: &Arc<EventTargets>) -> Result<()> {
    let events = match context.async_fd() {
        None => None,
        Some(fd) => {
            set_nonblocking(fd)?;
            let own = fd.try_clone_to_owned();
            let own = own.map_err(|error| Error::os(None, "dup of async_fd", error))?;
            Some(Arc::new(own))
        }
    };
    let watcher = start()?;
    lock(&watcher.devices).push(Device {
        context: (!context.is_lent()).then(|| Arc::downgrade(context)),
        watched: Arc::clone(watched),
        events,
    });
    wake();
    Ok(())
}

fn start() -> Result<&'static Watcher> {
    // The process in which the thread runs. If the system refuses a thread, a later call tries
    // again.
    static STARTED: Mutex<Option<Process>> = Mutex::new(None);
    let mut started = lock(&STARTED);
    match (WATCHER.get(), *started) {
        (Some(watcher), Some(process)) if process.is_current() => return Ok(watcher),
        (_, Some(process)) => {
            let text = format!(
                "this process is a fork of process {}, which has had adapters open: open them before there are any, or after execve(2)",
                process.id()
            );
            return Err(Error::new(ErrorKind::BadState, None, text));
        }
        _ => {}
    }
    let wake = event()?;
    let watcher = WATCHER.get_or_init(|| Watcher {
        wake,
        devices: Mutex::default(),
    });
    let thread = std::thread::Builder::new().name("doca-verbs".to_owned());
    thread
        .spawn(|| watcher.run())
        .map_err(|error| Error::new(ErrorKind::NoMemory, None, format!("a thread: {error}")))?;
    *started = Some(Process::current());
    Ok(watcher)
}

impl Watcher {
    fn run(&self) {
        let mut next: Option<Instant> = None;
        loop {
            let closed = self.wait(next);
            if cm::read_events() {
                std::thread::sleep(TROUBLE);
            }
            let mut again = None;
            for (context, watched) in &self.contexts() {
                let is_closed = closed.iter().any(|it| it.as_ptr() == Arc::as_ptr(context));
                read_events(context, watched, is_closed);
                if !context.is_dead() && top_up(watched) {
                    again = Some(TROUBLE);
                }
            }
            self.forget_gone();
            let now = Instant::now();
            let lists = self.lists();
            let ticks = lists.iter().filter_map(|watched| watched.tick(now));
            again = ticks.chain(again).chain(cm::deliver_overdue(now)).min();
            next = again.map(|again| now + again);
        }
    }

    /// Waits for an event, or until `until`. Returns the devices that are gone: the kernel has
    /// closed their events, and all events were read. (Before 6.5, kernels then return `EAGAIN`
    /// from a nonblocking descriptor, and not `EIO`.)
    fn wait(&self, until: Option<Instant>) -> Vec<Weak<Context>> {
        // `events` keeps the descriptors open during the wait.
        let of = |it: &Device| Some((it.context.clone()?, it.events.clone()?));
        let events: Vec<_> = lock(&self.devices).iter().filter_map(of).collect();
        let mut fds: Vec<_> = events
            .iter()
            .map(|(_, fd)| PollFd::new(fd.as_fd(), PollFlags::POLLIN))
            .collect();
        fds.push(PollFd::new(self.wake.as_fd(), PollFlags::POLLIN));
        fds.extend(cm::channel_fd().map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
        let timeout = until.map_or(PollTimeout::NONE, |until| {
            let left = until.saturating_duration_since(Instant::now());
            // The wait is rounded up, since waking too early would cost another one.
            PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
        });
        let closed = match poll(&mut fds, timeout) {
            Ok(_) => {
                let is_closed = |fd: &PollFd| fd.revents() == Some(PollFlags::POLLERR);
                let with = events.iter().zip(&fds).filter(|(_, fd)| is_closed(fd));
                with.map(|((context, _), _)| context.clone()).collect()
            }
            Err(nix::errno::Errno::EINTR) => Vec::new(),
            Err(errno) => {
                log(|| error!(target: "tokio_doca::verbs", %errno, "poll"));
                std::thread::sleep(TROUBLE);
                Vec::new()
            }
        };
        let _ = self.wake.read();
        closed
    }

    /// Removes the devices that were closed, with their descriptors. Returns the open ones, except
    /// for those that the application lent.
    fn contexts(&self) -> Vec<(Arc<Context>, Arc<EventTargets>)> {
        let mut devices = lock(&self.devices);
        devices.retain(Device::is_open);
        let each = devices.iter();
        each.filter_map(|it| Some((it.context()?, Arc::clone(&it.watched))))
            .collect()
    }

    fn lists(&self) -> Vec<Arc<EventTargets>> {
        let devices = lock(&self.devices);
        devices.iter().map(|it| Arc::clone(&it.watched)).collect()
    }

    /// Drops the descriptors of devices that are gone. The kernel has no events of them, and
    /// reports `POLLERR` without end.
    fn forget_gone(&self) {
        for device in lock(&self.devices).iter_mut() {
            if device.context().is_some_and(|it| it.is_removed()) {
                device.events = None;
            }
        }
    }
}

/// Adds memory to the shared receive queues that need it. Returns true if a queue still needs
/// memory.
fn top_up(watched: &EventTargets) -> bool {
    let each = watched.cores().into_iter().map(|core| core.top_up(None));
    each.fold(false, |any, one| any | one)
}

/// Reads all events, acknowledges each of them, and then passes them on.
fn read_events(context: &Context, watched: &EventTargets, closed: bool) {
    if context.async_fd().is_none() || context.is_removed() {
        return;
    }
    // All events are read before the first is passed on: a thread that waits to learn that the
    // device is gone may hold a lock that `pass_on` takes.
    let mut events = Vec::new();
    let mut event = ibv_async_event::default();
    let get_async_event = context.table.get_async_event;
    // SAFETY: the device is open; the event is this function's.
    while unsafe { get_async_event(context.raw(), &mut event) } == 0 {
        // SAFETY: the type says which `element` is valid. Its object is not destroyed before the
        // event is acknowledged.
        let about = unsafe { About::of(&event) };
        // SAFETY: the event was read above, and is acknowledged once.
        unsafe { (context.table.ack_async_event)(&mut event) };
        events.push((about, event.event_type));
    }
    let gone = closed || std::io::Error::last_os_error().raw_os_error() == Some(libc::EIO);
    if gone {
        context.set_removed();
    }
    for (about, kind) in events {
        pass_on(context, watched, about, kind);
    }
    // The event of the removal may have been missed, or may never have come, and no other event
    // will come.
    if gone && !context.is_dead() {
        pass_on(context, watched, About::Device, IBV_EVENT_DEVICE_FATAL);
    }
}

/// The object that an event is about.
enum About {
    RcConnection(u64),
    /// The queue pair with this id has got a message before its peer has reported that it is
    /// ready.
    CameFirst(u64),
    Queue(u64),
    /// Few receives are left of the shared queue with this id.
    SharedReceives(u32),
    /// The port with this number has gone down.
    Port(u8),
    Device,
    Other,
}

impl About {
    /// # Safety
    ///
    /// The event was read, and is not acknowledged yet.
    unsafe fn of(event: &ibv_async_event) -> About {
        match event.event_type {
            IBV_EVENT_QP_FATAL
            | IBV_EVENT_QP_REQ_ERR
            | IBV_EVENT_QP_ACCESS_ERR
            | IBV_EVENT_QP_LAST_WQE_REACHED
            | IBV_EVENT_COMM_EST => {
                // SAFETY: events of these types have a queue pair (ibv_get_async_event(3)).
                let qp = unsafe { event.element.qp };
                // SAFETY: the queue pair is not destroyed before the event is acknowledged.
                let id = unsafe { (*qp).qp_context }.addr() as u64;
                match event.event_type {
                    IBV_EVENT_COMM_EST => About::CameFirst(id),
                    _ => About::RcConnection(id),
                }
            }
            IBV_EVENT_CQ_ERR => {
                // SAFETY: events of this type have a completion queue.
                let cq = unsafe { event.element.cq };
                // SAFETY: as above.
                About::Queue(unsafe { (*cq).cq_context }.addr() as u64)
            }
            IBV_EVENT_SRQ_LIMIT_REACHED => {
                // SAFETY: events of this type have a shared receive queue.
                let srq = unsafe { event.element.srq };
                // SAFETY: as above.
                About::SharedReceives(unsafe { (*srq).srq_context }.addr() as u32)
            }
            IBV_EVENT_PORT_ERR => {
                // SAFETY: events of this type have the number of a port.
                About::Port(unsafe { event.element.port_num } as u8)
            }
            IBV_EVENT_DEVICE_FATAL => About::Device,
            _ => About::Other,
        }
    }
}

fn pass_on(context: &Context, watched: &EventTargets, about: About, kind: u32) {
    let device = &context.name;
    match about {
        About::RcConnection(id) => {
            // A peer or the adapter has broken the rules. A queue pair with a shared receive queue
            // flushes nothing: if it is idle, only the event of its last receive shows that it
            // failed.
            let cause = match kind {
                IBV_EVENT_QP_FATAL => JobError::device(ErrorKind::Driver, kind.into()),
                _ => JobError::of(Reason::PeerFailed),
            };
            for conn in watched.conns() {
                conn.fail_queue_pair(id, cause);
            }
            for core in watched.cores() {
                core.fail_copies(id);
            }
            // The log is written last, as in the other branches, so that no connection waits for a
            // subscriber.
            log(|| debug!(target: "tokio_doca::verbs", device, kind, "a queue pair failed"));
        }
        About::CameFirst(id) => {
            for conn in watched.conns() {
                conn.message_came_first(id);
            }
        }
        About::Queue(id) => {
            for core in watched.cores().iter().filter(|core| core.cq.id() == id) {
                core.cq.set_broken();
                core.request_reap();
            }
            log(|| error!(target: "tokio_doca::verbs", device, "a completion queue failed"));
        }
        About::SharedReceives(id) => {
            for core in watched.cores() {
                core.top_up(Some(id));
            }
        }
        About::Port(port) => {
            if port == context.traits.port {
                for conn in watched.conns() {
                    conn.fail_with_port();
                }
            }
            log(|| warn!(target: "tokio_doca::verbs", device, port, "a port went down"));
        }
        About::Device => {
            context.set_dead();
            for conn in watched.conns() {
                conn.fail_now(JobError::of(Reason::DeviceGone));
            }
            for core in watched.cores() {
                core.request_reap();
            }
            // The kernel assigns a listener at all addresses to no adapter, so that the listener is
            // notified here.
            for listener in watched.listeners() {
                listener.handle(CmEvent::DEVICE_REMOVED);
            }
            let text = "the adapter failed, or was removed";
            log(|| error!(target: "tokio_doca::verbs", device, "{text}"));
        }
        About::Other => {
            log(|| debug!(target: "tokio_doca::verbs", device, kind, "an event of the adapter"));
        }
    }
}
