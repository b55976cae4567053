//! The half of a queue that does its jobs. The engine's thread drives it or, on a device without
//! engines, the thread that reaps the queue.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::super::fault::{Fault, Faults, Stuck};
use super::rings::{Consumer, Work};
use crate::device::CpuState;
use crate::error::JobError;

/// The maximum number of jobs of one queue before the next queue has its turn.
const TURN: usize = 16;

/// A copy of more than this number of bytes takes longer than a fence.
const LONG: usize = 8 << 10;

/// What a worker needs from the thread that drives it.
pub(in super::super) trait Driver {
    /// True if the thread drives the worker again later without another call, so that delays can
    /// end.
    const KEEPS_TIME: bool;

    /// A part of a job that is no copy takes as long as a copy of this number of bytes.
    const PIECE: usize;

    /// Does a part of a copy, from byte `from` on, and returns its length in bytes. A part that
    /// ends before the copy does uses up the turn.
    fn copy(&mut self, work: &Work, from: usize) -> usize;

    /// Counts a job that is about to complete.
    fn count(&mut self);
}

/// A queue, and the state that its driver keeps between two turns.
pub(in super::super) struct QueueWorker {
    consumer: Consumer,
    faults: Faults,
    /// Jobs that the script deferred, oldest first.
    deferred: Vec<(Until, Work)>,
    /// The count of the WorkQ's jobs that do not complete by themselves, including those of
    /// `deferred`.
    stuck: Arc<Stuck>,
    /// A job that is done in parts, and the number of bytes that are done.
    begun: Option<(Work, usize)>,
    /// The progress of a job that the CPU computes in parts.
    cpu: CpuState,
}

/// The condition for doing a deferred job.
enum Until {
    Time(Instant),
    /// Once the queue has completed this number of jobs. Until then no job is done inline.
    Completed(u64),
    /// Once the queue is retired.
    Retired,
}

impl QueueWorker {
    pub(in super::super) fn new(
        consumer: Consumer,
        faults: Faults,
        stuck: Arc<Stuck>,
    ) -> QueueWorker {
        QueueWorker {
            consumer,
            faults,
            deferred: Vec::new(),
            stuck,
            begun: None,
            cpu: CpuState::default(),
        }
    }

    /// Returns the queue that this worker drives.
    pub(in super::super) fn consumer(&self) -> &Consumer {
        &self.consumer
    }

    /// Returns true if there is a job that was not begun.
    #[inline(always)]
    pub(in super::super) fn has_work(&self) -> bool {
        self.consumer.has_work(self.consumer.position())
    }

    /// Returns when the next deferred job is due, if that depends on time.
    pub(in super::super) fn due(&self) -> Option<Instant> {
        self.deferred
            .iter()
            .filter_map(|(until, _)| until.time())
            .min()
    }

    /// Returns true if there is something to do before the next job: a job that is partly done, or
    /// a deferred job that is due.
    pub(in super::super) fn is_busy(&self) -> bool {
        self.begun.is_some() || self.first_due().is_some()
    }

    /// Does up to `TURN` jobs. Returns true if there was a job to do.
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
                self.consumer.signal_for_certain();
            }
            found = true;
            let is_over = if work.fault != Fault::Pass || self.consumer.is_broken() {
                self.begin_scripted(driver, work)
            } else {
                self.continue_job(driver, work, from)
            };
            if !is_over {
                break;
            }
        }
        if found {
            self.consumer.signal_for_certain();
        }
        found
    }

    /// Takes the next job, and the number of its bytes that are done.
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

    /// Continues with a job. Returns false if the rest is left to the next turn.
    #[inline(always)]
    fn continue_job(&mut self, driver: &mut impl Driver, work: Work, from: usize) -> bool {
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

    /// Begins a job as the script of faults says. Returns false if the rest is left to the next
    /// turn.
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
                // A time that the clock cannot represent never comes.
                let until = Instant::now()
                    .checked_add(time)
                    .map_or(Until::Retired, Until::Time);
                self.defer(until, work);
            }
            Fault::Pass | Fault::QueueFull | Fault::Delay(_) => {
                return self.continue_job(driver, work, 0);
            }
            Fault::Error(kind, vendor) => fail(
                &mut self.consumer,
                driver,
                work,
                JobError::device(kind, vendor),
            ),
            Fault::Behind(jobs) => {
                let until = Until::Completed(self.consumer.completed().saturating_add(jobs.into()));
                self.defer(until, work);
            }
            Fault::Lost => {
                self.faults.add_stuck(&self.stuck, Stuck::NEVER);
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

    fn defer(&mut self, until: Until, work: Work) {
        let job = until.stuck();
        self.deferred.push((until, work));
        self.faults.add_stuck(&self.stuck, job);
    }

    /// Takes a deferred job out of the counts, and permits inline jobs again if the job prevented
    /// them.
    #[cold]
    fn waits_no_more(&self, until: &Until) {
        self.stuck.jobs.fetch_sub(until.stuck(), Ordering::SeqCst);
        if let Until::Completed(_) = until {
            self.faults.resume_inline();
        }
    }

    /// Returns the index of the deferred job that is due first, if one is due.
    #[cold]
    fn first_due(&self) -> Option<usize> {
        if self.deferred.is_empty() {
            return None;
        }
        let now = Instant::now();
        // A retired queue without further work completes no more jobs.
        let completed = if self.consumer.is_retired() && !self.has_work() {
            u64::MAX
        } else {
            self.consumer.completed()
        };
        let stuck = self.stuck.is_full();
        let due = self.deferred.iter().enumerate().filter(|(_, (until, _))| {
            until.is_due(now, completed) || stuck && matches!(until, Until::Completed(_))
        });
        due.min_by_key(|(_, (until, _))| until.time())
            .map(|(at, _)| at)
    }
}

impl Drop for QueueWorker {
    /// On a device without engines, the jobs of a dropped queue are never done.
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

/// Does a part of a job, from byte `from` on, and returns its length in bytes.
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

    /// Returns the amount by which the job counts in `Stuck`.
    fn stuck(&self) -> u64 {
        match self {
            Until::Time(_) => 0,
            Until::Completed(_) => Stuck::BEHIND,
            Until::Retired => Stuck::NEVER,
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
