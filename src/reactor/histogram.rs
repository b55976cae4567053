//! How long jobs took, in a table of counts: log-linear, of a fixed size.
//!
//! Each power of two of nanoseconds has eight buckets, so that a quantile is at most one eighth too
//! high. A crate for this would keep more digits, and allocate or lock where it counts.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The kinds of jobs, by the names that spans of `tracing` have for them.
pub(super) const KINDS: [&str; 6] = ["copy", "sha", "crc", "accel", "rdma", "sync_event"];

/// Buckets in a power of two, as a power of two.
const SHARE: u32 = 3;
const BUCKETS: usize = (64 - SHARE as usize + 1) << SHARE;

/// The bucket of a time. The first eight have one nanosecond each.
fn bucket(nanos: u64) -> usize {
    let shift = nanos.checked_ilog2().unwrap_or(0).saturating_sub(SHARE);
    ((shift as usize) << SHARE) + (nanos >> shift) as usize
}

/// The longest time of a bucket.
fn longest(bucket: usize) -> u64 {
    let shift = (bucket >> SHARE).saturating_sub(1);
    let first = (bucket - (shift << SHARE)) as u128;
    u64::try_from(((first + 1) << shift) - 1).unwrap_or(u64::MAX)
}

/// What is counted, by any thread.
pub(super) struct Counts {
    buckets: Box<[AtomicU64]>,
    sum: AtomicU64,
}

impl Counts {
    pub(super) fn new() -> Counts {
        Counts {
            buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0),
        }
    }

    pub(super) fn add(&self, nanos: u64, jobs: u64) {
        self.buckets[bucket(nanos)].fetch_add(jobs, Relaxed);
        let all = nanos.saturating_mul(jobs);
        let sum = |sum: u64| Some(sum.saturating_add(all));
        let _ = self.sum.fetch_update(Relaxed, Relaxed, sum);
    }

    pub(super) fn read(&self) -> Histogram {
        Histogram {
            buckets: self
                .buckets
                .iter()
                .map(|count| count.load(Relaxed))
                .collect(),
            sum: self.sum.load(Relaxed),
        }
    }
}

/// How long jobs of one kind took: a part of [`Latencies`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    buckets: Box<[u64]>,
    sum: u64,
}

impl Histogram {
    /// Returns the number of jobs.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Returns the sum of their times. It ends at 2^64 ns, 584 years: with 1,024 jobs in flight
    /// at all times, after 208 days.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum)
    }

    /// Returns the time within which this part of the jobs completed, 0.99 for 99 %, at most one
    /// eighth too high. Zero if there were none.
    pub fn quantile(&self, part: f64) -> Duration {
        let wanted = (part.clamp(0.0, 1.0) * self.count() as f64).ceil() as u64;
        let mut so_far = 0;
        let within = self.buckets.iter().position(|count| {
            so_far += count;
            so_far >= wanted.max(1)
        });
        Duration::from_nanos(within.map_or(0, longest))
    }
}

/// How long jobs took, by kind: the answer of [`WorkQ::latencies`](crate::WorkQ::latencies).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latencies(pub(super) [Histogram; KINDS.len()]);

impl Latencies {
    /// Returns the kinds of jobs and their histograms: `copy`, `sha`, `crc`, `accel`, `rdma` and
    /// `sync_event`.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Histogram)> {
        KINDS.into_iter().zip(&self.0)
    }
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_time_is_in_the_bucket_that_ends_behind_it() {
        let powers = (0..64).flat_map(|shift| [1_u64 << shift, (1 << shift) + 1, (1 << shift) - 1]);
        for nanos in powers.chain([u64::MAX, 1_000, 12_345]) {
            let at = bucket(nanos);
            assert!(at < BUCKETS && nanos <= longest(at), "{nanos}");
            assert!(at == 0 || longest(at - 1) < nanos, "{nanos}");
            assert!(longest(at) - nanos <= nanos / 8, "{nanos}");
        }
    }

    #[test]
    fn a_quantile_is_the_end_of_its_bucket() {
        let counts = Counts::new();
        assert_eq!(counts.read().quantile(0.5), Duration::ZERO);
        (1..=7).for_each(|nanos| counts.add(nanos, 1));
        counts.add(1_000_000, 1);
        let read = counts.read();
        assert_eq!(
            (read.count(), read.sum()),
            (8, Duration::from_nanos(1_000_028))
        );
        assert_eq!(read.quantile(0.5), Duration::from_nanos(4));
        assert_eq!(read.quantile(0.0), Duration::from_nanos(1));
        let last = read.quantile(1.0).as_nanos();
        assert!((1_000_000..1_125_000).contains(&last));
        (0..2).for_each(|_| counts.add(u64::MAX / 2 + 1, 1));
        assert_eq!(
            counts.read().sum(),
            Duration::from_nanos(u64::MAX),
            "it does not wrap"
        );
    }
}
