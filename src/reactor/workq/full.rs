//! A device that refuses a job for which the WorkQ has a Slot: who asks it again, and when.
//!
//! A refusal is a value, [`Full`], that its holder cannot lose. Either the holder waits in line for
//! a Slot and says so ([`Full::stay`]): the line *pauses* then. Or the value is dropped, and the
//! next in line is notified and asks for itself.
//!
//! While the line pauses nobody in it is notified of free Slots, since the device would refuse each
//! of them in turn. The pause ends with the next completion that is collected, or when its time has
//! passed: 1 ms, twice as long each time that nothing has completed since the last pause, and at
//! most 100 ms. The time is kept by a timerfd in the event handle (`timer.rs`); it is set before
//! anybody can see the pause. So a line that pauses is always woken, whatever becomes of the future
//! that met the refusal: it may be dropped, forgotten, or never polled again.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use super::shared::Shared;
use crate::error::JobError;

/// Why a job was not launched.
pub(in crate::reactor) enum LaunchError<'a> {
    /// The device is full.
    Full(Full<'a>),
    Error(JobError),
}

impl From<JobError> for LaunchError<'_> {
    fn from(error: JobError) -> Self {
        LaunchError::Error(error)
    }
}

impl From<LaunchError<'_>> for JobError {
    /// For a caller that does not wait in line: the next in line is notified.
    fn from(refused: LaunchError<'_>) -> JobError {
        match refused {
            LaunchError::Full(full) => full.error,
            LaunchError::Error(error) => error,
        }
    }
}

/// The device is full. If this is dropped, the next in line asks the device for itself.
#[must_use = "somebody must ask the device again"]
pub(in crate::reactor) struct Full<'a> {
    shared: &'a Arc<Shared>,
    error: JobError,
    /// How many completions had been collected before the device was asked.
    completed: u64,
}

impl<'a> Full<'a> {
    pub(in crate::reactor) fn new(
        shared: &'a Arc<Shared>,
        error: JobError,
        completed: u64,
    ) -> Full<'a> {
        Full {
            shared,
            error,
            completed,
        }
    }

    /// The holder waits in line, and will be notified when the pause ends. Returns true if it shall
    /// ask again at once, because a job has completed meanwhile.
    pub(in crate::reactor) fn stay(self) -> bool {
        let this = ManuallyDrop::new(self);
        let shared = this.shared;
        shared.begin_pause(this.completed);
        // A turn goes through the gate: either it comes after the one that has collected a
        // completion, and sees the count; or that one sees the pause.
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
