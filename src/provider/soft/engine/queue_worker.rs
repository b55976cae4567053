//! The half of a queue that does its Jobs: driven by the engine's thread, or, on a device without
//! engines, by who reaps.

use std::time::Instant;

use super::super::fault::{Fault, Faults};
use super::rings::{Consumer, Work};
use crate::device::CpuState;
use crate::error::JobError;

/// Jobs of one queue before the next one has its turn.
const TURN: usize = 16;

/// Bytes that take longer to copy than a fence.
const LONG: usize = 8 << 10;

/// What a worker does not do itself.
pub(in super::super) trait Driver {
    /// Whether it looks again when time has passed.
    const KEEPS_TIME: bool;

    /// How many bytes it copies in one go, if others wait for their turn.
    const PIECE: usize;

    /// Does a part of a copy, from this byte on, and says how many bytes it was. Less than all:
    /// enough for one turn.
    fn copy(&mut self, work: &Work, from: usize) -> usize;

    /// A Job is about to complete.
    fn count(&mut self);
}

/// A queue, and what whoever drives it keeps.
pub(in super::super) struct QueueWorker {
    consumer: Consumer,
    faults: Faults,
    /// Jobs that the script put aside, oldest first.
    deferred: Vec<(Until, Work)>,
    /// How many Jobs the script has lost.
    lost: usize,
    /// A Job that is done in parts, and how far it is.
    begun: Option<(Work, usize)>,
    /// How far the CPU is with a job that it computes in parts.
    cpu: CpuState,
}

/// When a Job that was put aside is done.
enum Until {
    Time(Instant),
    /// When so many Jobs of the queue have completed. Meanwhile none is done inline.
    Completed(u64),
    /// When the queue is retired.
    Retired,
}

impl QueueWorker {
    pub(in super::super) fn new(consumer: Consumer, faults: Faults) -> QueueWorker {
        QueueWorker {
            consumer,
            faults,
            deferred: Vec::new(),
            lost: 0,
            begun: None,
            cpu: CpuState::default(),
        }
    }

    /// Returns the queue that it drives.
    pub(in super::super) fn consumer(&self) -> &Consumer {
        &self.consumer
    }

    /// Returns true if there is a Job that was not begun.
    #[inline(always)]
    pub(in super::super) fn has_work(&self) -> bool {
        self.consumer.has_work(self.consumer.position())
    }

    /// Returns when the next Job that was put aside is due, if that is a matter of time.
    pub(in super::super) fn due(&self) -> Option<Instant> {
        self.deferred
            .iter()
            .filter_map(|(until, _)| until.time())
            .min()
    }

    /// Returns true if there is something to do before the next Job: one that is half done, or one
    /// that was put aside and is due.
    pub(in super::super) fn is_busy(&self) -> bool {
        self.begun.is_some() || self.first_due().is_some()
    }

    /// Does some Jobs; true if there was one.
    #[inline(always)]
    pub(in super::super) fn drive(&mut self, driver: &mut impl Driver) -> bool {
        let mut found = false;
        for _ in 0..TURN {
            if self.faults.is_held() {
                break;
            }
            let Some((work, from)) = self.next() else {
                break;
            };
            if found && work.cost() > LONG {
                self.consumer.ring_for_certain();
            }
            found = true;
            let is_over = if work.fault != Fault::Pass || self.consumer.is_broken() {
                self.begin_scripted(driver, work)
            } else {
                self.go_on(driver, work, from)
            };
            if !is_over {
                break;
            }
        }
        if found {
            self.consumer.ring_for_certain();
        }
        found
    }

    /// The next Job, and how far it is.
    #[inline(always)]
    fn next(&mut self) -> Option<(Work, usize)> {
        if let Some(begun) = self.begun.take() {
            return Some(begun);
        }
        if !self.deferred.is_empty()
            && let Some(at) = self.first_due()
        {
            let (until, work) = self.deferred.remove(at);
            self.waits_no_more(&until);
            return Some((work, 0));
        }
        self.consumer.next().map(|work| (work, 0))
    }

