//! What is put under test for sync events: a device that has some.

use std::time::Duration;

use crate::rig::{DEADLINE, watched_for};
use tokio_doca::device::Device;
use tokio_doca::device::SyncEventCaps;
use tokio_doca::device::contract::EventJob;

/// Jobs in flight at once.
pub(super) const DEPTH: u32 = 16;
/// Waits at once.
pub(super) const WAITS: u32 = 8;

/// A device with sync events, under test.
///
/// A `&Device` stands for it, with the usual deadline.
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
    /// How long a check waits for something that must come; defaults to
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

    /// The highest value that a wait may find, if there are higher ones.
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

/// Does `job` to a model of the counter, and returns what the device must answer.
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
