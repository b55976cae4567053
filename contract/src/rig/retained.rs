//! What `retire` is given by a rig: it tells when it is dropped, and spoils what nobody may touch
//! any more. And what is looked at afterwards.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use super::arena::Arena;
use super::rig::Rig;
use tokio_doca::device::contract::{Hasher, Queue, Segment};

/// What `retire` is given, as the crate does it: the queue, and all that a Job in flight may reach.
pub(super) struct Retained {
    pub(super) drops: Arc<AtomicU32>,
    pub(super) arena: Arc<Arena>,
    /// The cells whose Jobs were in flight, and what is written there when the provider says that
    /// none is any more.
    pub(super) in_flight: Vec<usize>,
    pub(super) canary: Arc<[u8]>,
    #[expect(dead_code, reason = "it is kept")]
    pub(super) queue: Arc<dyn Queue>,
    #[expect(dead_code, reason = "they are kept")]
    pub(super) lists: Vec<[Box<[Segment]>; 2]>,
    #[expect(dead_code, reason = "they are kept")]
    pub(super) sessions: Vec<Mutex<Hasher>>,
}

impl Drop for Retained {
    fn drop(&mut self) {
        // The one that the device would do last comes first.
        for index in self.in_flight.iter().rev() {
            self.arena.write(index * self.canary.len(), &self.canary);
        }
        self.drops.fetch_add(1, Ordering::SeqCst);
    }
}

/// A queue that says that nothing of it is in flight any more.
pub(crate) struct Retired {
    rig: Rig,
    drops: Arc<AtomicU32>,
    rings: u64,
}

impl Retired {
    pub(super) fn new(rig: Rig, drops: Arc<AtomicU32>, rings: u64) -> Retired {
        Retired { rig, drops, rings }
    }

    /// Nothing may have happened since. Answers the rings that nobody had counted.
    pub(crate) fn check(self) -> u64 {
        assert_eq!(
            self.drops.load(Ordering::SeqCst),
            1,
            "duty 6: what `retire` keeps is dropped once"
        );
        for index in 0..self.rig.depth() {
            let or_else = "duties 2, 3, 4 and 6: memory was touched while no Job had it";
            self.rig.check_cell(index, or_else);
        }
        self.rings + self.rig.late_rings()
    }
}
