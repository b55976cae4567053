//! Whether a process has ended, and who wants to know.

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, Weak};

use crate::sync::{lock, log};

/// Who wants to know that a process has ended.
pub(in super::super) trait Ended: Send + Sync {
    /// It has. Called once, by the fabric's thread: it must not block.
    fn ended(&self);
}

/// What the thread knows of a process. Apart, so that the thread never owns a Process, and never
/// drops one under a lock.
#[derive(Default)]
pub(super) struct ProcessState {
    dead: AtomicBool,
    /// The process, or 0 if it is not known.
    pid: i32,
    pub(super) to_tell: Mutex<Vec<Weak<dyn Ended>>>,
}

impl ProcessState {
    pub(super) fn new(pid: i32) -> ProcessState {
        ProcessState {
            pid,
            ..ProcessState::default()
        }
    }

    #[inline]
    pub(super) fn is_dead(&self) -> bool {
        self.dead.load(Relaxed)
    }

    /// The process has ended, in the thread.
    pub(super) fn end(&self) {
        let mut to_tell = lock(&self.to_tell);
        // Memory is not ordered by it: operations that began before may be doing something still.
        self.dead.store(true, Relaxed);
        let told = mem::take(&mut *to_tell);
        drop(to_tell);
        for who in told.iter().filter_map(Weak::upgrade) {
            who.ended();
        }
        let pid = self.pid;
        log(|| tracing::debug!(target: "tokio_doca::soft", pid, "peer process ended"));
    }
}
