//! A port: a sync event that is attached to a queue.
#![expect(unsafe_code, reason = "promises what a Submit promises")]

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::task::Poll;

use nix::errno::Errno;

use super::super::bell;
use super::super::fault::Fault;
use super::super::ports::{Pollable, Ports, Progress};
use super::counter::{Bell, SoftEvent};
use super::waits::Waits;
use crate::device::{
    Completion, EventCounter, EventJob, EventPort, EventWait, Job, Submit, Submitted, Token,
};
use crate::error::{Error, ErrorKind, JobError, Result as SetUp};
use crate::sync::{Mutex, lock, log_later};

pub(super) struct Port {
    number: u32,
    event: Arc<SoftEvent>,
    ports: Arc<Ports>,
    inner: Mutex<EventPortInner>,
}

struct EventPortInner {
    waits: Waits,
    /// Jobs that were not done inline.
    jobs: VecDeque<(Token, EventJob, Fault)>,
    retired: bool,
    /// True while the queue lists the port: until the port is retired and its jobs are done.
    is_listed: bool,
}

impl EventPortInner {
    /// Returns true, once, if the queue must remove the port.
    fn is_finished(&mut self) -> bool {
        let finished = self.is_listed && self.retired && self.jobs.is_empty();
        self.is_listed &= !finished;
        finished
    }
}

/// The slice into which a poll puts completions.
struct Out<'a> {
    to: &'a mut [Completion],
    filled: usize,
}

impl Out<'_> {
    fn is_full(&self) -> bool {
        self.filled == self.to.len()
    }

    fn put(&mut self, token: Token, result: Result<u64, JobError>) {
        self.to[self.filled] = Completion::new(token, result);
        self.filled += 1;
    }
}

impl Port {
    /// Makes the queue poll the port.
    pub(super) fn mark_ready(&self) {
        self.ports.mark_ready(self.number);
    }

    /// Makes the queue poll the port when the other side sends a wake-up.
    pub(super) fn listen(&self, socket: &impl AsFd) {
        match self.ports.listen(self.number, socket) {
            // This may find the socket registered already: a new socket and a new port both
            // register it.
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(errno) => log_later(move || {
                tracing::error!(%errno, "a peer of a sync event cannot wake this process");
            }),
        }
    }

    fn does_inline(&self) -> bool {
        self.ports.faults().inline_below() > 0
    }

    /// Makes the queue poll the event regularly if another process may change its counter.
    fn watch(self: &Arc<Self>) {
        if self.event.is_shared() {
            self.ports.watch(self.number, Arc::clone(self));
        }
    }

    fn unwatch(&self) {
        if self.event.is_shared() {
            self.ports.unwatch(self.number);
        }
    }

    /// Does jobs and ends waits, as long as `out` has capacity.
    fn serve(&self, inner: &mut EventPortInner, out: &mut Out<'_>) {
        while !out.is_full()
            && let Some((token, job, fault)) = inner.jobs.pop_front()
        {
            let result = match fault {
                Fault::Lost => {
                    self.ports.faults().add_lost(&self.ports.signal);
                    continue;
                }
                _ => fault.error().map_or_else(|| self.event.operate(&job), Err),
            };
            self.ports.count();
            out.put(token, result);
        }
        self.end_waits(&mut inner.waits, out);
    }

    /// Ends the waits whose value the counter has reached, and publishes the value for the other
    /// waits.
    fn end_waits(&self, waits: &mut Waits, out: &mut Out<'_>) {
        if waits.is_empty() {
            return;
        }
        let mut said = None;
        loop {
            let found = self.end_some(waits, out);
            // If `out` is full, the queue polls the port again.
            if out.is_full() {
                return;
            }
            let lowest = waits.lowest();
            // The poll comes after the value was published, so that a side that changes the counter
            // after the poll has seen the published value.
            if !found && said == Some(lowest) {
                break;
            }
            self.event.say(lowest);
            said = Some(lowest);
        }
        if waits.is_empty() {
            self.unwatch();
        }
    }

    /// Returns the value of the event, or the error with which every wait fails.
    fn waited_value(&self) -> Result<u64, JobError> {
        self.event.check_waits()?;
        self.check_value(self.event.value())
    }

    /// Returns an error if the value is higher than the device supports in waits.
    #[inline]
    fn check_value(&self, value: u64) -> Result<u64, JobError> {
        let highest = self.ports.device.highest_value;
        match value > highest {
            true => Err(JobError::event_too_high(value, highest)),
            false => Ok(value),
        }
    }

    /// Ends the waits that are due. Returns true if a wait ended.
    fn end_some(&self, waits: &mut Waits, out: &mut Out<'_>) -> bool {
        let found = self.waited_value();
        let before = out.filled;
        while !out.is_full() {
            let token = match found {
                Ok(value) => waits.take_due(value),
                Err(_) => waits.take_any(),
            };
            let Some(token) = token else { break };
            out.put(token, found);
        }
        out.filled > before
    }
}

