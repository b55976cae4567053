//! The ports of one queue.
//!
//! The reaper polls the ports that are ready: a job was submitted, the peer has left, or a wake-up
//! has arrived. It polls the ports for which their peers have left hints. It also polls a few ports
//! in any case: the last few endpoints that got messages, and some of the sync events that are
//! watched. So a queue with a thousand idle ports costs as much as a queue with four.
#![expect(unsafe_code, reason = "does Jobs whose memory was lent")]

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::super::counter::Counter;
use super::super::fault::Faults;
use super::super::rdma::Reaper;
use super::super::shared::DeviceShared;
use super::flags::FLAGS;
use super::pollable::Pollable;
use super::ready_set::ReadySet;
use super::rests::{Rests, Round};
use super::timer::Timer;
use super::watched::PolledPorts;
use crate::device::{Completion, Signal};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{BriefGuard, BriefMutex, lock, try_lock};

/// The epoll data of the timer.
const TIMER: u64 = u64::MAX;
/// The bit that marks the epoll data of a port. Data without this bit is the key of a doorbell
/// page; `TIMER` is neither.
const PORT: u64 = 1 << 63;

/// The maximum number of ready ports that are polled in one go.
pub(in super::super) const POLLS: usize = 64;
/// The maximum number of reads of epoll events in one go, 16 events each.
const CLEARS: usize = 4;

/// A queue that busy-polls reads the clock once in this number of turns.
const TURNS: u32 = 1 << 4;

type SharedPort = Arc<dyn Pollable<Reaper>>;

pub(in super::super) struct Ports {
    /// The number of this queue in this process; never 0.
    pub(in super::super) number: u64,
    pub(in super::super) signal: Arc<Signal>,
    pub(in super::super) device: Arc<DeviceShared>,
    pub(in super::super) inline_jobs: Arc<Counter>,
    pub(in super::super) ready_set: ReadySet,
    ports: Mutex<Vec<Option<SharedPort>>>,
    reaper: BriefMutex<Reaper>,
    /// Set if a doorbell page may have lost its last message ring.
    pub(in super::super) stale: AtomicBool,
    watched: PolledPorts<SharedPort>,
    timer: Timer,
    rests: Rests,
    /// The epoll descriptor of the timer and of the sockets by which peers wake this queue.
    sources: Epoll,
}

