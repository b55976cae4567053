//! The current topology of a provider.

use std::sync::{Arc, Mutex, MutexGuard};

use super::card::Topology;
use crate::sync::lock;

/// The current topology, which a provider and all its devices share.
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