impl<R> Pollable<R> for Port {
    unsafe fn poll(self: Arc<Self>, _: &mut R, to: &mut [Completion]) -> Progress {
        let mut out = Out { to, filled: 0 };
        let mut inner = lock(&self.inner);
        self.serve(&mut inner, &mut out);
        Progress {
            filled: out.filled,
            more: out.is_full(),
            finished: inner.is_finished(),
        }
    }

    fn is_due(&self) -> bool {
        self.event.is_due()
    }

    fn rang(&self) {
        let bell = match &self.event.peer().bell {
            Some(Bell::Socket(socket)) => Some(Arc::clone(socket)),
            _ => None,
        };
        // The socket is read without the lock.
        if let Some(socket) = bell {
            bell::drain(&socket);
        }
    }

    /// Does nothing: the crate retires the port itself.
    fn end(&self) {}
}

/// The crate's handle to a port.
pub(in super::super) struct SoftPort(Arc<Port>);

impl SoftPort {
    /// Puts an event on a queue. An event can be on one queue only.
    pub(in super::super) fn open(
        ports: &Arc<Ports>,
        event: Arc<SoftEvent>,
        waits: u32,
    ) -> SetUp<SoftPort> {
        let port = ports.add(|number| {
            Arc::new(Port {
                number,
                event: Arc::clone(&event),
                ports: Arc::clone(ports),
                inner: Mutex::new(EventPortInner {
                    waits: Waits::new(waits),
                    jobs: VecDeque::new(),
                    retired: false,
                    is_listed: true,
                }),
            })
        })?;
        if event.port.set(Arc::downgrade(&port)).is_err() {
            ports.remove(port.number);
            let text = "the sync event is on a WorkQ already";
            return Err(Error::new(ErrorKind::InUse, None, text));
        }
        // A peer may have connected before: see `hang_bell`.
        if let Some(Bell::Socket(socket)) = &event.peer().bell {
            port.listen(socket);
        }
        Ok(SoftPort(port))
    }
}

impl Drop for SoftPort {
    fn drop(&mut self) {
        self.retire();
    }
}

// SAFETY: jobs of a sync event name no memory. Each accepted job is put once, and taken once.
unsafe impl Submit for SoftPort {
    #[inline]
    unsafe fn try_inline(&self, job: Job<'_>) -> Option<Result<u64, JobError>> {
        let Job::Event(job) = job else { return None };
        let port = &*self.0;
        if !port.does_inline() {
            return None;
        }
        port.ports.inline_jobs.add_one();
        Some(port.event.operate(job))
    }

    unsafe fn submit(&self, jobs: &[(Token, Job<'_>)]) -> Submitted {
        let port = &self.0;
        let mut inner = lock(&port.inner);
        let mut accepted = 0;
        let mut refused = None;
        for &(token, job) in jobs {
            let Job::Event(&job) = job else {
                refused = Some(JobError::device(ErrorKind::NotSupported, 0));
                break;
            };
            let fault = port.ports.faults().next();
            if fault == Fault::QueueFull {
                refused = Some(JobError::device(ErrorKind::Again, 0));
                break;
            }
            inner.jobs.push_back((token, job, fault));
            accepted += 1;
        }
        drop(inner);
        if accepted > 0 {
            port.mark_ready();
        }
        Submitted { accepted, refused }
    }
}

impl EventPort for SoftPort {
    #[inline]
    fn try_wait(&self, wait: &EventWait) -> Option<Poll<Result<u64, JobError>>> {
        let port = &*self.0;
        if !port.does_inline() {
            return None;
        }
        Some(match port.event.ask(wait) {
            Ok(Some(value)) => Poll::Ready(port.check_value(value)),
            Ok(None) => match port.check_value(port.event.value()) {
                Ok(_) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            },
            Err(error) => Poll::Ready(Err(error)),
        })
    }

    fn wait(&self, token: Token, wait: EventWait) -> Result<(), JobError> {
        let port = &self.0;
        port.waited_value()?;
        let mut inner = lock(&port.inner);
        let first = inner.waits.is_empty();
        if !inner.waits.insert(token, wait) {
            return Err(JobError::device(ErrorKind::Unexpected, 0));
        }
        port.event.say(inner.waits.lowest());
        // This is done under the lock: once it is released the wait may end, and another port may
        // get the number.
        if first {
            port.watch();
        }
        drop(inner);
        // `is_due` must come after the threshold was published.
        if port.event.is_due() {
            port.mark_ready();
        }
        Ok(())
    }

    fn cancel(&self, token: Token) {
        let port = &*self.0;
        let mut inner = lock(&port.inner);
        if !inner.waits.remove(token) {
            return;
        }
        port.event.say(inner.waits.lowest());
        if inner.waits.is_empty() {
            port.unwatch();
        }
    }

    fn retire(&self) {
        let port = &*self.0;
        let mut inner = lock(&port.inner);
        if inner.retired {
            return;
        }
        inner.retired = true;
        while inner.waits.take_any().is_some() {}
        port.event.say(inner.waits.lowest());
        let is_finished = inner.is_finished();
        port.unwatch();
        drop(inner);
        if is_finished {
            port.ports.remove(port.number);
        }
    }
}
