//! The device that tests run on: the adapter that `DOCA_VERBS_DEVICE` names, or else the software
//! device.
//!
//! A test that must pass on any device takes its device from here. A test of the software device
//! itself says why it is skipped on an adapter. Where a connection between adapters behaves
//! differently from shared memory, this module says how.

use std::time::Duration;

use tokio_doca::soft::Soft;
use tokio_doca::{
    Device,
    error::{JobError, Reason},
};

use super::programs::slowdown;

const VARIABLE: &str = "DOCA_VERBS_DEVICE";

/// Returns the name of the adapter under test, if there is one.
pub fn adapter() -> Option<String> {
    std::env::var(VARIABLE).ok().filter(|name| !name.is_empty())
}

/// Opens the adapter under test, or else a new software device.
pub fn under_test(defer: bool) -> Device {
    match adapter() {
        Some(name) => {
            let opened = Device::open(&name);
            opened.unwrap_or_else(|error| panic!("{VARIABLE}={name}: {error}"))
        }
        None => Soft::builder().defer(defer).build().open("pf0").unwrap(),
    }
}

/// Returns the values of `defer` to test: both for the software device, and only `true` for an
/// adapter, which does nothing inline.
pub fn defers() -> &'static [bool] {
    match adapter() {
        Some(_) => &[true],
        None => &[false, true],
    }
}

/// Returns true if an adapter is under test, and prints that the test is skipped for the reason
/// `why`.
pub fn needs_soft(why: &str) -> bool {
    let adapter = adapter();
    if let Some(name) = &adapter {
        println!("not run: on {name}, {why}");
    }
    adapter.is_some()
}

/// Opens the adapter under test, and panics if there is none. For tests that are ignored without an
/// adapter.
pub fn required_adapter() -> Device {
    assert!(adapter().is_some(), "{VARIABLE} names no adapter");
    under_test(true)
}

/// Returns the reasons that are acceptable where the software device gives `soft`. An adapter may
/// give the second one: it does not learn why its peer stopped answering, nor by how much a message
/// was too long.
pub fn told_of(soft: Reason) -> [Reason; 2] {
    let adapters = match soft {
        Reason::PeerFailed | Reason::PeerClosed | Reason::PeerGone => Reason::PeerSilent,
        // When a process ends, its memory may be freed before its queue pairs.
        Reason::ExporterGone => Reason::RemoteAccess,
        Reason::MessageTooLong => Reason::PeerReceiveExceeded,
        Reason::ReceiveTooSmall => Reason::ReceiveExceeded,
        other => other,
    };
    [soft, if adapter().is_some() { adapters } else { soft }]
}

/// Checks that the reason of `error` is one of [`told_of`].
#[track_caller]
pub fn assert_told(error: JobError, soft: Reason) {
    let told = told_of(soft);
    assert!(told.contains(&error.reason()), "{error}, and not {told:?}");
}

/// Returns true if `connect` does not contact the peer: an adapter first talks to it with the first
/// job.
pub fn connects_unasked() -> bool {
    adapter().is_some()
}

/// Returns within what time a side notices that its peer was killed: in half of the cases, and at
/// most. An adapter retransmits several times before it gives up.
pub fn told_within() -> [Duration; 2] {
    match adapter() {
        Some(_) => [5, 15].map(|seconds| Duration::from_secs(seconds) * slowdown()),
        None => [Duration::from_millis(10), Duration::from_secs(5)],
    }
}
