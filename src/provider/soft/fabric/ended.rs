//! Stores whether a process has ended, and which parties are notified when it ends.

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, Weak};

use crate::sync::{lock, log};

/// A party that is notified of the end of a process.
pub(in super::super) trait Ended: Send + Sync {
    /// Is called by the fabric's thread after the process has ended, at most once for each
    /// registration. It must not block.
    fn ended(&self);
}

/// The part of a process's state that the fabric's thread uses. It is separate, so that the thread
/// never owns a `Process`, and never drops one under a lock.
#[derive(Default)]
pub(super) struct ProcessState {
    dead: AtomicBool,
    /// The number of the process, or 0 if it is not known.
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

    /// Notes that the process has ended, and notifies all parties. The fabric's thread calls this.
    pub(super) fn end(&self) {
        let mut to_tell = lock(&self.to_tell);
        // The store does not order other memory: operations that began before may still be running.
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
