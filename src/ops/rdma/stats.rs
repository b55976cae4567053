//! What an Rdma has done so far.

use super::Rdma;

/// What an Rdma has done since it was attached: the answer of [`Rdma::stats`].
///
/// The numbers are exact while nothing happens. Jobs are counted by their
/// [`WorkQ`](crate::WorkQ::stats).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RdmaStats {
    /// How often it was connected, as far as was noticed: a change of the state counts if a turn of
    /// the WorkQ, or a call of `stats`, comes before the next one.
    pub connects: u64,
    /// How often its state turned to Error, as far as was noticed.
    pub errors: u64,
    /// Receives that were posted. A receive that takes over a dropped one posts none.
    pub receives_posted: u64,
    /// Places of receives that are taken: posted receives, and messages that nobody has fetched.
    pub receives_in_use: u64,
    /// Those of `receives_in_use` that were dropped, and wait for a receive that takes them over.
    pub receives_dropped: u64,
    /// Receives that wait in line for a place.
    pub receives_waiting: u64,
}

impl Rdma {
    /// Returns what it has done so far. Always on; jobs and receives pay nothing for it.
    pub fn stats(&self) -> RdmaStats {
        let (port, mut stats) = (self.port(), RdmaStats::default());
        let receives = port.receives();
        (stats.connects, stats.errors) = port.transitions();
        (stats.receives_posted, stats.receives_in_use) = receives.posted_and_in_use();
        stats.receives_dropped = receives.dropped();
        stats.receives_waiting = receives.line.waiting() as u64;
        stats
    }
}