impl Ports {
    pub(in super::super) fn new(
        device: Arc<DeviceShared>,
        inline_jobs: Arc<Counter>,
        signal: Arc<Signal>,
    ) -> Result<Arc<Ports>> {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let fail = |what: &'static str| move |errno: Errno| Error::os(None, what, errno.into());
        let sources = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(fail("epoll_create1"))?;
        let timer = Timer::new()?;
        let event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, TIMER);
        sources.add(&timer, event).map_err(fail("epoll_ctl"))?;
        Ok(Arc::new(Ports {
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            ready_set: ReadySet::new(Arc::clone(&signal)),
            signal,
            device,
            inline_jobs,
            ports: Mutex::default(),
            reaper: BriefMutex::new(Reaper::default()),
            stale: AtomicBool::new(false),
            watched: PolledPorts::new(),
            timer,
            rests: Rests::new(),
            sources,
        }))
    }

    /// Adds the port that `make` creates for a number.
    pub(in super::super) fn add<P: Pollable<Reaper> + 'static>(
        &self,
        make: impl FnOnce(u32) -> Arc<P>,
    ) -> Result<Arc<P>> {
        let mut ports = self.ports();
        let number = match ports.iter().position(Option::is_none) {
            Some(number) => number,
            None if ports.len() as u32 == FLAGS => {
                let text = format!(
                    "a WorkQ has at most {FLAGS} endpoints and sync events: build another WorkQ"
                );
                return Err(Error::new(ErrorKind::Full, None, text));
            }
            None => {
                ports.push(None);
                ports.len() - 1
            }
        };
        self.watched.reserve(ports.len());
        let port = make(number as u32);
        ports[number] = Some(Arc::clone(&port) as _);
        Ok(port)
    }

    /// Removes a port.
    pub(in super::super) fn remove(&self, number: u32) {
        let mut ports = self.ports();
        // The queue may have ended, and removed all ports.
        let gone = ports.get_mut(number as usize).and_then(Option::take);
        drop(ports);
        drop(gone);
    }

    fn ports(&self) -> MutexGuard<'_, Vec<Option<SharedPort>>> {
        lock(&self.ports)
    }

    fn port(&self, number: u32) -> Option<SharedPort> {
        self.ports().get(number as usize)?.clone()
    }

    pub(in super::super) fn reaper(&self) -> BriefGuard<'_, Reaper> {
        lock(&self.reaper)
    }

    pub(in super::super) fn faults(&self) -> &Faults {
        &self.device.faults
    }

    /// Counts a job that the reaper has finished.
    pub(in super::super) fn count(&self) {
        self.device.own_jobs.fetch_add(1, Ordering::Relaxed);
    }

    /// Makes the queue poll a port, and wakes a thread that sleeps.
    pub(in super::super) fn mark_ready(&self, number: u32) {
        self.ready_set.mark_ready(number);
    }

    /// Has the queue poll a port in its next turn, without waking a thread.
    pub(in super::super) fn set_ready(&self, number: u32) {
        self.ready_set.set(number);
    }

    /// Notes that a job waits for its peer until `due`.
    pub(in super::super) fn note_due(&self, due: Instant) {
        self.timer.note(due);
    }

    /// Polls a port regularly from now on, even while it is not ready.
    pub(in super::super) fn watch<P: Pollable<Reaper> + 'static>(&self, number: u32, port: Arc<P>) {
        self.watched.add(number, port);
    }

    pub(in super::super) fn unwatch(&self, number: u32) {
        self.watched.remove(number);
    }

    #[inline]
    fn ask_watched(&self) -> bool {
        self.watched.ask(&self.ready_set, |port| port.is_due())
    }

    /// Returns true if a poll would find something.
    #[inline]
    pub(in super::super) fn ready(&self) -> bool {
        // A reaper that holds the lock may have taken a port out of the set for a moment.
        let Some(mut reaper) = try_lock(&self.reaper) else {
            return true;
        };
        self.finds(&mut reaper)
    }

    /// Returns true if the reaper would find something.
    #[inline]
    pub(in super::super) fn finds(&self, reaper: &mut Reaper) -> bool {
        self.ready_set.any()
            || reaper.finds()
            || self.timer.is_due()
            || self.ask_watched()
            || self.stale.load(Ordering::Relaxed)
    }

    /// Polls the ports that have something to do.
    ///
    /// # Safety
    ///
    /// As for `Queue::reap`.
    pub(in super::super) unsafe fn reap(
        &self,
        mut guard: BriefGuard<'_, Reaper>,
        out: &mut [Completion],
    ) -> usize {
        let reaper = &mut *guard;
        if self.timer.is_due() {
            self.timer.forget();
            let ports = self.ports();
            let known = (0..).zip(ports.iter()).filter(|(_, port)| port.is_some());
            known.for_each(|(number, _)| self.ready_set.set(number));
        }
        reaper.take_hints(&self.ready_set);
        self.ask_watched();
        let mut filled = 0;
        // The two lists take turns at being first, so that neither waits forever for the other.
        let turn = reaper.next_turn();
        if turn.is_multiple_of(TURNS)
            && let Some(round) = self.rests.goes_on()
        {
            self.give_back(round);
        }
        for first in [turn % 2, (turn + 1) % 2] {
            if first == 0 {
                // SAFETY: as the caller promises.
                filled += unsafe { reaper.poll_polled(&self.ready_set, &mut out[filled..]) };
            } else {
                // SAFETY: as above.
                filled += unsafe { self.poll_ready(reaper, &mut out[filled..]) };
            }
        }
        if self.stale.load(Ordering::Relaxed) && self.stale.swap(false, Ordering::Relaxed) {
            reaper.let_go_of_idle();
        }
        self.ready_set.pass_on();
        if self.ready_set.is_armed() {
            // The timer must include jobs that have begun to wait since the sleeping thread armed.
            self.timer.arm();
        }
        if let Some(changed) = reaper.take_changed() {
            drop(guard);
            changed.iter().for_each(|endpoint| endpoint.notify());
        }
        filled
    }

    /// Polls the ready ports, continuing after the port at which the last call stopped.
    ///
    /// # Safety
    ///
    /// As for `reap`.
    unsafe fn poll_ready(&self, reaper: &mut Reaper, out: &mut [Completion]) -> usize {
        let mut filled = 0;
        for _ in 0..POLLS {
            if filled == out.len() {
                break;
            }
            let Some(number) = self.ready_set.take(reaper.next) else {
                break;
            };
            reaper.next = (number + 1) % FLAGS;
            let Some(port) = self.port(number) else {
                continue;
            };
            // SAFETY: as the caller promises.
            let polled = unsafe { port.poll(reaper, &mut out[filled..]) };
            filled += polled.filled;
            if polled.finished {
                self.remove(number);
            }
            if polled.more {
                self.ready_set.set(number);
                break;
            }
        }
        filled
    }

    /// Requests a signal from the peers and from this process for the thread that arms. The caller
    /// polls afterwards.
    pub(in super::super) fn arm(&self) {
        let mut reaper = self.reaper();
        reaper.arm();
        self.ready_set.arm();
        self.timer.arm();
        if let Some(round) = self.rests.sleeps() {
            self.give_back(round);
        }
    }

    /// Has some ports return memory if they are idle. The caller holds the reaper's lock.
    #[cold]
    fn give_back(&self, mut round: Round) {
        while round.goes_on() {
            // The call is made, and the port perhaps dropped, without the lock of the ports.
            let port = match self.ports().get(round.next) {
                Some(port) => port.clone(),
                None => {
                    round.next = 0;
                    break;
                }
            };
            round.asked(port.is_some_and(|port| port.give_back(round.rested)));
        }
        self.rests.came_to(round.next);
    }

    /// Watches the socket by which the peer of one port sends wake-ups.
    pub(in super::super) fn listen(&self, number: u32, socket: &impl AsFd) -> nix::Result<()> {
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET;
        let event = EpollEvent::new(flags, PORT | u64::from(number));
        self.sources.add(socket, event)
    }

    /// Watches the bell of a doorbell page: the socket by which the peer wakes this queue.
    pub(in super::super) fn listen_to_page(&self, key: u64, bell: &impl AsFd) -> nix::Result<()> {
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
        self.sources.add(bell, EpollEvent::new(flags, key))
    }

    /// Reads the wake-ups that have come.
    pub(in super::super) fn clear(&self) {
        let mut signalled = [EpollEvent::empty(); 16];
        for _ in 0..CLEARS {
            let count = self
                .sources
                .wait(&mut signalled, EpollTimeout::ZERO)
                .unwrap_or(0);
            signalled[..count]
                .iter()
                .for_each(|event| self.rang(event.data()));
            if count < signalled.len() {
                return;
            }
        }
        // The limit of one go is reached. The events are edge-triggered, so no thread would be
        // woken for the remaining ones: the signal makes the next poll read them.
        self.signal.raise();
    }

    fn rang(&self, data: u64) {
        if data == TIMER {
            self.timer.rang();
        } else if data & PORT == 0 {
            let read_bell = self.reaper().rang(data);
            // The bell is read without the lock.
            if let Some(read_bell) = read_bell {
                read_bell();
            }
        } else {
            let number = (data & !PORT) as u32;
            if let Some(port) = self.port(number) {
                port.rang();
                self.ready_set.set(number);
            }
        }
    }

    /// Ends all ports, since the queue is gone. No more completions are returned.
    pub(in super::super) fn end(&self) {
        let ports = std::mem::take(&mut *self.ports());
        ports.iter().flatten().for_each(|port| port.end());
        self.watched.clear();
        let reaper = std::mem::take(&mut *self.reaper());
        drop((ports, reaper));
    }
}

impl AsFd for Ports {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.sources.0.as_fd()
    }
}
