//! Counts how often a queue signals.
//!
//! The `Signal` is an eventfd, whose counter is exact. A queue's own descriptor is polled by
//! edge-triggered epoll, as the WorkQ does: each event on it is one edge.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use tokio_doca::device::contract::{Queue, Signal};

const SIGNAL: u64 = 0;
const OWN: u64 = 1;

pub(crate) struct Signals {
    epoll: Epoll,
    signal: Arc<Signal>,
}

impl Signals {
    pub(crate) fn new(queue: &dyn Queue, signal: Arc<Signal>) -> Signals {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("epoll_create1");
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
        epoll
            .add(signal.as_fd(), EpollEvent::new(flags, SIGNAL))
            .expect("an eventfd can be polled");
        if let Some(fd) = queue.event_fd() {
            epoll
                .add(fd, EpollEvent::new(flags, OWN))
                .expect("event_fd is a descriptor that epoll takes");
        }
        Signals { epoll, signal }
    }

    /// Returns the number of signals since the last call.
    pub(crate) fn count(&self) -> u64 {
        self.wait(EpollTimeout::ZERO)
    }

    /// Waits for a signal. Returns 0 if none comes before the deadline.
    pub(crate) fn wait_for_one(&self, deadline: Duration) -> u64 {
        let end = Instant::now() + deadline;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let timeout = EpollTimeout::try_from(left).unwrap_or(EpollTimeout::MAX);
            let count = self.wait(timeout);
            if count > 0 || left.is_zero() {
                return count;
            }
        }
    }

    fn wait(&self, timeout: EpollTimeout) -> u64 {
        let mut events = [EpollEvent::empty(); 2];
        // An `epoll_wait` that a POSIX signal interrupts counts as no signal of the queue.
        let count = self.epoll.wait(&mut events, timeout).unwrap_or(0);
        events[..count]
            .iter()
            .map(|event| match event.data() {
                OWN => 1,
                _ => self.read_signal(),
            })
            .sum()
    }

    fn read_signal(&self) -> u64 {
        let mut counter = [0; 8];
        match nix::unistd::read(&*self.signal, &mut counter) {
            Ok(_) => u64::from_ne_bytes(counter),
            Err(_) => 0,
        }
    }
}
