//! A device that refuses a job for which the WorkQ has a Slot: who asks it again, and when.
//!
//! A refusal is a value, [`Full`], that its holder cannot lose. Either the holder stands in line for a Slot and says so
//! ([`Full::stay`]): the line *pauses* then. Or the value is dropped, and the next in line is notified and asks for itself.
//!
//! While the line pauses nobody in it is notified of free Slots, since the device would refuse each of them in turn. The
//! pause ends with the next completion that is collected, or when its time is over: 1 ms, twice as long each time that
//! nothing has completed since the last pause, and at most 100 ms. The time is kept by a timerfd in the event handle
//! (`timer.rs`); it is set before anybody can see the pause. So a line that pauses is always woken, whatever
//! becomes of the future that met the refusal: it may be dropped, forgotten, or never polled again.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

use super::workq::Shared;
use crate::error::JobError;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, lock, seq_cst_order};

/// The first pause.
const FIRST: Duration = Duration::from_millis(1);
/// The longest pause.
const LONGEST: Duration = Duration::from_millis(100);

/// Why a job was not launched.
pub(super) enum Refused<'a> {
    /// The device is full.
    Full(Full<'a>),
    Error(JobError),
}

impl From<JobError> for Refused<'_> {
    fn from(error: JobError) -> Self {
        Refused::Error(error)
    }
}

impl From<Refused<'_>> for JobError {
    /// For a caller that does not stand in line: the next in line is notified.
    fn from(refused: Refused<'_>) -> JobError {
        match refused {
            Refused::Full(full) => full.error,
            Refused::Error(error) => error,
        }
    }
}

/// The device is full. If this is dropped, the next in line asks the device for itself.
#[must_use = "somebody must ask the device again"]
pub(super) struct Full<'a> {
    shared: &'a Arc<Shared>,
    error: JobError,
    /// How many completions had been collected before the device was asked.
    completed: u64,
}

impl<'a> Full<'a> {
    pub(super) fn new(shared: &'a Arc<Shared>, error: JobError, completed: u64) -> Full<'a> {
        Full {
            shared,
            error,
            completed,
        }
    }

    /// The holder stands in line, and will be notified when the pause ends. Returns true if it shall ask again at once, because a
    /// job has completed meanwhile.
    pub(super) fn stay(self) -> bool {
        let this = ManuallyDrop::new(self);
        let shared = this.shared;
        shared.pause.begin(shared, this.completed);
        // A turn goes through the gate: either it comes after the one that has collected a completion, and sees the count; or
        // that one sees the pause.
        shared.turn();
        let moved = shared.counts.collected() != this.completed;
        if moved {
            shared.resume(false);
        }
        moved
    }
}

impl Drop for Full<'_> {
    fn drop(&mut self) {
        self.shared.after_free();
    }
}

/// Whether the line for Slots pauses.
pub(super) struct Pause {
    on: AtomicBool,
    /// The timer could not be had: all in line poll until the time is over.
    unheard: AtomicBool,
    pace: Mutex<Pace>,
}

struct Pace {
    next: Duration,
    /// How many completions had been collected before the device was asked the last time.
    completed: u64,
}

impl Pause {
    pub(super) fn new() -> Pause {
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
    pub(super) fn is_on(&self) -> bool {
        seq_cst_order();
        self.on.load(Ordering::SeqCst)
    }

    /// Nobody hears the end of the pause: a future that waits for it wakes itself.
    pub(super) fn is_unheard(&self) -> bool {
        self.is_on() && self.unheard.load(Ordering::SeqCst)
    }

    /// How long the pause lasts, if there is one.
    pub(super) fn left(&self, shared: &Shared) -> Option<Duration> {
        self.is_on().then(|| shared.alarm_left())
    }

    pub(super) fn begin(&self, shared: &Arc<Shared>, completed: u64) {
        let mut pace = lock(&self.pace);
        if self.is_on() {
            return;
        }
        if pace.completed != completed {
            pace.next = FIRST;
        }
        let delay = pace.next;
        (pace.next, pace.completed) = ((2 * delay).min(LONGEST), completed);
        let heard = shared.set_alarm(delay);
        self.unheard.store(!heard, Ordering::SeqCst);
        self.on.store(true, Ordering::SeqCst);
        seq_cst_order();
        drop(pace);
        if !heard {
            shared.waiters.wake_all();
        }
    }

    /// Returns false if somebody else has ended it.
    fn end(&self) -> bool {
        self.on.swap(false, Ordering::SeqCst)
    }
}

impl Shared {
    /// Ends the pause, and notifies those in line. With `overtake` those that were notified before, and have taken nothing,
    /// do not count.
    pub(super) fn resume(&self, overtake: bool) {
        if self.pause.end() {
            self.tell(self, overtake);
        }
    }

    /// Ends the pause if its time is over.
    #[inline]
    pub(super) fn resume_if_due(&self) {
        if self.pause.left(self).is_some_and(|left| left.is_zero()) {
            self.resume(true);
        }
    }
}
