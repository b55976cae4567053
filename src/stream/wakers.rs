//! The tasks of a stream: one that reads, one that writes, and its own (`stream/rest.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use futures::task::AtomicWaker;

use crate::sync::{Mutex, discard, lock, wake};

/// Who waits. As a waker it wakes all: what a stream waits for may be for each of them.
#[derive(Default)]
pub(super) struct Wakers {
    pub(super) reader: AtomicWaker,
    pub(super) writer: AtomicWaker,
    /// The stream's own task has something to do.
    pub(super) has_rest: AtomicBool,
    task: Mutex<OwnTask>,
}

/// The stream's own task: its number, since one that has another one's place may still be polled.
#[derive(Default)]
struct OwnTask {
    number: u64,
    waker: Option<Waker>,
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

    pub(super) fn wake_task(&self) {
        let waker = lock(&self.task).waker.take();
        waker.into_iter().for_each(wake);
    }

    /// Returns the number of another task that has the place of the last one.
    pub(super) fn next_task(&self) -> u64 {
        let mut task = lock(&self.task);
        task.number += 1;
        let (number, last) = (task.number, task.waker.take());
        drop(task);
        discard(last);
        number
    }

    /// Returns whether no other task has the place of this one.
    pub(super) fn is_task(&self, number: u64) -> bool {
        lock(&self.task).number == number
    }

    /// Has the task of this number woken; false if another one has its place.
    pub(super) fn register_task(&self, number: u64, waker: &Waker) -> bool {
        let waker = waker.clone();
        let mut task = lock(&self.task);
        let is_it = task.number == number;
        let rest = match is_it {
            true => task.waker.replace(waker),
            false => Some(waker),
        };
        drop(task);
        discard(rest);
        is_it
    }
}

impl Wake for Wakers {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_reader();
        self.wake_writer();
        // The party that sets it looks after that for what this wakes for.
        if self.has_rest.load(Ordering::Relaxed) {
            self.wake_task();
        }
    }
}
