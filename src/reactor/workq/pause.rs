//! [`Pause`] says whether the line for slots pauses, and for how long. The line pauses once a
//! device was full (`full.rs`).

use std::time::Duration;

use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, lock, seq_cst_order};

/// The first pause.
const FIRST: Duration = Duration::from_millis(1);
/// The longest pause.
const LONGEST: Duration = Duration::from_millis(100);

/// The state of the pause of the line for slots.
pub(in crate::reactor) struct Pause {
    on: AtomicBool,
    /// The timer could not be set, so all waiters in line poll until the time has passed.
    unheard: AtomicBool,
    pace: Mutex<Pace>,
}

struct Pace {
    next: Duration,
    /// The number of completions that had been collected before the device was last asked.
    completed: u64,
}

impl Pause {
    pub(in crate::reactor) fn new() -> Pause {
        Pause {
            on: AtomicBool::new(false),
            unheard: AtomicBool::new(false),
            pace: Mutex::new(Pace {
                next: FIRST,
                completed: 0,
            }),
        }
    }

    #[inline]
    pub(in crate::reactor) fn is_on(&self) -> bool {
        seq_cst_order();
        self.on.load(Ordering::SeqCst)
    }

    /// Returns true if the line pauses and no event will signal the end of the pause. A waiter in
    /// line must wake itself then.
    pub(in crate::reactor) fn is_without_event(&self) -> bool {
        self.is_on() && self.unheard.load(Ordering::SeqCst)
    }

    /// Begins a pause, if there is none. `set_alarm` makes the event handle signal when the pause
    /// ends, and returns false if no thread will receive that signal. Returns true if all waiters
    /// in line shall be woken, since they must poll by themselves.
    pub(in crate::reactor) fn begin(
        &self,
        completed: u64,
        set_alarm: impl FnOnce(Duration) -> bool,
    ) -> bool {
        let mut pace = lock(&self.pace);
        if self.is_on() {
            return false;
        }
        if pace.completed != completed {
            pace.next = FIRST;
        }
        let delay = pace.next;
        (pace.next, pace.completed) = ((2 * delay).min(LONGEST), completed);
        let heard = set_alarm(delay);
        self.unheard.store(!heard, Ordering::SeqCst);
        self.on.store(true, Ordering::SeqCst);
        seq_cst_order();
        !heard
    }

    /// Ends the pause. Returns false if there was none, or another thread has ended it.
    pub(in crate::reactor) fn end(&self) -> bool {
        self.on.swap(false, Ordering::SeqCst)
    }
}
