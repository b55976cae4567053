//! Models of the real watch of a state: no watcher sleeps through a change.

use std::pin::pin;
use std::sync::Arc;

use super::{Bed, on_a_workq};
use crate::reactor::endpoint::{RdmaState, RdmaWatch, WatchState};
use crate::sync::WaitNode;
use crate::sync::loom::{Task, block_on, mutant, spawn};

/// Two watchers wait while another thread closes the watched state and reports the change. One of
/// the watching threads updates the state too.
fn watchers(wait: fn(&WatchState, RdmaWatch)) {
    on_a_workq(2, move |bed: &Bed| {
        let watched = Arc::new(WatchState::new());
        let watch = RdmaWatch::new(&watched, &bed.workq.0);
        let closer = {
            let watched = Arc::clone(&watched);
            spawn(move || {
                watched.close(false);
                watched.update();
            })
        };
        let waiter = {
            let (watched, watch) = (Arc::clone(&watched), watch.clone());
            spawn(move || wait(&watched, watch))
        };
        watched.update();
        let mut watch = watch;
        assert_eq!(block_on(pin!(watch.changed())), Some(RdmaState::Reset));
        closer.join().unwrap();
        waiter.join().unwrap();
        bed.run([]);
    });
}

#[test]
fn every_watcher_hears_of_a_change() {
    watchers(|_, mut watch| {
        assert_eq!(block_on(pin!(watch.changed())), Some(RdmaState::Reset));
    });
}

#[test]
fn mutant_that_looks_and_then_registers_is_found() {
    mutant("deadlock", || {
        watchers(|watched, _watch| {
            let task = Task::new();
            let node = pin!(WaitNode::new());
            while watched.changed_since(0).is_pending() {
                // SAFETY: the list outlives the node, which is used with this list only.
                unsafe { watched.waiting.enqueue(node.as_ref(), &task.waker()) };
                task.sleep();
            }
        });
    });
}
