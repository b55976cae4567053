//! The subject of the checks of sync events.

use std::time::Duration;

use crate::rig::{DEADLINE, watched_for};
use tokio_doca::device::Device;
use tokio_doca::device::SyncEventCaps;
use tokio_doca::device::contract::EventJob;

/// The number of jobs in flight at once.
pub(super) const DEPTH: u32 = 16;
/// The number of waits at once.
pub(super) const WAITS: u32 = 8;

/// A device under test that has sync events.
///
/// A `&Device` converts to `Events` with the default deadline.
#[derive(Clone, Debug)]
pub struct Events {
    pub(super) device: Device,
    pub(super) deadline: Duration,
}

impl From<&Device> for Events {
    fn from(device: &Device) -> Events {
        let (device, deadline) = (device.clone(), DEADLINE);
        Events { device, deadline }
    }
}

impl From<&Events> for Events {
    fn from(events: &Events) -> Events {
        events.clone()
    }
}

impl Events {
    /// Sets how long a check waits for an expected event. Defaults to
    /// [`DEADLINE`](crate::DEADLINE).
    pub fn deadline(self, deadline: Duration) -> Events {
        Events { deadline, ..self }
    }

    pub(super) fn caps(&self) -> &SyncEventCaps {
        let info = self.device.info();
        match &info.caps().sync_event {
            Some(caps) => caps,
            None => panic!("the device {} has no sync events", info.name()),
        }
    }

    pub(super) fn waits(&self) -> bool {
        self.caps().max_wait.is_some()
    }

    /// Returns the highest value that a wait may find, or `None` if every value is allowed.
    pub(super) fn limit(&self) -> Option<u64> {
        self.caps().max_wait.filter(|&limit| limit < u64::MAX)
    }
}

/// Runs a check on a thread of its own.
pub(super) fn watched(
    what: &str,
    events: impl Into<Events>,
    check: impl FnOnce(&Events) + Send + 'static,
) {
    let events = events.into();
    let deadline = 2 * events.deadline;
    watched_for(what, deadline, move || check(&events));
}

/// Applies `job` to a model of the counter, and returns the answer that the device must give.
pub(super) fn step(model: &mut u64, job: EventJob) -> u64 {
    match job {
        EventJob::Get => *model,
        EventJob::Set(value) => {
            *model = value;
            value
        }
        EventJob::Add(add) => {
            let before = *model;
            *model = before.wrapping_add(add);
            before
        }
    }
}
