//! The device that tests run on: the adapter that `DOCA_VERBS_DEVICE` names, or else the software
//! device.
//!
//! A test of what holds on any device takes its device from here. One that is about the software
//! device itself says why it is left out on an adapter, and where a reliable connection between two
//! adapters does something else than shared memory, it is said here what.

use std::time::Duration;

use tokio_doca::soft::Soft;
use tokio_doca::{
    Device,
    error::{JobError, Reason},
};

use super::programs::slowdown;

const VARIABLE: &str = "DOCA_VERBS_DEVICE";

/// The name of the adapter, if there is one.
pub fn adapter() -> Option<String> {
    std::env::var(VARIABLE).ok().filter(|name| !name.is_empty())
}

/// The adapter, or a new software device.
pub fn under_test(defer: bool) -> Device {
    match adapter() {
        Some(name) => {
            let opened = Device::open(&name);
            opened.unwrap_or_else(|error| panic!("{VARIABLE}={name}: {error}"))
        }
        None => Soft::builder().defer(defer).build().open("pf0").unwrap(),
    }
}

/// Both modes of the software device; an adapter has one, in which nothing is done inline.
pub fn defers() -> &'static [bool] {
    match adapter() {
        Some(_) => &[true],
        None => &[false, true],
    }
}

/// Whether the test is left out, since it needs the software device for this reason. It says so.
pub fn needs_soft(why: &str) -> bool {
    let adapter = adapter();
    if let Some(name) = &adapter {
        println!("not run: on {name}, {why}");
    }
    adapter.is_some()
}

/// The adapter, for tests that are ignored without one.
pub fn required_adapter() -> Device {
    assert!(adapter().is_some(), "{VARIABLE} names no adapter");
    under_test(true)
}

/// What the software device has this reason for, and what an adapter may have instead: it is not
/// told why its peer does not answer any more, nor by how much a message was too long.
pub fn told_of(soft: Reason) -> [Reason; 2] {
    let adapters = match soft {
        Reason::PeerFailed | Reason::PeerClosed | Reason::PeerGone => Reason::PeerSilent,
        // The memory of a process that ends may go before its queue pairs do.
        Reason::ExporterGone => Reason::RemoteAccess,
        Reason::MessageTooLong => Reason::PeerReceiveExceeded,
        Reason::ReceiveTooSmall => Reason::ReceiveExceeded,
        other => other,
    };
    [soft, if adapter().is_some() { adapters } else { soft }]
}

/// It is one of the two.
#[track_caller]
pub fn assert_told(error: JobError, soft: Reason) {
    let told = told_of(soft);
    assert!(told.contains(&error.reason()), "{error}, and not {told:?}");
}

/// Whether `connect` does not ask the peer: an adapter begins to talk with the first job.
pub fn connects_unasked() -> bool {
    adapter().is_some()
}

/// Within that time a side is told of a peer that was killed: half of the times, and at most. An
/// adapter sends again, and again, before it gives up.
pub fn told_within() -> [Duration; 2] {
    match adapter() {
        Some(_) => [5, 15].map(|seconds| Duration::from_secs(seconds) * slowdown()),
        None => [Duration::from_millis(10), Duration::from_secs(5)],
    }
}
