//! What `retire` is given by a rig: it tells when it is dropped, and spoils what nobody may touch any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::arena::Arena;
use crate::device::{Queue, Segment};

/// What `retire` is given, as the crate does it: the queue, and all that a Job in flight may reach.
pub(super) struct Kept {
    pub(super) drops: Arc<AtomicU32>,
    pub(super) arena: Arc<Arena>,
    /// The cells whose Jobs were in flight, and what is written there when the provider says that none is any more.
    pub(super) in_flight: Vec<usize>,
    pub(super) canary: Arc<[u8]>,
    #[expect(dead_code, reason = "it is kept")]
    pub(super) queue: Arc<dyn Queue>,
    #[expect(dead_code, reason = "they are kept")]
    pub(super) lists: Vec<[Box<[Segment]>; 2]>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        // The one that the device would do last comes first.
        for index in self.in_flight.iter().rev() {
            self.arena.write(index * self.canary.len(), &self.canary);
        }
        self.drops.fetch_add(1, Ordering::SeqCst);
    }
}
