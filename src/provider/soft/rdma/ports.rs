//! The endpoints of one queue: which of them have something to do, and what that comes to.
//!
//! A look goes to those that were ready (a Job was submitted, the peer has left, ..), those that
//! their peers hinted at, and those that are *polled*: the last few that got messages, which are
//! looked at without being hinted at. So a queue with a thousand idle endpoints costs what one with
//! four does, and its peers' messages cost a hint more if it does not look at them by itself.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use super::super::bell;
use super::super::counter::Counter;
use super::super::fault::Faults;
use super::super::shared::DeviceShared;
use super::doorbell::{Bell, DoorbellOwner, DoorbellPage, FLAGS, ReadySet};
use super::reaper::Reaper;
use super::state::Shared;
use crate::device::{EndpointConfig, Signal};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::lock;

/// What the timer says of itself.
const TIMER: u64 = u64::MAX;

pub(in super::super) struct Ports {
    /// Of this queue, in this process; never 0.
    pub(super) number: u64,
    pub(super) signal: Arc<Signal>,
    device: Arc<DeviceShared>,
    inline_jobs: Arc<Counter>,
    depth: u32,
    pub(super) ready_set: ReadySet,
    pub(super) endpoints: Mutex<Vec<Option<Arc<Shared>>>>,
    reaper: Mutex<Reaper>,
    /// A doorbell page may have no message ring any more.
    pub(super) stale: AtomicBool,
    /// What rings for the queue from outside.
    sources: Arc<Epoll>,
    timer: TimerFd,
    /// The first time limit of a Job that waits for a peer, in nanoseconds since `built`; none: `u64::MAX`.
    pub(super) due: AtomicU64,
    /// What the timer is set to.
    timed: AtomicU64,
    built: Instant,
}

