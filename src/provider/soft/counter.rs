//! A counter for which threads do not contend.
//!
//! Each thread gets a number when it first counts. Each of the first `OWN` threads has an entry
//! that no other thread writes, so that it needs no locked instruction. Later threads share the
//! other entries.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use crate::sync::{lock, thread_number};

const OWN: usize = 64;
const SHARED: usize = 16;

#[derive(Default)]
#[repr(align(128))]
struct Shard(AtomicU64);

pub(super) struct Counter(Box<[Shard; OWN + SHARED]>);

impl Counter {
    pub(super) fn new() -> Counter {
        Counter(Box::new(std::array::from_fn(|_| Shard::default())))
    }

    #[inline]
    pub(super) fn add_one(&self) {
        let number = thread_number();
        if number < OWN {
            let shard = &self.0[number].0;
            shard.store(shard.load(Relaxed) + 1, Relaxed);
        } else {
            self.0[OWN + number % SHARED].0.fetch_add(1, Relaxed);
        }
    }

    pub(super) fn sum(&self) -> u64 {
        self.0.iter().map(|shard| shard.0.load(Relaxed)).sum()
    }
}

/// The counters of a device's queues, including queues that are gone.
#[derive(Default)]
pub(super) struct Counters(Mutex<(u64, Vec<Arc<Counter>>)>);

impl Counters {
    /// Returns a counter for a new queue.
    pub(super) fn open(&self) -> Arc<Counter> {
        let counter = Arc::new(Counter::new());
        let mut all = lock(&self.0);
        let (gone, counters) = &mut *all;
        counters.retain(|counter| {
            let used = Arc::strong_count(counter) > 1;
            *gone += if used { 0 } else { counter.sum() };
            used
        });
        counters.push(Arc::clone(&counter));
        counter
    }

    pub(super) fn sum(&self) -> u64 {
        let all = lock(&self.0);
        all.0 + all.1.iter().map(|counter| counter.sum()).sum::<u64>()
    }
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_a_queue_counted_stays_when_it_is_gone() {
        let counters = Counters::default();
        for queue in 1..=5 {
            let counter = counters.open();
            (0..10).for_each(|_| counter.add_one());
            assert_eq!(counter.sum(), 10, "a count of its own");
            assert_eq!(counters.sum(), 10 * queue);
        }
        assert_eq!(counters.0.lock().unwrap().1.len(), 1);
    }

    #[test]
    fn nothing_is_lost_between_more_threads_than_places() {
        let counter = Counter::new();
        for _ in 0..5 {
            std::thread::scope(|scope| {
                for _ in 0..20 {
                    scope.spawn(|| (0..1000).for_each(|_| counter.add_one()));
                }
            });
        }
        assert_eq!(counter.sum(), 5 * 20 * 1000);
    }
}
