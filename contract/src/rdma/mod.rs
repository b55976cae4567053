//! The checks of remote operations: two endpoints of one device, or of two devices, are connected
//! to each other.
//!
//! One thread drives both ends and polls both queues, because a device may need polls of either.

mod caps;
mod end;
mod exports;
mod fail;
mod memory;
mod model;
mod order;
mod pair;
mod pooled;
mod refuse;
mod reset;
mod retire;
mod signal;
mod workq;

use std::time::Duration;

use super::check::{Check, Fits, checks, run_all};
use super::rig::{DEADLINE, watched_for};
use tokio_doca::device::Device;
use tokio_doca::device::RdmaCaps;

pub use caps::rdma_caps_are_kept;
pub use exports::exported_memory_is_reached;
pub use fail::{failures_flush_what_is_behind_them, permissions_are_kept};
pub use order::{receives_may_come_late, remote_operations_complete_in_order};
pub use pair::a_listener_is_connected_by_its_peer;
pub use pooled::pooled_messages_are_taken_in_order;
pub use refuse::a_refused_operation_was_never_seen;
pub use reset::a_reset_ends_all;
pub use retire::retired_receives_are_left_alone;
pub use signal::{armed_messages_signal_once, no_message_is_slept_through};
pub use workq::{rdma_busy_polls, rdma_sleeps_and_wakes};

/// The devices under test, whose endpoints are connected to each other: one device, or two devices
/// of the same provider.
///
/// A `&Device` converts to two endpoints of that device.
///
/// ```no_run
/// # fn test(here: &tokio_doca::Device, there: &tokio_doca::Device) {
/// use tokio_doca_contract::{self as contract, Peers};
///
/// contract::rdma(here);
/// contract::rdma(Peers::of(here, there));
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Peers {
    devices: [Device; 2],
    deadline: Duration,
}

impl From<&Device> for Peers {
    fn from(device: &Device) -> Peers {
        Peers::of(device, device)
    }
}

impl From<&Peers> for Peers {
    fn from(peers: &Peers) -> Peers {
        peers.clone()
    }
}

impl Peers {
    /// Makes a pair with one endpoint on each device.
    pub fn of(one: &Device, other: &Device) -> Peers {
        Peers {
            devices: [one.clone(), other.clone()],
            deadline: DEADLINE,
        }
    }

    /// Sets how long a check waits for an expected event. Defaults to [`DEADLINE`]. A shorter time
    /// is useful to test a provider that is broken on purpose.
    pub fn deadline(self, deadline: Duration) -> Peers {
        Peers { deadline, ..self }
    }

    fn caps(&self, side: usize) -> &RdmaCaps {
        let info = self.devices[side].info();
        match &info.caps().rdma {
            Some(rdma) => rdma,
            None => panic!("the device {} has no remote operations", info.name()),
        }
    }

    /// Returns true if both devices have a capability.
    fn both(&self, has: impl Fn(&RdmaCaps) -> bool) -> bool {
        has(self.caps(0)) && has(self.caps(1))
    }

    /// Returns the smaller of the two devices' limits.
    fn least(&self, limit: impl Fn(&RdmaCaps) -> u64) -> usize {
        let least = limit(self.caps(0)).min(limit(self.caps(1)));
        usize::try_from(least).unwrap_or(usize::MAX)
    }

    /// Returns `bytes`, capped at the maximum message size of both devices.
    fn within(&self, bytes: usize) -> usize {
        self.least(|caps| caps.max_message_size).min(bytes)
    }

    /// Returns `wanted`, capped at the maximum queue depth of both devices.
    fn depth(&self, wanted: u32) -> u32 {
        let depth = |side: usize| self.devices[side].info().caps().max_depth;
        wanted.min(depth(0)).min(depth(1))
    }
}

/// Runs every check on a device that has remote operations.
///
/// # Panics
///
/// Panics at the first duty that the provider violates, with a sentence that names the duty.
pub fn rdma(peers: impl Into<Peers>) {
    run_all(CHECKS, &peers.into());
}

/// The checks of endpoints.
pub(super) const CHECKS: &[Check<Peers>] = checks![
    |_| Fits::Yes =>
        rdma_caps_are_kept,
        exported_memory_is_reached,
        remote_operations_complete_in_order,
        receives_may_come_late,
        failures_flush_what_is_behind_them,
        permissions_are_kept,
        a_reset_ends_all,
        a_listener_is_connected_by_its_peer;
    pools => pooled_messages_are_taken_in_order;
    |_| Fits::Yes => retired_receives_are_left_alone;
    signals => armed_messages_signal_once, no_message_is_slept_through;
    |_| Fits::Yes => rdma_busy_polls;
    signals => rdma_sleeps_and_wakes;
];

fn signals(peers: &Peers) -> Fits {
    Fits::needs(peers.both(|caps| caps.event_driven), "completion events")
}

fn pools(peers: &Peers) -> Fits {
    let pools = peers.both(|caps| caps.max_pooled_len > 0);
    Fits::needs(pools, "receives from a pool")
}

/// Runs a check on a thread of its own.
fn watched(what: &str, peers: impl Into<Peers>, check: impl FnOnce(&Peers) + Send + 'static) {
    let peers = peers.into();
    let deadline = 2 * peers.deadline;
    watched_for(what, deadline, move || check(&peers));
}
