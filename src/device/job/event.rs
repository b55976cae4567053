//! One job of a sync event, as the device sees it: plain data.

use super::effect::Effect;

/// What is done with the counter, in one piece and in one order for all. The answer of all three is
/// a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventJob {
    /// Answers it.
    #[doc(alias = "doca_sync_event_job_get")]
    Get,
    /// It becomes this. Answers the same.
    #[doc(alias = "doca_sync_event_job_update_set")]
    Set(u64),
    /// This is added to it, wrapping. Answers what it was.
    #[doc(alias = "doca_sync_event_job_update_add")]
    Add(u64),
}

impl Effect for EventJob {
    #[inline(always)]
    fn cost(&self) -> usize {
        0
    }
}
