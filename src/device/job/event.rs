//! One job of a sync event, as the device sees it: plain data.

use super::effect::Effect;

/// What is done with the counter, in one piece and in one order for all. The answer of all three is
/// a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventJob {
    /// Answers the value of the counter.
    #[doc(alias = "doca_sync_event_job_get")]
    Get,
    /// Sets the counter to this value, and answers it.
    #[doc(alias = "doca_sync_event_job_update_set")]
    Set(u64),
    /// Adds this to the counter, wrapping, and answers the value before.
    #[doc(alias = "doca_sync_event_job_update_add")]
    Add(u64),
}

impl Effect for EventJob {
    #[inline(always)]
    fn cost(&self) -> usize {
        0
    }
}