    /// Continues with a Job; false if the rest is left to the next turn.
    #[inline(always)]
    fn go_on(&mut self, driver: &mut impl Driver, work: Work, from: usize) -> bool {
        if from == 0
            && let Err(error) = work.check()
        {
            fail(&mut self.consumer, driver, work, error);
            return true;
        }
        let at = from + part(driver, &mut self.cpu, &work, from);
        if at < work.len() {
            self.begun = Some((work, at));
            return false;
        }
        driver.count();
        let outcome = work.outcome(&self.cpu);
        self.consumer.finish(work, outcome);
        true
    }

    /// Begins a Job as the script says; false if the rest is left to the next turn.
    #[cold]
    fn begin_scripted<D: Driver>(&mut self, driver: &mut D, mut work: Work) -> bool {
        if self.consumer.is_broken() {
            if let Fault::Behind(_) = work.fault {
                self.faults.resume_inline();
            }
            fail(&mut self.consumer, driver, work, JobError::queue_failed());
            return true;
        }
        match std::mem::replace(&mut work.fault, Fault::Pass) {
            Fault::Delay(time) if D::KEEPS_TIME => {
                // What lies beyond the clock is never due.
                let until = Instant::now()
                    .checked_add(time)
                    .map_or(Until::Retired, Until::Time);
                self.deferred.push((until, work));
            }
            Fault::Pass | Fault::QueueFull | Fault::Delay(_) => {
                return self.go_on(driver, work, 0);
            }
            Fault::Error(kind, vendor) => fail(
                &mut self.consumer,
                driver,
                work,
                JobError::device(kind, vendor),
            ),
            Fault::Behind(jobs) => {
                let until = Until::Completed(self.consumer.completed().saturating_add(jobs.into()));
                self.deferred.push((until, work));
            }
            Fault::Lost => {
                self.lost += 1;
                self.consumer.lose(work);
            }
            Fault::Queue => {
                self.consumer.break_down(&self.faults);
                fail(&mut self.consumer, driver, work, JobError::queue_failed());
                for (until, work) in std::mem::take(&mut self.deferred) {
                    self.waits_no_more(&until);
                    fail(&mut self.consumer, driver, work, JobError::queue_failed());
                }
            }
        }
        true
    }

    /// A Job is not put aside any more.
    #[cold]
    fn waits_no_more(&self, until: &Until) {
        if let Until::Completed(_) = until {
            self.faults.resume_inline();
        }
    }

    /// Returns which of those that were put aside is due, if one is: the first of them.
    #[cold]
    fn first_due(&self) -> Option<usize> {
        if self.deferred.is_empty() {
            return None;
        }
        let now = Instant::now();
        // Of a queue that is retired nothing more will complete.
        let completed = if self.consumer.is_retired() && !self.has_work() {
            u64::MAX
        } else {
            self.consumer.completed()
        };
        // No other Job can come for which those that are put aside wait.
        let is_full = self.deferred.len() + self.lost == self.consumer.depth();
        let stuck = is_full && self.due().is_none();
        let due = self.deferred.iter().enumerate().filter(|(_, (until, _))| {
            until.is_due(now, completed) || stuck && matches!(until, Until::Completed(_))
        });
        due.min_by_key(|(_, (until, _))| until.time())
            .map(|(at, _)| at)
    }
}

impl Drop for QueueWorker {
    /// Without an engine nobody does the Jobs of a queue that is gone.
    fn drop(&mut self) {
        for (until, _) in &self.deferred {
            self.waits_no_more(until);
        }
        while let Some(work) = self.consumer.next() {
            if let Fault::Behind(_) = work.fault {
                self.faults.resume_inline();
            }
        }
    }
}

/// Does a part of a Job, from this byte on, and says how many bytes it was.
#[inline(always)]
fn part<D: Driver>(driver: &mut D, cpu: &mut CpuState, work: &Work, from: usize) -> usize {
    match work.compute(cpu, from, D::PIECE) {
        Some(computed) => computed,
        None => driver.copy(work, from),
    }
}

fn fail(consumer: &mut Consumer, driver: &mut impl Driver, work: Work, error: JobError) {
    driver.count();
    consumer.finish(work, Err(error));
}

impl Until {
    fn time(&self) -> Option<Instant> {
        match self {
            Until::Time(time) => Some(*time),
            Until::Completed(_) | Until::Retired => None,
        }
    }

    fn is_due(&self, now: Instant, completed: u64) -> bool {
        match self {
            Until::Time(time) => *time <= now,
            Until::Completed(jobs) => *jobs <= completed,
            Until::Retired => completed == u64::MAX,
        }
    }
}