impl Ports {
    pub(in super::super) fn new(
        device: Arc<DeviceShared>,
        inline_jobs: Arc<Counter>,
        depth: u32,
        signal: Arc<Signal>,
        sources: Arc<Epoll>,
    ) -> Result<Arc<Ports>> {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let fail = |what: &'static str| move |errno: Errno| Error::os(None, what, errno.into());
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer =
            TimerFd::new(ClockId::CLOCK_MONOTONIC, flags).map_err(fail("timerfd_create"))?;
        let event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, TIMER);
        sources.add(&timer, event).map_err(fail("epoll_ctl"))?;
        Ok(Arc::new(Ports {
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            ready_set: ReadySet::new(Arc::clone(&signal)),
            signal,
            device,
            inline_jobs,
            depth,
            endpoints: Mutex::default(),
            reaper: Mutex::default(),
            stale: AtomicBool::new(false),
            sources,
            timer,
            due: AtomicU64::new(u64::MAX),
            timed: AtomicU64::new(u64::MAX),
            built: Instant::now(),
        }))
    }

    /// An endpoint of the queue.
    pub(super) fn add(self: &Arc<Self>, config: EndpointConfig) -> Result<Arc<Shared>> {
        let mut endpoints = self.endpoints();
        let number = match endpoints.iter().position(Option::is_none) {
            Some(number) => number,
            None if endpoints.len() as u32 == FLAGS => {
                let text = format!("a WorkQ has at most {FLAGS} endpoints: build another WorkQ");
                return Err(Error::new(ErrorKind::Full, None, text));
            }
            None => {
                endpoints.push(None);
                endpoints.len() - 1
            }
        };
        let shared = Arc::new(Shared::new(Arc::clone(self), number as u32, config));
        endpoints[number] = Some(Arc::clone(&shared));
        Ok(shared)
    }

    pub(super) fn endpoints(&self) -> MutexGuard<'_, Vec<Option<Arc<Shared>>>> {
        lock(&self.endpoints)
    }

    pub(super) fn reaper(&self) -> MutexGuard<'_, Reaper> {
        lock(&self.reaper)
    }

    pub(super) fn endpoint(&self, number: u32) -> Option<Arc<Shared>> {
        self.endpoints().get(number as usize)?.clone()
    }

    pub(super) fn depth(&self) -> usize {
        self.depth as usize
    }

    pub(super) fn faults(&self) -> &Faults {
        &self.device.faults
    }

    /// Jobs of the queue that were done inline.
    pub(super) fn inline_jobs(&self) -> &Arc<Counter> {
        &self.inline_jobs
    }

    /// A Job was finished by who looks.
    pub(super) fn count(&self) {
        self.device.own_jobs.fetch_add(1, Ordering::Relaxed);
    }

    /// An endpoint has something to do: who sleeps is woken.
    pub(super) fn mark_ready(&self, number: u32) {
        self.ready_set.mark_ready(number);
    }

    /// A Job waits for its peer until then.
    pub(super) fn note_due(&self, due: Instant) {
        let due = due.saturating_duration_since(self.built).as_nanos() as u64;
        self.due.fetch_min(due, Ordering::SeqCst);
    }

    /// Whether the time of one is over.
    pub(super) fn is_due(&self) -> bool {
        let due = self.due.load(Ordering::Relaxed);
        due != u64::MAX && self.built.elapsed().as_nanos() as u64 >= due
    }

    /// Whether a look would find something.
    #[inline]
    pub(in super::super) fn ready(&self) -> bool {
        // First: who looks has taken out what it puts back.
        let Ok(reaper) = self.reaper.try_lock() else {
            return true;
        };
        self.ready_set.any()
            || reaper
                .polled
                .iter()
                .any(|polled| polled.watch.finds(&polled.messages))
            || reaper.doorbells.iter().any(|doorbell| doorbell.is_hinted())
            || self.is_due()
    }

    /// Whoever arms will be rung for: by the peers, and by this process. The look comes after it.
    pub(in super::super) fn arm(&self) {
        let reaper = self.reaper();
        for doorbell in reaper.doorbells.iter() {
            doorbell.arm();
        }
        self.ready_set.arm();
        self.set_timer();
    }

    /// The timer rings when the time of a Job is over. Under the lock of the reaper: the last one that is set is the right one.
    pub(super) fn set_timer(&self) {
        let due = self.due.load(Ordering::SeqCst);
        if due == u64::MAX || self.timed.swap(due, Ordering::SeqCst) == due {
            return;
        }
        let now = self.built.elapsed().as_nanos() as u64;
        let left = Duration::from_nanos(due.saturating_sub(now).max(1));
        let once = Expiration::OneShot(TimeSpec::from_duration(left));
        if let Err(errno) = self.timer.set(once, TimerSetTimeFlags::empty()) {
            tracing::error!(%errno, "a time limit cannot be kept");
        }
    }

    /// Reads what rang.
    pub(in super::super) fn rang(&self, data: u64) {
        if data == TIMER {
            let mut read = [0; 8];
            let _ = nix::unistd::read(&self.timer, &mut read);
            self.timed.store(u64::MAX, Ordering::SeqCst);
            return;
        }
        let doorbell = {
            let reaper = self.reaper();
            reaper
                .doorbells
                .iter()
                .find(|doorbell| doorbell.key == data)
                .cloned()
        };
        // Outside of the lock.
        if let Some(doorbell) = doorbell
            && let Bell::Socket(socket) = doorbell.bell()
            && let Some(socket) = socket.get()
        {
            bell::drain(socket);
        }
    }

    /// The peer's bell has come: it wakes who sleeps, and its end ends the connections of the
    /// doorbell page.
    pub(super) fn add_bell(&self, doorbell: &Arc<DoorbellPage>) -> Result<()> {
        let Bell::Socket(socket) = doorbell.bell() else {
            return Ok(());
        };
        let Some(socket) = socket.get() else {
            return Ok(());
        };
        let event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, doorbell.key);
        let added = self.sources.add(socket, event);
        added
            .and_then(|()| doorbell.watch_bell())
            .map_err(|errno| Error::os(None, "epoll_ctl", errno.into()))
    }

    /// The queue is gone: nothing is handed out any more.
    pub(in super::super) fn end(&self) {
        let endpoints = std::mem::take(&mut *self.endpoints());
        for shared in endpoints.iter().flatten() {
            shared.retire();
        }
        let reaper = std::mem::take(&mut *self.reaper());
        drop((endpoints, reaper));
    }
}

impl DoorbellOwner for Ports {
    fn mark_ready(&self, endpoint: u32) {
        Ports::mark_ready(self, endpoint);
    }

    /// The next look lets go of the doorbell page.
    fn note_idle(&self) {
        self.stale.store(true, Ordering::Relaxed);
    }
}
