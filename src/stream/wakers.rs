//! The wakers of a stream's tasks: the reader, the writer, and the stream's own two tasks
//! (`stream/rest.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use futures::task::AtomicWaker;

use crate::sync::{Mutex, lock, wake};

/// The waiting tasks of a stream. Used as a waker, it wakes all of them, since each event of a
/// stream may concern each task.
#[derive(Default)]
pub(super) struct Wakers {
    pub(super) reader: AtomicWaker,
    pub(super) writer: AtomicWaker,
    /// True while the stream's own tasks have something to send.
    pub(super) has_rest: AtomicBool,
    tasks: Mutex<[OwnTask; 2]>,
}

/// The registration of one of the stream's own tasks. A task that was replaced may still be polled,
/// so each task keeps its own registration.
pub(super) type OwnTask = Arc<AtomicWaker>;

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

    /// Wakes the stream's own tasks except `this` one.
    pub(super) fn wake_tasks(&self, this: Option<&OwnTask>) {
        let is_this = |task: &OwnTask| this.is_some_and(|this| Arc::ptr_eq(this, task));
        let tasks = lock(&self.tasks);
        let wakers = tasks.each_ref().map(|task| match is_this(task) {
            true => None,
            false => task.take(),
        });
        drop(tasks);
        wakers.into_iter().flatten().for_each(wake);
    }

    /// Returns the registration for a new task, which replaces the task at this index.
    pub(super) fn next_task(&self, place: usize) -> OwnTask {
        let task = OwnTask::default();
        let last = std::mem::replace(&mut lock(&self.tasks)[place], Arc::clone(&task));
        drop(last);
        task
    }
}

impl Wake for Wakers {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_reader();
        self.wake_writer();
        // This load may miss a flag that is being set: the code that sets it polls the Core
        // afterwards, and so notices the event itself.
        if self.has_rest.load(Ordering::Relaxed) {
            self.wake_tasks(None);
        }
    }
}
