//! The Slots of a WorkQ, and which of them are free.

use super::magazine::Magazines;
use super::slot::{Completed, Held, Slot, Target, Told};
use crate::device::{Completion, Token};

/// Outlives the WorkQ for as long as a device may complete one of its Jobs.
pub(super) struct Table {
    slots: Box<[Slot]>,
    free: Magazines,
}

impl Table {
    pub(super) fn new(depth: u32) -> Table {
        let slots = (0..depth).map(|_| Slot::new()).collect();
        Table {
            slots,
            free: Magazines::new(depth as usize),
        }
    }

    pub(super) fn free(&self) -> &Magazines {
        &self.free
    }

    pub(super) fn slot(&self, token: Token) -> &Slot {
        &self.slots[token.index() as usize]
    }

    /// Fills a Slot that was taken from the free list. The device may see it from here on.
    #[inline(always)]
    pub(super) fn fill(&self, index: u32, held: Held, target: Option<Target>) -> Token {
        let generation = self.slots[index as usize].fill(held, target);
        Token::new(0, index, generation)
    }

    /// A completion; answers whom to tell.
    #[inline(always)]
    pub(super) fn complete(&self, completion: &Completion) -> Option<Told> {
        let token = completion.token;
        // What a device says is checked: a Token of ours names a Slot, and its generation says which use of it.
        let slot = (token.table() == 0)
            .then(|| self.slots.get(token.index() as usize))
            .flatten();
        match slot.map_or(Completed::Stale, |slot| {
            slot.complete(token.generation(), completion.result)
        }) {
            Completed::Nothing => None,
            Completed::Tell(told) => Some(told),
            Completed::Free(told) => {
                self.free.put(token.index());
                told
            }
            Completed::Stale => {
                tracing::error!(
                    token = token.as_raw(),
                    "a completion of a job that is not in flight was ignored"
                );
                None
            }
        }
    }

    fn taken(&self) -> impl Iterator<Item = &Slot> {
        self.free.taken().map(|slot| &self.slots[slot])
    }

    /// Whether a device may still have a Job.
    pub(super) fn any_in_flight(&self) -> bool {
        self.taken().any(Slot::is_in_flight)
    }

    /// Whether a Job is in flight whose Op was dropped.
    pub(super) fn any_orphan(&self) -> bool {
        self.taken().any(Slot::is_orphan)
    }

    /// How many Jobs a queue may still have. Exact only when nobody else can reach the table.
    pub(super) fn outstanding(&self, queue: u8) -> usize {
        self.slots
            .iter()
            .filter(|slot| slot.in_flight() == Some(queue))
            .count()
    }

    /// The wakers of all Ops that wait. To be called by the reaper.
    pub(super) fn nudge(&self, mut wake: impl FnMut(std::task::Waker)) {
        self.taken().filter_map(Slot::nudge).for_each(&mut wake);
    }
}
