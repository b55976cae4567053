//! The measuring loops of the tool: bars on what `tokio-doca bench` measures too use the same code.

use std::time::Duration;

use tokio_doca::{Device, Mode};

use load::{Baseline, Kind, Load, Plan};

#[expect(
    dead_code,
    reason = "the tool measures more kinds, and with other hosts"
)]
#[path = "../../cli/src/bench/load/mod.rs"]
pub(crate) mod load;

/// The duration of a round.
const ROUND: Duration = Duration::from_millis(10);

/// Operations of one kind, whose rounds take turns with those of other kinds. Their threads inherit
/// the CPU affinity of the current thread.
pub(crate) struct Turns {
    load: Load,
    pub(crate) operations: u64,
}

impl Turns {
    /// Starts one thread with `depth` operations of `size` bytes in flight.
    ///
    /// # Errors
    ///
    /// Returns why the system or the device refuses.
    pub(crate) fn start(
        device: &Device,
        mode: Mode,
        (kind, baseline): (Kind, Option<Baseline>),
        (size, depth): (usize, usize),
    ) -> load::Result<Turns> {
        let load = Load::start(&Plan {
            kind,
            baseline,
            peer: None,
            device: device.clone(),
            mode,
            size,
            depth,
            threads: 1,
        })?;
        Ok(Turns {
            load,
            operations: 0,
        })
    }

    /// Stops the operations, and waits until their threads have ended.
    pub(crate) fn end(self) {
        self.load.end().expect("an end");
    }

    /// Measures a round, and returns the nanoseconds per operation.
    pub(crate) fn round(&mut self) -> f64 {
        self.round_of(ROUND)
    }

    /// Measures a round of this length, and returns the nanoseconds per operation.
    pub(crate) fn round_of(&mut self, length: Duration) -> f64 {
        let round = self.load.round(length).expect("a round");
        let operations = round.latency.len();
        self.operations += operations;
        round.took.as_nanos() as f64 / operations as f64
    }
}
