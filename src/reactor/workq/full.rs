//! Handles a full device, which refuses a job although the WorkQ has a slot: decides which waiter
//! asks the device again, and when.
//!
//! A refusal is a value, [`Full`], that its holder cannot lose. Either the holder waits in line for
//! a slot and calls [`Full::stay`]: then the line *pauses*. Or the holder drops the value, and the
//! next waiter in line is notified and asks the device.
//!
//! While the line pauses, no waiter in line is notified of free slots, since the device would
//! refuse each of them in turn. The pause ends with the next completion that is collected, or when
//! its time has passed. A pause lasts 1 ms at first, twice as long each time that nothing has
//! completed since the last pause, and at most 100 ms. A timerfd in the event handle (`timer.rs`)
//! keeps the time, and is set before any thread can see the pause. So the line is always woken
//! after a pause, even if the future whose job was refused is dropped, forgotten, or never polled
//! again.

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
    /// Returns the error, for a caller that does not wait in line. This drops the refusal, which
    /// notifies the next waiter.
    fn from(refused: LaunchError<'_>) -> JobError {
        match refused {
            LaunchError::Full(full) => full.error,
            LaunchError::Error(error) => error,
        }
    }
}

/// A refusal by a device that is full. Dropping it notifies the next waiter in line, which asks the
/// device.
#[must_use = "the caller must ask the device again"]
pub(in crate::reactor) struct Full<'a> {
    shared: &'a Arc<Shared>,
    error: JobError,
    /// The number of completions that had been collected before the device was asked.
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

    /// Begins a pause of the line. The holder of this value must be in line, and is notified when
    /// the pause ends. Returns true if a job has completed meanwhile, so that the holder must ask
    /// the device again at once.
    pub(in crate::reactor) fn stay(self) -> bool {
        let this = ManuallyDrop::new(self);
        let shared = this.shared;
        shared.begin_pause(this.completed);
        // This turn goes through the gate. Either it comes after a turn that has collected a
        // completion, and this thread sees the changed count; or the other turn sees the pause.
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
