//! The gate of a WorkQ: the right to reap, that is to poll the devices and collect completions. One
//! thread at a time holds it, and no thread waits for it. If a thread was refused, the holder polls
//! once more.
//!
//! ```text
//!            enter            enter (refused: delegated)
//!   Idle ------------> Held ----------------------------> HeldAgain
//!    ^                 |  ^                                  |
//!    |------ leave ----|  |------ leave: poll once more -----|
//! ```
//!
//! A refused `enter` does not poll. It leaves a mark, and the holder of the gate polls once more
//! after it has seen the mark. So the holder's poll comes after all that the refused thread did
//! before, such as arming. The rule "arm, then poll once more" thus holds even while another thread
//! polls.
//!
//! No code of the application runs inside the gate: a waker that blocks on a job of the same WorkQ
//! would wait for a poll that only its own thread can make. Two types enforce this rule.
//! [`Deferred`] wraps what the holder finds: its drop does nothing, and it is opened only with a
//! [`GateLeft`]. Only [`Inside::leave`] and [`Inside::leave_now`] return a `GateLeft`.

#![expect(
    unsafe_code,
    reason = "the thread that may reap has the array of completions"
)]

use std::mem::{ManuallyDrop, forget};

use crate::device::{Completion, Token};
use crate::reactor::slots::BATCH;
use crate::sync::atomic::{AtomicU8, Ordering};
use crate::sync::{UnsafeCell, seq_cst_order};

const IDLE: u8 = 0;
const HELD: u8 = 1;
const HELD_AGAIN: u8 = 2;

pub(super) struct Gate {
    state: AtomicU8,
    /// The array that completions are reaped into. Making one for each poll would cost more than
    /// most polls do.
    completions: UnsafeCell<[Completion; BATCH]>,
}

// SAFETY: `completions` is reached only by the `Inside`. Only one `Inside` exists at a time, and
// the exchanges of `state` order each after the one before. The content of `completions` is `Send`.
unsafe impl Sync for Gate {}

/// The right to reap, held by one thread. A panic gives it back; the polls that were refused until
/// then are not made up for.
#[must_use = "it is given back by leave"]
pub(super) struct Inside<'a>(&'a Gate);

/// Proof that the thread has left the gate: code of the application may run.
pub(super) struct GateLeft(());

/// A value that was found inside the gate, and whose use or drop may run code of the application.
/// If it is dropped unopened, its content is leaked.
#[must_use = "what is not opened is leaked"]
pub(super) struct Deferred<T>(ManuallyDrop<T>);

impl Gate {
    pub(super) fn new() -> Gate {
        let nothing = Completion::new(Token::from_raw(u64::MAX), Ok(0));
        Gate {
            state: AtomicU8::new(IDLE),
            completions: UnsafeCell::new([nothing; BATCH]),
        }
    }

    /// Enters the gate. On `Some`, the caller reaps now, and must call `leave`. On `None`, another
    /// thread holds the gate, and will poll once more.
    #[inline]
    #[must_use]
    pub(super) fn enter(&self) -> Option<Inside<'_>> {
        let mut now = IDLE;
        loop {
            let next = if now == IDLE { HELD } else { HELD_AGAIN };
            match self
                .state
                .compare_exchange_weak(now, next, Ordering::SeqCst, Ordering::SeqCst)
            {
                Ok(_) => {
                    seq_cst_order();
                    return (now == IDLE).then(|| Inside(self));
                }
                Err(seen) => now = seen,
            }
        }
    }

    /// Enters the gate as `enter` does, but if another thread is inside, that thread is not asked
    /// to poll once more.
    #[inline]
    #[must_use]
    pub(super) fn try_enter(&self) -> Option<Inside<'_>> {
        let entered = self
            .state
            .compare_exchange(IDLE, HELD, Ordering::SeqCst, Ordering::Relaxed);
        seq_cst_order();
        entered.is_ok().then(|| Inside(self))
    }
}

