//! How a stream waits in line for one of the slots that streams may hold.

use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use pin_project::pin_project;

use crate::error::JobError;
use crate::reactor::entry_table::Wanted;
use crate::reactor::spin::Spin;
use crate::reactor::workq::{Attachment, WorkQ};
use crate::sync::WaitNode;

/// The waiter of a stream in line for a slot, pinned in the state of the stream's sending side.
#[pin_project]
pub(crate) struct StreamSlotWaiter {
    // The list lies in the WorkQ, whose handle is dropped after the node.
    #[pin]
    node: WaitNode,
    workq: WorkQ,
    spin: Spin,
}

impl StreamSlotWaiter {
    pub(crate) fn new(workq: WorkQ) -> StreamSlotWaiter {
        StreamSlotWaiter {
            node: WaitNode::new(),
            workq,
            spin: Spin::default(),
        }
    }

    /// Waits until streams may take another slot, but does not take the slot.
    pub(crate) fn poll(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        at: &Attachment,
    ) -> Poll<Result<(), JobError>> {
        let this = self.project();
        assert!(at.is_on(this.workq), "the context is on the stream's WorkQ");
        let (shared, node) = (&this.workq.0, this.node.as_ref());
        let slots = &shared.stream_slots;
        let enqueue = |waker: &Waker| shared.enqueue_stream(node, waker);
        let take = || Ok((slots.available() > 0).then_some(()));
        let polled = at.poll_in_line(slots, node, this.spin, cx, enqueue, take);
        if polled.is_ready() {
            *this.spin = Spin::default();
        }
        polled
    }

    /// Returns true if the stream waits in line.
    pub(crate) fn is_in_line(&self) -> bool {
        self.node.is_linked()
    }

    /// Leaves the line, since the stream wants no slot any more. If it was notified, the next
    /// waiter in line is notified instead.
    pub(crate) fn leave(self: Pin<&mut Self>) {
        let this = self.project();
        let node = this.node.as_ref();
        if node.is_linked() {
            let shared = &*this.workq.0;
            shared.stream_slots.line.leave(node);
            shared.notify_line(&shared.stream_slots, false);
        }
    }
}

impl Attachment {
    /// Takes one of the slots that streams may hold, for a job that is submitted next. Returns
    /// `None` if none is free, or if others wait in line and the caller does not come from the
    /// line.
    pub(crate) fn take_stream_slot(&self, from_line: bool) -> Option<StreamSlot<'_>> {
        let slots = &self.shared.stream_slots;
        let taken = (from_line || slots.line.is_empty()) && slots.take();
        taken.then(|| StreamSlot(self))
    }
}

/// One of the slots that streams may hold. Dropping it gives the slot back: its job was not
/// submitted, perhaps because of a panic.
pub(crate) struct StreamSlot<'a>(&'a Attachment);

impl StreamSlot<'_> {
    /// Leaves the slot to the job that was submitted. The slot is given back once the job has
    /// completed.
    pub(crate) fn submitted(self) {
        mem::forget(self);
    }
}

impl Drop for StreamSlot<'_> {
    fn drop(&mut self) {
        self.0.shared.give_stream_slot_back();
    }
}
