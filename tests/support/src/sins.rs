//! Devices that sin against a duty, which the contract suite must find out.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::LIMIT;

/// For what never comes.
const SOON: Duration = Duration::from_secs(1);

/// Runs a check, which gets its deadline, on a new device that sins: it must fail, and name the
/// duty.
///
/// If the machine is so slow that the deadline ended another step, the check is run again with
/// longer deadlines, the last of which none but the sin can miss.
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