impl<'a> Inside<'a> {
    /// Returns the array that completions are reaped into. Completions of earlier polls are still
    /// in it. If a device reports more completions than it has filled in, the old ones name jobs
    /// that have ended, and the tables ignore them.
    #[inline(always)]
    pub(super) fn completions(&mut self) -> &mut [Completion; BATCH] {
        self.0.completions.with_mut(|completions| {
            // SAFETY: this is the only `Inside` (`enter`), and it is borrowed for as long as the
            // result.
            unsafe { &mut *completions }
        })
    }

    /// Leaves the gate. Returns `Err` if a thread was refused meanwhile: then the caller still
    /// holds the gate, and must poll once more.
    #[inline]
    pub(super) fn leave(self) -> Result<GateLeft, Inside<'a>> {
        let gate = &self.0.state;
        if gate
            .compare_exchange(HELD, IDLE, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
        {
            forget(self);
            return Ok(GateLeft(()));
        }
        // A swap and not a store, so that it also acquires what came before the last refused
        // `enter`.
        gate.swap(HELD, Ordering::SeqCst);
        seq_cst_order();
        Err(self)
    }

    /// Leaves the gate without making up for polls that were refused. The caller signals for
    /// another turn, or polls again.
    pub(super) fn leave_now(self) -> GateLeft {
        self.0.state.swap(IDLE, Ordering::SeqCst);
        seq_cst_order();
        forget(self);
        GateLeft(())
    }
}

impl Drop for Inside<'_> {
    /// Gives the gate back when a panic unwinds. It asks no other thread to poll: the guards of
    /// `turn.rs` do that.
    fn drop(&mut self) {
        Inside(self.0).leave_now();
    }
}

impl<T> Deferred<T> {
    #[inline(always)]
    pub(super) fn new(value: T) -> Deferred<T> {
        Deferred(ManuallyDrop::new(value))
    }

    /// Wraps the value by `with`, which runs inside the gate and must do nothing else.
    #[inline(always)]
    pub(super) fn map<U>(self, with: fn(T) -> U) -> Deferred<U> {
        Deferred::new(with(ManuallyDrop::into_inner(self.0)))
    }

    #[inline(always)]
    pub(super) fn open(self, _: &GateLeft) -> T {
        ManuallyDrop::into_inner(self.0)
    }
}

impl<T> Deferred<Option<T>> {
    #[inline(always)]
    pub(super) fn transpose(self) -> Option<Deferred<T>> {
        ManuallyDrop::into_inner(self.0).map(Deferred::new)
    }
}

#[cfg(test)]
impl GateLeft {
    /// Returns the proof for the thread of a test, which has not entered a gate.
    pub(super) fn of_a_test() -> GateLeft {
        GateLeft(())
    }
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_refused_look_is_made_good_by_the_holder() {
        let gate = Gate::new();
        let inside = gate.enter().expect("it is idle");
        assert!(gate.enter().is_none());
        assert!(gate.enter().is_none());
        let inside = inside.leave().err().expect("once more");
        assert!(inside.leave().is_ok());
        let inside = gate.enter().expect("it was left");
        assert!(inside.leave().is_ok());
    }

    #[test]
    fn a_panic_inside_gives_the_gate_back() {
        let gate = Gate::new();
        let panics = std::panic::AssertUnwindSafe(|| {
            let _inside = gate.enter().expect("it is idle");
            panic!("inside the gate");
        });
        assert!(std::panic::catch_unwind(panics).is_err());
        assert!(gate.enter().is_some());
    }

    #[test]
    fn what_is_found_inside_is_dropped_outside_or_not_at_all() {
        let (gate, counted) = (Gate::new(), std::rc::Rc::new(()));
        let inside = gate.enter().expect("it is idle");
        let [one, other] = [(); 2].map(|()| Deferred::new(Some(std::rc::Rc::clone(&counted))));
        drop(other);
        let one = one.transpose().expect("it has one");
        assert_eq!(std::rc::Rc::strong_count(&counted), 3);
        let outside = inside.leave().ok().expect("no thread was refused");
        drop(one.open(&outside));
        assert_eq!(std::rc::Rc::strong_count(&counted), 2, "one was leaked");
    }
}
