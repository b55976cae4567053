//! The argument that a rig gives to `retire`, and the checks after it was dropped. When dropped, it
//! counts that and overwrites the memory that nothing may touch any more.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use super::arena::Arena;
use super::rig::Rig;
use tokio_doca::device::contract::{Hasher, Queue, Segment};

/// The argument of `retire`, as in the crate: the queue, and all memory that a Job in flight may
/// access.
pub(super) struct Retained {
    pub(super) drops: Arc<AtomicU32>,
    pub(super) arena: Arc<Arena>,
    /// The cells whose Jobs were in flight. The `canary` is written there on the drop, when the
    /// provider declares that nothing is in flight.
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
        // The cell whose Job the device would execute last is written first.
        for index in self.in_flight.iter().rev() {
            self.arena.write(index * self.canary.len(), &self.canary);
        }
        self.drops.fetch_add(1, Ordering::SeqCst);
    }
}

/// A queue that has declared that nothing of it is in flight any more.
pub(crate) struct Retired {
    rig: Rig,
    drops: Arc<AtomicU32>,
    signals: u64,
}

impl Retired {
    pub(super) fn new(rig: Rig, drops: Arc<AtomicU32>, signals: u64) -> Retired {
        Retired {
            rig,
            drops,
            signals,
        }
    }

    /// Checks that nothing has happened since the retirement. Returns the number of signals not yet
    /// counted.
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
        self.signals + self.rig.late_signals()
    }
}
