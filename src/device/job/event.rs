//! One job of a sync event, as the device sees it: plain data.

use super::effect::Effect;

/// An atomic operation on a sync event's counter. All processors see these operations in the same
/// order. The result of each is a value of the counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventJob {
    /// Returns the value of the counter.
    #[doc(alias = "doca_sync_event_job_get")]
    Get,
    /// Sets the counter to this value, and returns it.
    #[doc(alias = "doca_sync_event_job_update_set")]
    Set(u64),
    /// Adds this number to the counter, wrapping, and returns the previous value.
    #[doc(alias = "doca_sync_event_job_update_add")]
    Add(u64),
}

impl Effect for EventJob {
    #[inline(always)]
    fn cost(&self) -> usize {
        0
    }
}
