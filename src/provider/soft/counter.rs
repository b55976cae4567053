//! A counter that threads do not fight over.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::sync::thread_number;

const SHARDS: usize = 16;

#[derive(Default)]
#[repr(align(128))]
struct Shard(AtomicU64);

#[derive(Default)]
pub(super) struct Counter([Shard; SHARDS]);

impl Counter {
    #[inline]
    pub(super) fn add_one(&self) {
        self.0[thread_number() % SHARDS]
            .0
            .fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn sum(&self) -> u64 {
        self.0
            .iter()
            .map(|shard| shard.0.load(Ordering::Relaxed))
            .sum()
    }
}
