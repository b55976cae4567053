//! The state that a device shares with its queues and engines.

use std::sync::atomic::AtomicU64;

use super::counter::Counters;
use super::fault::Faults;
use crate::device::DevInfo;

/// The part of a device that its queues and engines share.
pub(super) struct DeviceShared {
    pub(super) faults: Faults,
    /// The jobs that were done inline, by queue.
    pub(super) inline_jobs: Counters,
    /// On a device without engines, the number of jobs that were not done inline.
    pub(super) own_jobs: AtomicU64,
    /// The highest value of a sync event at which a wait may begin or end. A higher value fails the
    /// wait.
    pub(super) highest_value: u64,
}

impl DeviceShared {
    pub(super) fn new(info: &DevInfo, faults: Faults) -> DeviceShared {
        // The limit for thresholds also applies to values. A device that cannot wait has no limit,
        // since jobs that get the value replace its waits.
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
