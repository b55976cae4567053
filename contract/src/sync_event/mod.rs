//! The checks of sync events. This module imports `rig` for the code that all checks share.

mod checks;
mod counter;
mod events;
mod rig;

pub(super) use checks::CHECKS;
pub use checks::{
    a_stopped_event_ends_all, armed_waits_signal, event_jobs_are_done_in_order,
    events_busy_poll_and_sleep, sync_event, waits_beyond_the_limit_fail,
    waits_end_once_and_not_before,
};
pub use counter::a_counter_lies_where_it_was_told;
pub use events::Events;
