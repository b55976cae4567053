//! The endpoints, queues and listeners of a device, which the watcher notifies of the device's
//! events.

use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use super::super::cm::Handler;
use super::super::transport::Core;
use super::rc::RcConnection;
use crate::sync::lock;

/// The targets of a device's events. The device, its queues and the watcher hold this. For a device
/// that the application lent, the watcher holds nothing else, and calls only `tick`: an object that
/// the watcher destroyed late would outlive the application's device.
#[derive(Default)]
pub(in super::super) struct EventTargets {
    conns: Mutex<Vec<Weak<RcConnection>>>,
    cores: Mutex<Vec<Weak<Core>>>,
    listeners: Mutex<Vec<Weak<dyn Handler>>>,
}

impl EventTargets {
    /// Returns the endpoints, which are notified of events and polled for timeouts.
    pub(in super::super) fn conns(&self) -> Vec<Arc<RcConnection>> {
        alive(&self.conns)
    }

    /// Returns the states of the queues.
    pub(in super::super) fn cores(&self) -> Vec<Arc<Core>> {
        alive(&self.cores)
    }

    /// Returns the listeners by rdma_cm.
    pub(in super::super) fn listeners(&self) -> Vec<Arc<dyn Handler>> {
        alive(&self.listeners)
    }

    pub(in super::super) fn add_listener(&self, listener: &Arc<dyn Handler>) {
        add(&self.listeners, listener);
    }

    pub(in super::super) fn add_conn(&self, conn: &Arc<RcConnection>) {
        add(&self.conns, conn);
    }

    pub(in super::super) fn add_core(&self, core: &Arc<Core>) {
        add(&self.cores, core);
    }

    /// Removes an endpoint whose handle was dropped. When this returns, `tick` has released the
    /// endpoint and will not use it again. The watcher may still use it for an event, but not on a
    /// device that the application lent.
    pub(in super::super) fn remove_conn(&self, conn: &Arc<RcConnection>) {
        lock(&self.conns).retain(|it| it.as_ptr() != Arc::as_ptr(conn));
    }

    /// Checks the time limits of each endpoint, under the lock under which endpoints are removed.
    /// Returns after how long to check again. The applications of endpoints whose state has changed
    /// are notified after the lock was released, since a waker may drop another endpoint.
    pub(in super::super) fn tick(&self, now: Instant) -> Option<Duration> {
        let mut changed = Vec::new();
        let conns = lock(&self.conns);
        let each = conns.iter().filter_map(Weak::upgrade);
        let again = each.filter_map(|conn| conn.tick(now, &mut changed)).min();
        drop(conns);
        for changed in changed {
            changed();
        }
        again
    }
}

fn alive<T: ?Sized>(all: &Mutex<Vec<Weak<T>>>) -> Vec<Arc<T>> {
    lock(all).iter().filter_map(Weak::upgrade).collect()
}

fn add<T: ?Sized>(all: &Mutex<Vec<Weak<T>>>, one: &Arc<T>) {
    let mut all = lock(all);
    // The full list is swept, so that it grows only with the number of live entries.
    if all.len() == all.capacity() {
        all.retain(|it| it.strong_count() > 0);
    }
    all.push(Arc::downgrade(one));
}
