//! [`EventPortHandle`], a sync event on a WorkQ, and its table of waits.
#![expect(unsafe_code, reason = "is queued in a line, and pins its nodes")]

use std::pin::Pin;
use std::sync::Arc;
use std::task::Waker;

use crate::device::{EventCounter, EventPort, EventWait, Submit};
use crate::error::{JobError, Result};
use crate::reactor::entry_table::Wanted;
use crate::reactor::slots::Outcome;
use crate::reactor::tables::{Ticket, WaitTable};
use crate::reactor::workq::Attachment;
use crate::sync::{Order, WaitNode};

pub(crate) struct EventPortHandle {
    attachment: Attachment,
    event: Arc<dyn EventCounter>,
    port: Arc<dyn EventPort>,
    waits: Arc<WaitTable>,
}

impl EventPortHandle {
    /// Opens a port of `event` on the queue of a context that was attached, for at most `waits`
    /// waits at once.
    pub(crate) fn open(
        attachment: &mut Attachment,
        event: Arc<dyn EventCounter>,
        waits: u32,
    ) -> Result<EventPortHandle> {
        let port = attachment.queue.open_event_port(&event, waits)?;
        let registry = &attachment.shared.core.registry;
        let table = registry.add(None, |numbered| WaitTable::new(waits, numbered));
        let waits = table.inspect_err(|_| port.retire())?;
        attachment.submit_to(Arc::clone(&port) as Arc<dyn Submit>);
        attachment.order = Some(Order::new());
        let port = EventPortHandle {
            attachment: attachment.clone(),
            event,
            port,
            waits,
        };
        attachment.listen()?;
        Ok(port)
    }

    pub(crate) fn event(&self) -> &Arc<dyn EventCounter> {
        &self.event
    }

    /// Asks the device whether the condition of `wait` is met. Returns its outcome, or `Pending`.
    /// Returns `None` if the device cannot be asked without a wait.
    #[inline(always)]
    pub(in crate::reactor) fn ask(&self, wait: &EventWait) -> Option<std::task::Poll<Outcome>> {
        self.port.try_wait(wait)
    }

    /// Asks the counter itself for the outcome of a wait, which works on every device. Returns
    /// `Ok(None)` if the wait has not ended.
    pub(super) fn peek(&self, wait: &EventWait, highest: u64) -> Result<Option<u64>, JobError> {
        let beyond = EventWait {
            threshold: highest,
            mask: u64::MAX,
        };
        let value = match self.event.ask(wait)? {
            Some(value) => Some(value),
            // A mask may hide that the value is too high.
            None => self.event.ask(&beyond)?,
        };
        match value {
            Some(value) if beyond.is_met(value) => Err(JobError::event_too_high(value, highest)),
            value => Ok(value),
        }
    }

    pub(in crate::reactor) fn waits(&self) -> &Arc<WaitTable> {
        &self.waits
    }

    pub(in crate::reactor) fn port(&self) -> &Arc<dyn EventPort> {
        &self.port
    }

    /// Begins a wait on the device. Returns `None` if the table has no free entry.
    pub(in crate::reactor) fn post(&self, wait: EventWait) -> Result<Option<Ticket>, JobError> {
        let Some(ticket) = self.waits.fill() else {
            return Ok(None);
        };
        match self.port.wait(self.waits.token(ticket), wait) {
            Ok(()) => Ok(Some(ticket)),
            Err(error) => {
                self.waits.leave(ticket);
                self.free_on();
                Err(error)
            }
        }
    }

    /// Cancels a wait on the device, and frees its entry.
    pub(super) fn cancel(&self, ticket: Ticket) {
        self.port.cancel(self.waits.token(ticket));
        self.waits.leave(ticket);
        self.free_on();
    }

    /// Notifies the next waiter in line, after an entry was freed.
    pub(super) fn free_on(&self) {
        self.attachment.shared.notify_line(&*self.waits, false);
    }

    /// Leaves the line. If this waiter was notified, the next waiter in line is notified instead.
    pub(in crate::reactor) fn leave(&self, node: Pin<&WaitNode>) {
        if node.is_linked() {
            self.waits.line().leave(node);
            self.free_on();
        }
    }

    /// Puts a wait in line for an entry.
    pub(in crate::reactor) fn enqueue(&self, node: Pin<&WaitNode>, waker: &Waker) {
        // SAFETY: the table is in an Arc, which the EventWaitFuture that has the node reaches
        // through its context, borrowed or owned, until after the node is dropped (field order, and
        // the borrow).
        unsafe { self.waits.line().enqueue(node, waker) };
    }
}

impl Drop for EventPortHandle {
    fn drop(&mut self) {
        self.attachment.shared.core.registry.forget(&*self.waits);
        self.port.retire();
        let shared = &self.attachment.shared;
        if !shared.mode.load().is_busy() {
            // This signals for a turn, whose poll releases what the device had of the event. The
            // poll is not made here, since wakers are code of the application.
            shared.events.raise();
        }
    }
}
