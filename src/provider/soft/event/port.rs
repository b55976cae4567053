//! A sync event on a queue.
#![expect(unsafe_code, reason = "promises what a Submit promises")]

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Poll;

use super::super::fault::Fault;
use super::counter::SoftEvent;
use super::ports::EventPorts;
use super::waits::Waits;
use crate::device::{
    Completion, EventCounter, EventJob, EventPort, EventWait, Job, Submit, Submitted, Token,
};
use crate::error::{ErrorKind, JobError};
use crate::sync::atomic::{AtomicBool, AtomicUsize};
use crate::sync::{Mutex, lock};

pub(super) struct Port {
    number: u64,
    pub(super) event: Arc<SoftEvent>,
    ports: Arc<EventPorts>,
    /// The highest value at which a wait may begin or end.
    highest: u64,
    /// It stands in line to be looked at.
    pub(super) raised: AtomicBool,
    /// Where it stands among those that are watched, and one; 0 if it does not. Changed under their lock.
    pub(super) watched: AtomicUsize,
    inner: Mutex<Inner>,
}

impl Drop for Port {
    fn drop(&mut self) {
        self.ports.forget(self.number);
    }
}

struct Inner {
    waits: Waits,
    /// Jobs that were not done inline.
    jobs: VecDeque<(Token, EventJob, Fault)>,
}

/// Where a look puts what is over.
pub(super) struct Out<'a> {
    pub(super) to: &'a mut [Completion],
    pub(super) filled: usize,
}

impl Out<'_> {
    pub(super) fn is_full(&self) -> bool {
        self.filled == self.to.len()
    }

    fn put(&mut self, token: Token, result: Result<u64, JobError>) {
        self.to[self.filled] = Completion::new(token, result);
        self.filled += 1;
    }
}

impl Port {
    pub(super) fn new(
        number: u64,
        event: Arc<SoftEvent>,
        ports: Arc<EventPorts>,
        waits: u32,
    ) -> Port {
        let (depth, highest) = (ports.depth(), ports.highest_value());
        Port {
            number,
            event,
            ports,
            highest,
            raised: AtomicBool::new(false),
            watched: AtomicUsize::new(0),
            inner: Mutex::new(Inner {
                waits: Waits::new(waits),
                jobs: VecDeque::with_capacity(depth),
            }),
        }
    }

    /// It has something to do.
    pub(super) fn raise(self: &Arc<Self>) {
        self.ports.raise(self);
    }

    /// The doorbells of the other side are heard.
    pub(super) fn listen(&self, socket: &OwnedFd) {
        self.ports.listen(self.number, socket);
    }

    /// Does Jobs, and ends waits, as far as there is room.
    pub(super) fn look(&self, out: &mut Out<'_>) {
        let mut inner = lock(&self.inner);
        while !out.is_full()
            && let Some((token, job, fault)) = inner.jobs.pop_front()
        {
            let result = match fault {
                Fault::Lost => continue,
                _ => fault.error().map_or_else(|| self.event.operate(&job), Err),
            };
            self.ports.count();
            out.put(token, result);
        }
        self.end_waits(&mut inner.waits, out);
    }

    /// Ends the waits that are over, and says what the others wait for.
    fn end_waits(&self, waits: &mut Waits, out: &mut Out<'_>) {
        if waits.is_empty() {
            return;
        }
        let mut said = None;
        loop {
            let found = self.end_some(waits, out);
            // It is looked at again, then.
            if out.is_full() {
                return;
            }
            let lowest = waits.lowest();
            // The look comes after it was said: whoever changes the counter afterwards has seen it.
            if !found && said == Some(lowest) {
                break;
            }
            self.event.say(lowest);
            said = Some(lowest);
        }
        if waits.is_empty() {
            self.ports.unwatch(self);
        }
    }

    /// The value of the event, or why every wait fails.
    fn waited_value(&self) -> Result<u64, JobError> {
        self.event.check_waits()?;
        self.check_value(self.event.value())
    }

    /// Refuses a value at which the device does not wait.
    #[inline]
    fn check_value(&self, value: u64) -> Result<u64, JobError> {
        match value > self.highest {
            true => Err(JobError::event_too_high(value, self.highest)),
            false => Ok(value),
        }
    }

    /// Whether some were over.
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

/// The handle that the crate has.
pub(super) struct SoftPort(pub(super) Arc<Port>);

// SAFETY: jobs of a sync event name no memory; each that was accepted is put once, and taken once.
unsafe impl Submit for SoftPort {
    #[inline]
    unsafe fn try_inline(&self, job: Job<'_>) -> Option<Result<u64, JobError>> {
        let Job::Event(job) = job else { return None };
        let port = &*self.0;
        if !port.ports.does_inline() {
            return None;
        }
        port.ports.count_inline();
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
            let fault = port.ports.next_fault();
            if fault == Fault::QueueFull {
                refused = Some(JobError::device(ErrorKind::Again, 0));
                break;
            }
            inner.jobs.push_back((token, job, fault));
            accepted += 1;
        }
        drop(inner);
        if accepted > 0 {
            port.raise();
        }
        Submitted { accepted, refused }
    }
}

impl EventPort for SoftPort {
    #[inline]
    fn try_wait(&self, wait: &EventWait) -> Option<Poll<Result<u64, JobError>>> {
        let port = &*self.0;
        if !port.ports.does_inline() {
            return None;
        }
        Some(match port.event.look(wait) {
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
        drop(inner);
        if first {
            port.ports.watch(port);
        }
        // The look comes after it was said.
        if port.event.is_due() {
            port.raise();
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
            port.ports.unwatch(port);
        }
    }

    fn retire(&self) {
        let port = &*self.0;
        let mut inner = lock(&port.inner);
        while inner.waits.take_any().is_some() {}
        port.event.say(inner.waits.lowest());
        drop(inner);
        port.ports.unwatch(port);
    }
}
