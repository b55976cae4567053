//! Tests of the contract suite for sync events, called from another crate: on a device that sins
//! against one duty at a time, which the suite must detect and name.

use outside_provider::sync_event::{EventSin, device};
use support::sins;
use tokio_doca_contract::{self as contract, Events};

#[test]
fn a_device_of_another_crate_keeps_the_contract() {
    contract::sync_event(&device(EventSin::None));
}

#[test]
fn each_sin_is_found_and_named() {
    for (sin, duty) in [
        (EventSin::AnswersTheSum, "duty 1"),
        (EventSin::LosesAJob, "duty 1"),
        (EventSin::JobTwice, "duty 1"),
        (EventSin::Overtakes, "duty 1"),
        (EventSin::NotStrict, "duty 1"),
        (EventSin::IgnoresTheMask, "duty 1"),
        (EventSin::SleepsThroughSets, "duty 1"),
        (EventSin::EndsTheCancelled, "duty 1"),
        (EventSin::IgnoresItsLimit, "duty 1"),
        (EventSin::WaitsGoOn, "duty 1"),
        (EventSin::JobsGoOn, "event duty"),
        (EventSin::IgnoresTheBacking, "adapter duty 4"),
        (EventSin::NeverSignals, "duty 5"),
        (EventSin::SignalsUnasked, "duty 5"),
    ] {
        sins::found(sin, duty, |deadline| {
            contract::sync_event(Events::from(&device(sin)).deadline(deadline));
        });
    }
}
