//! A counter that threads do not fight over.
//!
//! Threads are numbered once and for all. Each of the first ones has a place of its own, which it alone writes: no
//! locked instruction. Those that come later share some.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::sync::thread_number;

const OWN: usize = 64;
const SHARED: usize = 16;

#[derive(Default)]
#[repr(align(128))]
struct Place(AtomicU64);

pub(super) struct Counter(Box<[Place]>);

impl Counter {
    pub(super) fn new() -> Counter {
        Counter((0..OWN + SHARED).map(|_| Place::default()).collect())
    }

    #[inline]
    pub(super) fn add_one(&self) {
        let number = thread_number();
        if number < OWN {
            let place = &self.0[number].0;
            place.store(place.load(Relaxed) + 1, Relaxed);
        } else {
            self.0[OWN + number % SHARED].0.fetch_add(1, Relaxed);
        }
    }

    pub(super) fn sum(&self) -> u64 {
        self.0.iter().map(|place| place.0.load(Relaxed)).sum()
    }
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use super::*;

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
