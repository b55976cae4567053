//! Who reaps: one at a time, nobody waits for it, and no look is lost.
//!
//! ```text
//!            enter            enter (refused: delegated)
//!   Idle ------------> Held ----------------------------> HeldAgain
//!    ^                  |  ^                                  |
//!    |------ leave -----|  |------ leave: look once more -----|
//! ```
//!
//! A refused `enter` is no look. It leaves a mark, and whoever holds the gate looks once more after it saw the mark:
//! so that look comes after whatever the refused one did before (armed, say). This is the half of the wait cycle that
//! makes "arm, then look once more" true when somebody else is looking.

use crate::sync::atomic::{AtomicU8, Ordering};
use crate::sync::seq_cst_order;

const IDLE: u8 = 0;
const HELD: u8 = 1;
const HELD_AGAIN: u8 = 2;

pub(super) struct Gate(AtomicU8);

impl Gate {
    pub(super) fn new() -> Gate {
        Gate(AtomicU8::new(IDLE))
    }

    /// True: the caller reaps now, and must `leave`. False: whoever does will look once more.
    #[inline]
    #[must_use]
    pub(super) fn enter(&self) -> bool {
        let mut now = IDLE;
        loop {
            let next = if now == IDLE { HELD } else { HELD_AGAIN };
            match self
                .0
                .compare_exchange_weak(now, next, Ordering::SeqCst, Ordering::SeqCst)
            {
                Ok(_) => {
                    seq_cst_order();
                    return now == IDLE;
                }
                Err(seen) => now = seen,
            }
        }
    }

    /// True: the gate was left. False: somebody was refused meanwhile, the gate is still the caller's, and it must
    /// look once more.
    #[inline]
    #[must_use]
    pub(super) fn leave(&self) -> bool {
        if self
            .0
            .compare_exchange(HELD, IDLE, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
        {
            return true;
        }
        // An exchange, so that it also acquires what came before the last refused look.
        self.0.swap(HELD, Ordering::SeqCst);
        seq_cst_order();
        false
    }
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_refused_look_is_made_good_by_the_holder() {
        let gate = Gate::new();
        assert!(gate.enter());
        assert!(!gate.enter());
        assert!(!gate.enter());
        assert!(!gate.leave(), "once more");
        assert!(gate.leave());
        assert!(gate.enter());
        assert!(gate.leave());
    }
}
