//! What the queues and engines of a device share with it.

use std::sync::atomic::AtomicU64;

use super::counter::Counters;
use super::fault::Faults;
use crate::device::DevInfo;

/// The part of a device that its queues and engines keep.
pub(super) struct DeviceShared {
    pub(super) faults: Faults,
    /// Jobs done inline, by queue.
    pub(super) inline_jobs: Counters,
    /// Without engines: jobs that were not done inline.
    pub(super) own_jobs: AtomicU64,
    /// The highest value of a sync event at which a wait may begin or end; more fails the wait.
    pub(super) highest_value: u64,
}

impl DeviceShared {
    pub(super) fn new(info: &DevInfo, faults: Faults) -> DeviceShared {
        // The limit of thresholds is that of values too. A device that cannot wait has none, since
        // its waits are gets.
        let caps = info.caps().sync_event.as_ref();
        let highest_value = caps.and_then(|caps| caps.max_wait).unwrap_or(u64::MAX);
        DeviceShared {
            faults,
            inline_jobs: Counters::default(),
            own_jobs: AtomicU64::new(0),
            highest_value,
        }
    }
}
