//! Checks that the contract suite detects devices that violate a duty.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::LIMIT;

/// The first deadline, for a step that never completes.
const SOON: Duration = Duration::from_secs(1);

/// Runs a check with a deadline on a new device that violates a duty. The check must fail, and name
/// the duty.
///
/// If the machine is so slow that the deadline ends another step, the check is run again with
/// longer deadlines. Only the violation can miss the last one.
#[track_caller]
pub fn found(sin: impl Debug, duty: &str, check: impl Fn(Duration)) {
    let mut said = String::new();
    for deadline in [SOON, 10 * SOON, LIMIT] {
        let checked = catch_unwind(AssertUnwindSafe(|| check(deadline)));
        let Err(panic) = checked else {
            panic!("{sin:?}: the suite did not find it out");
        };
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied());
        said = text.unwrap_or_default().to_owned();
        if said.contains(duty) {
            return;
        }
    }
    panic!("{sin:?}: no word of {duty}: {said}");
}
