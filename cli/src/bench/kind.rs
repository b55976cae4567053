//! The names of kinds, modes and baselines, and the defaults and properties of each kind.

use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use tokio_doca::Mode;

use super::load::{Baseline, Kind};

pub(super) const KINDS: [(&str, Kind); 11] = [
    ("dma", Kind::Dma),
    ("sha", Kind::Sha),
    ("crc", Kind::Crc),
    ("rdma-send", Kind::RdmaSend),
    ("rdma-read", Kind::RdmaRead),
    ("rdma-write", Kind::RdmaWrite),
    ("rdma-atomic", Kind::RdmaAtomic),
    ("sync-event", Kind::SyncEvent),
    ("channel", Kind::Channel),
    ("stream", Kind::Stream),
    ("graph", Kind::Graph),
];

/// How long the mode `hybrid` polls before it sleeps: about the time of a wake-up.
const SPIN: Duration = Duration::from_micros(50);

pub(super) const MODES: [(&str, Mode); 3] = [
    ("event", Mode::EventDriven),
    ("busy-poll", Mode::BusyPoll),
    ("hybrid", Mode::Hybrid { spin: SPIN }),
];

pub(super) const BASELINES: [(&str, Baseline); 5] = [
    ("memcpy", Baseline::Memcpy),
    ("spawn_blocking", Baseline::SpawnBlocking),
    ("io_uring", Baseline::IoUring),
    ("tcp", Baseline::Tcp),
    ("unix", Baseline::Unix),
];

/// Returns a clap parser that turns a name of the list `known` into its value.
pub(super) fn named<T>(known: &'static [(&'static str, T)]) -> impl TypedValueParser<Value = T>
where
    T: Copy + Send + Sync + 'static,
{
    let find = move |name: String| {
        let found = known.iter().find(|(it, _)| *it == name);
        found.map(|(_, value)| *value).ok_or("no such name")
    };
    PossibleValuesParser::new(known.iter().map(|(name, _)| *name)).try_map(find)
}

/// Returns the name of a value in the list `known`.
pub(super) fn name<T: PartialEq>(known: &[(&'static str, T)], value: &T) -> &'static str {
    let found = known.iter().find(|(_, it)| it == value);
    found.map_or("?", |(name, _)| name)
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        name(&KINDS, &self)
    }

    /// Returns the default of `--size`, in bytes.
    pub(super) fn usual_size(self) -> usize {
        match self {
            Kind::Sha | Kind::Crc => 64 << 10,
            Kind::RdmaSend | Kind::Channel | Kind::Stream => 64,
            Kind::RdmaAtomic | Kind::SyncEvent => 8,
            Kind::Dma | Kind::Graph | Kind::RdmaRead | Kind::RdmaWrite => 4 << 10,
        }
    }

    /// Returns true if all operations of this kind have the same size.
    pub(super) fn has_one_size(self) -> bool {
        matches!(self, Kind::RdmaAtomic | Kind::SyncEvent)
    }

    /// Returns true if the other side of this kind can be in another process.
    pub(super) fn has_peer(self) -> bool {
        let one_sided = matches!(self, Kind::RdmaRead | Kind::RdmaWrite | Kind::RdmaAtomic);
        one_sided || matches!(self, Kind::RdmaSend | Kind::Stream)
    }

    /// Returns the baselines that this kind can be compared with.
    pub(super) fn baselines(self) -> &'static [Baseline] {
        match self {
            Kind::Dma | Kind::Sha | Kind::Crc | Kind::Graph => {
                &[Baseline::Memcpy, Baseline::SpawnBlocking, Baseline::IoUring]
            }
            Kind::RdmaSend | Kind::Channel | Kind::Stream => &[Baseline::Tcp, Baseline::Unix],
            _ => &[],
        }
    }
}
