//! The tasks of a stream: one that reads, and one that writes.

use std::sync::Arc;
use std::task::{Wake, Waker};

use futures::task::AtomicWaker;

use crate::sync::wake;

/// Who waits. As a waker it wakes both: what a stream waits for may be for either.
#[derive(Default)]
pub(super) struct Wakers {
    pub(super) reader: AtomicWaker,
    pub(super) writer: AtomicWaker,
}

impl Wakers {
    pub(super) fn waker(self: &Arc<Self>) -> Waker {
        Waker::from(Arc::clone(self))
    }

    pub(super) fn wake_reader(&self) {
        self.reader.take().into_iter().for_each(wake);
    }

    pub(super) fn wake_writer(&self) {
        self.writer.take().into_iter().for_each(wake);
    }
}

impl Wake for Wakers {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_reader();
        self.wake_writer();
    }
}
