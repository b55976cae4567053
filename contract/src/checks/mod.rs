//! The checks of a queue and its device, each of which tests a duty. They import `rig`, and not
//! each other.

mod adapter;
mod caps;
mod complete;
mod crcs;
mod hashes;
mod imports;
mod inline;
mod lists;
mod refuse;
mod retire;
mod signal;
mod workq;

pub use adapter::{
    a_device_says_the_same_of_itself, each_queue_is_new, each_registration_stands_alone,
};
pub use caps::caps_are_kept;
pub use complete::{completed_memory_is_left_alone, each_accepted_job_completes_once};
pub use crcs::crcs_are_known;
pub use hashes::{digests_are_known, sessions_go_on};
pub use imports::{each_import_of_a_list_is_checked, imported_lists_are_gathered_and_scattered};
pub use inline::inline_jobs_are_complete;
pub use lists::lists_are_gathered_and_scattered;
pub use refuse::{a_job_of_an_unknown_kind_is_refused, a_refused_job_was_never_seen};
pub use retire::retire_keeps_until_nothing_is_in_flight;
pub use signal::{armed_completions_signal_once, no_completion_is_slept_through};
pub use workq::{busy_polls, serves_several_runtimes, sleeps_and_wakes};
