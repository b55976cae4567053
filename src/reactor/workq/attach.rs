//! Attaches a context to a WorkQ: opens a queue of the context's device, and adds the queue's
//! events to those of the WorkQ.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::handle::WorkQ;
use super::queues::{Attached, check_events};
use super::shared::{Attachment, Shared};
use crate::device::{Device, QueueConfig, Submit};
use crate::error::{Error, ErrorKind, Result};
use crate::reactor::events::Driven;

impl WorkQ {
    /// Returns true if a context of this device is, or was, attached.
    pub(crate) fn has(&self, device: &Device) -> bool {
        self.0.core.queues.find(device).is_some()
    }

    /// Attaches a context of `device`, and returns its attachment. An error does not name a call;
    /// the context adds the name.
    pub(crate) fn attach(&self, device: &Device, event_driven: bool) -> Result<Attachment> {
        let shared = &self.0;
        // The lock is held until the context is attached, so that no mode is set after the check.
        let attaching = shared.attaching();
        check_events(device, event_driven, shared.mode.load(), None)?;
        self.check_can_have(device)?;
        let queues = &shared.core.queues;
        let (index, attached) = match queues.find(device) {
            Some(known) => known,
            None => {
                let added = queues.add(|| open(shared, device, self.depth()))?;
                // The new queue was not armed with the others, so `expected` is cleared. Release:
                // the thread that arms next sees the queue, since all changes of `expected` are
                // exchanges.
                shared.expected.swap(false, Ordering::AcqRel);
                added
            }
        };
        attached.polled.fetch_or(!event_driven, Ordering::Relaxed);
        drop(attaching);
        shared.turn_if_asked();
        // A turn gives back the resources of contexts that were dropped, even if no operation
        // polls.
        if shared.ready() {
            shared.turn();
        }
        Ok(Attachment {
            shared: Arc::clone(shared),
            queue: Arc::clone(&attached.queue),
            device: device.clone(),
            index,
            to: Arc::clone(&attached.queue) as Arc<dyn Submit>,
            finishes_inline: true,
            order: None,
        })
    }

    /// Returns an error if the device cannot be attached: its maximum depth is less than the
    /// WorkQ's, it does not have the WorkQ's completion vector, or the WorkQ was shut down.
    fn check_can_have(&self, device: &Device) -> Result<()> {
        let max_depth = device.info().caps().max_depth;
        if self.depth() > max_depth {
            let (depth, name) = (self.depth(), device.info().name());
            let text = format!("a depth of {depth}, and device {name} takes {max_depth}");
            return Err(Error::new(ErrorKind::InvalidValue, None, text));
        }
        let vectors = device.info().caps().completion_vectors.max(1);
        if self.0.completion_vector >= vectors {
            let (vector, name) = (self.0.completion_vector, device.info().name());
            let text = format!(
                "completion vector {vector}: they are numbered from 0, and device {name} has {vectors}"
            );
            return Err(Error::new(ErrorKind::InvalidValue, None, text));
        }
        if self.is_closed() {
            let text = "the WorkQ was shut down";
            return Err(Error::new(ErrorKind::BadState, None, text));
        }
        Ok(())
    }
}

/// Opens a queue of the device. The caller holds the lock that `attaching` takes.
fn open(shared: &Shared, device: &Device, depth: u32) -> Result<Attached> {
    let mut config = QueueConfig::new(depth, Arc::clone(shared.events.signal()));
    config.completion_vector = shared.completion_vector;
    let queue = device.adapter().open_queue(config)?;
    let mut nested = false;
    if let Some(fd) = queue.event_fd() {
        shared.nest(fd)?;
        nested = true;
    }
    Ok(Attached {
        device: device.clone(),
        polled: AtomicBool::new(false),
        nested: AtomicBool::new(nested),
        queue,
    })
}

impl Attachment {
    /// Adds the queue's descriptor to the event handle, if the queue has one by now. The caller has
    /// opened an endpoint or a port of a sync event, for which a queue may open a descriptor.
    pub(in crate::reactor) fn listen(&self) -> Result<()> {
        let shared = &self.shared;
        let attaching = shared.attaching();
        let mut queues = shared.core.queues.iter();
        let attached = queues.nth(usize::from(self.index)).expect("it is attached");
        if attached.nested.load(Ordering::Relaxed) {
            return Ok(());
        }
        let Some(fd) = self.queue.event_fd() else {
            return Ok(());
        };
        shared.nest(fd)?;
        attached.nested.store(true, Ordering::Relaxed);
        drop(attaching);
        shared.turn_if_asked();
        Ok(())
    }
}
