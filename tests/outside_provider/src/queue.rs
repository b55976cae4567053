//! A queue with its own thread, which is the device. The code of a violation names its [`Sin`].

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use tokio_doca::device::contract::{
    Armed, Completion, CrcJob, Job, KeepAlive, Queue, QueueConfig, Segment, Segments, SessionRef,
    ShaJob, Signal, Submit, Submitted, Token,
};
use tokio_doca::{Error, ErrorKind, Result, error::JobError};

use super::{Control, ECHO, FILL, Sin, crc, hash};

/// A job in the device's own form: it combines each byte with `key`, fills with `key`, or computes
/// a hash or a CRC.
#[derive(Clone, Copy)]
struct Work {
    token: Token,
    src: Segments,
    dst: Segments,
    key: u8,
    /// True if `key` is written without reading a source.
    fills: bool,
    hash: Option<ShaJob>,
    crc: Option<CrcJob>,
    /// The result of the job, in place of the number of bytes written.
    answer: Option<u64>,
    /// True if the job has no completion.
    silent: bool,
}

struct OutsideQueue(Arc<Shared>);

struct Shared {
    sin: Sin,
    control: Arc<Control>,
    state: Mutex<State>,
    changed: Condvar,
    signal: Arc<Signal>,
}

#[derive(Default)]
struct State {
    todo: VecDeque<Work>,
    done: VecDeque<Completion>,
    armed: bool,
    keep: Option<KeepAlive>,
    closed: bool,
}

