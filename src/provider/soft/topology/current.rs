//! The topology that a provider shows now.

use std::sync::{Arc, Mutex, MutexGuard};

use super::card::Topology;
use crate::sync::lock;

/// The topology as it is now: one for a provider and all its devices.
#[derive(Clone)]
pub(in super::super) struct CurrentTopology(Arc<Mutex<Topology>>);

impl CurrentTopology {
    pub(in super::super) fn new(topology: Topology) -> CurrentTopology {
        CurrentTopology(Arc::new(Mutex::new(topology)))
    }

    pub(in super::super) fn lock(&self) -> MutexGuard<'_, Topology> {
        lock(&*self.0)
    }
}