pub(super) fn open(config: QueueConfig, sin: Sin, control: Arc<Control>) -> Result<Arc<dyn Queue>> {
    let shared = Arc::new(Shared {
        sin,
        control,
        state: Mutex::default(),
        changed: Condvar::new(),
        signal: config.signal,
    });
    let worker = Arc::clone(&shared);
    thread::Builder::new()
        .spawn(move || worker.run())
        .map_err(|error| Error::os(None, "the worker's thread", error))?;
    Ok(Arc::new(OutsideQueue(shared)))
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn submit(&self, jobs: impl ExactSizeIterator<Item = Work>) -> Submitted {
        let all = jobs.len();
        let mut state = self.lock();
        let refuse = all > 1 && self.control.refuse.swap(false, Ordering::SeqCst);
        let accepted = match self.sin {
            Sin::RefusesForEver => 0,
            _ if refuse => 1,
            _ => all,
        };
        for (number, work) in jobs.enumerate() {
            if number < accepted {
                state.todo.push_back(work);
            } else if self.sin == Sin::DoesTheRefused {
                let silent = true;
                state.todo.push_back(Work { silent, ..work });
            }
        }
        self.changed.notify_all();
        let full = JobError::device(ErrorKind::Again, 0);
        let refused = accepted < all || self.sin == Sin::RefusesNothing;
        Submitted {
            accepted,
            refused: refused.then_some(full),
        }
    }

    /// Runs the device's thread.
    fn run(&self) {
        let (mut number, mut session) = (0, None);
        while let Some(work) = self.next() {
            drop(self.control.hold());
            let sinful = number % 20 == 19;
            number += 1;
            let all = work.len();
            // A test submits jobs of one kind only, so this is the session of the job before.
            let before = session;
            session = work.hash.and_then(|job| job.session);
            let sin = match self.sin {
                Sin::MixesSessions | Sin::HashesTwice if !sinful => Sin::None,
                sin => sin,
            };
            let len = match self.sin {
                Sin::WritesTooLittle if sinful => all - 1,
                _ => all,
            };
            let known = work.is_known(&self.control);
            let mut result = Ok(work.answer.unwrap_or(all as u64));
            if known && self.sin != Sin::CompletesEarly {
                // SAFETY: the memory of an accepted job is valid and leased until its completion
                // was reaped.
                let answer = unsafe { execute(&work, sin, len, before) };
                result = answer.unwrap_or(result);
            }
            if work.silent || (sinful && self.sin == Sin::LosesOne) {
                continue;
            }
            let mut completion = Completion::new(work.token, result);
            if !known {
                completion.result = Err(JobError::device(ErrorKind::InvalidValue, 0));
            }
            match self.sin {
                Sin::Miscounts if sinful => completion.result = Ok(all as u64 - 1),
                Sin::ForgesToken if sinful => completion.token = Token::new(0, 0, u32::MAX),
                Sin::CompletesTwice if sinful => self.lock().done.push_back(completion),
                _ => {}
            }
            let mut state = self.lock();
            state.done.push_back(completion);
            let signals = match self.sin {
                Sin::SignalsUnasked => true,
                Sin::NeverSignals => false,
                _ => std::mem::take(&mut state.armed),
            };
            if signals {
                self.signal.raise();
            }
            self.changed.notify_all();
            if let Sin::CompletesEarly | Sin::WritesLate = self.sin {
                while !state.done.is_empty() && !state.closed {
                    let woken = self.changed.wait(state);
                    state = woken.unwrap_or_else(PoisonError::into_inner);
                }
                let key = !work.key;
                // SAFETY: a sin. The suite keeps the memory until `keep` is dropped, below.
                unsafe { execute(&Work { key, ..work }, sin, len, before) };
            }
        }
        let keep = self.lock().keep.take();
        match self.sin {
            Sin::KeepsForEver => std::mem::forget(keep),
            // Dropped without the lock, since the queue itself may be dropped with it.
            _ => drop(keep),
        }
    }

    fn next(&self) -> Option<Work> {
        let mut state = self.lock();
        loop {
            if let Some(work) = state.todo.pop_front() {
                return Some(work);
            }
            if state.closed {
                return None;
            }
            let woken = self.changed.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }
}

impl Work {
    fn new(token: Token, src: Segments, dst: Segments) -> Work {
        Work {
            token,
            src,
            dst,
            key: 0,
            fills: false,
            hash: None,
            crc: None,
            answer: None,
            silent: false,
        }
    }

    /// Returns true if all memory of the job is registered.
    fn is_known(&self, control: &Control) -> bool {
        let digest = self.hash.and_then(|job| job.dst);
        let lists = [self.src.as_slice(), self.dst.as_slice(), digest.as_slice()];
        lists.iter().all(|list| control.knows(list))
    }

    /// Returns the number of bytes that the job writes.
    fn len(&self) -> usize {
        if let Some(job) = &self.hash {
            return job.answer() as usize;
        }
        total(if self.fills { &self.dst } else { &self.src })
    }
}

fn total(segments: &Segments) -> usize {
    segments
        .as_slice()
        .iter()
        .map(|segment| segment.len())
        .sum()
}

/// Returns the address of each byte, in order.
fn places(segments: &Segments) -> impl Iterator<Item = *mut u8> {
    let place = |segment: &Segment, at| {
        // SAFETY: the offset lies within the segment.
        unsafe { segment.addr().add(at) }.as_ptr()
    };
    segments
        .as_slice()
        .iter()
        .flat_map(move |segment| (0..segment.len()).map(move |at| place(segment, at)))
}

/// Executes at most `len` bytes of the job; `before` is the session of the previous job. Returns
/// the job's result if that is not the number of bytes.
///
/// # Safety
///
/// The memory and the sessions are valid and leased; source and destination are disjoint.
unsafe fn execute(
    work: &Work,
    sin: Sin,
    len: usize,
    before: Option<SessionRef>,
) -> Option<Result<u64, JobError>> {
    if let Some(job) = &work.hash {
        // SAFETY: the caller guarantees that memory and sessions are valid.
        unsafe { hash::execute(job, sin, len, before) };
        return None;
    }
    if let Some(job) = &work.crc {
        // SAFETY: the caller guarantees that the memory is valid.
        return Some(unsafe { crc::execute(job, sin, len) });
    }
    let mut sources = places(&work.src);
    for to in places(&work.dst).take(len.min(work.len())) {
        let byte = match sources.next() {
            // SAFETY: the caller guarantees that the memory is valid.
            Some(from) => unsafe { from.read() },
            None => 0,
        };
        // SAFETY: as above.
        unsafe { to.write(byte ^ work.key) };
    }
    None
}

/// Converts a job; returns `None` for a kind that the device does not know.
fn work(token: Token, job: Job<'_>) -> Option<Work> {
    Some(match job {
        Job::Copy(job) => Work::new(token, job.src, job.dst),
        Job::Accel(job) => Work {
            key: job.arg as u8,
            fills: job.opcode == FILL,
            answer: (job.opcode == ECHO).then_some(job.arg),
            ..Work::new(token, job.src, job.dst)
        },
        Job::Crc(job) => Work {
            crc: Some(*job),
            ..Work::new(token, job.src, job.dst)
        },
        Job::Sha(job) => Work {
            hash: Some(*job),
            ..Work::new(token, job.src, Segments::none())
        },
        _ => return None,
    })
}

impl OutsideQueue {
    /// # Safety
    ///
    /// The same as for [`Submit::try_inline`].
    unsafe fn try_inline_work(&self, work: &Work) -> Option<std::result::Result<u64, JobError>> {
        let len = work.len();
        match self.0.sin {
            Sin::BeginsInline => {
                let begun = if work.hash.is_some() {
                    len
                } else {
                    len / 2 + 1
                };
                // SAFETY: the caller guarantees that the memory is valid.
                unsafe { execute(work, Sin::None, begun, None) };
                None
            }
            _ if self.0.control.is_held() => None,
            _ if total(&work.src) > 64 || !work.is_known(&self.0.control) => None,
            sin => {
                // SAFETY: as above.
                let answer = unsafe { execute(work, Sin::None, len, None) };
                let answer = answer.unwrap_or(Ok(work.answer.unwrap_or(len as u64)));
                Some(answer.map(|answer| answer - u64::from(sin == Sin::MiscountsInline)))
            }
        }
    }
}

// SAFETY: keeps the duties of `tokio_doca::device::contract`, unless a `Sin` is set. Only tests of
// the contract suite set one, and the suite keeps the memory of all jobs alive. 1. A job passes
// through `todo` and `done` once. 2. A job is pushed to `done` after the last access to its memory.
// 3. A refused job is not pushed. 4. `try_inline` executes all of a job or nothing. 5. Under the
// lock either `arm` sees a completion, or the next completion sees `armed`, and clears it. 6. The
// thread drops `keep` at its end. 7. The lock is held only briefly.
unsafe impl Submit for OutsideQueue {
    unsafe fn try_inline(&self, job: Job<'_>) -> Option<std::result::Result<u64, JobError>> {
        let work = work(Token::from_raw(u64::MAX), job)?;
        // SAFETY: the job's memory and session are valid and leased during the call.
        unsafe { self.try_inline_work(&work) }
    }

    unsafe fn submit(&self, jobs: &[(Token, Job<'_>)]) -> Submitted {
        let known: Vec<_> = jobs
            .iter()
            .map_while(|(token, job)| work(*token, *job))
            .collect();
        let unknown = &jobs[known.len()..];
        let submitted = self.0.submit(known.into_iter());
        if self.0.sin == Sin::TakesAnyKind && submitted.refused.is_none() {
            return Submitted {
                accepted: jobs.len(),
                refused: None,
            };
        }
        match submitted.refused {
            Some(_) => submitted,
            None => Submitted {
                accepted: submitted.accepted,
                ..Submitted::unsupported(unknown)
            },
        }
    }
}

// SAFETY: keeps the duties of a queue, as above for `Submit`.
unsafe impl Queue for OutsideQueue {
    fn ready(&self) -> bool {
        !self.0.lock().done.is_empty()
    }

    unsafe fn reap(&self, out: &mut [Completion]) -> usize {
        let mut state = self.0.lock();
        while self.0.sin == Sin::BlocksInReap && state.done.is_empty() {
            let woken = self.0.changed.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
        let count = state.done.len().min(out.len());
        for (place, completion) in out.iter_mut().zip(state.done.drain(..count)) {
            *place = completion;
        }
        self.0.changed.notify_all();
        match self.0.sin {
            Sin::CountsTooMany if count > 0 && count < out.len() => count + 1,
            _ => count,
        }
    }

    fn arm(&self) -> Armed {
        let mut state = self.0.lock();
        let waits = !state.done.is_empty();
        match self.0.sin {
            Sin::ReadyUnarmed if waits => return Armed::Ready,
            _ => state.armed = true,
        }
        if waits && self.0.sin != Sin::ArmsBlindly {
            Armed::Ready
        } else {
            Armed::Armed
        }
    }

    unsafe fn retire(&self, keep: KeepAlive, _outstanding: usize) {
        if self.0.sin == Sin::DropsEarly {
            drop(keep);
        } else {
            self.0.lock().keep = Some(keep);
        }
        self.0.close();
    }
}

impl Drop for OutsideQueue {
    fn drop(&mut self) {
        self.0.close();
    }
}
