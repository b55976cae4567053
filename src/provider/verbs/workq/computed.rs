//! Jobs that the adapter cannot do. The CPU computes a part of the oldest job in each poll of the
//! reaper.
#![expect(unsafe_code, reason = "reaches memory that was lent")]

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use crate::device::{Completion, CpuJob, CpuState, Token};
use crate::sync::lock;

/// The work of one poll: as much as copying this many bytes, some tens of microseconds.
const PIECE: usize = 256 << 10;
/// A job that takes no longer than copying this many bytes is done inline, since it is not worth a
/// Slot.
pub(super) const INLINE: usize = 64 << 10;

pub(super) struct Computed {
    pending: AtomicUsize,
    queue: Mutex<CpuQueue>,
}

struct CpuQueue {
    jobs: VecDeque<(Token, CpuJob)>,
    state: CpuState,
    /// The number of bytes of the oldest job that were read.
    done: usize,
}

impl Computed {
    pub(super) fn new(depth: u32) -> Computed {
        Computed {
            pending: AtomicUsize::new(0),
            queue: Mutex::new(CpuQueue {
                jobs: VecDeque::with_capacity(depth as usize),
                state: CpuState::default(),
                done: 0,
            }),
        }
    }

    pub(super) fn pending(&self) -> bool {
        self.pending.load(SeqCst) > 0
    }

    /// Queues a job that was submitted.
    pub(super) fn submit(&self, token: Token, job: CpuJob) {
        lock(&self.queue).jobs.push_back((token, job));
        self.pending.fetch_add(1, SeqCst);
    }

    /// Does a part of the oldest job. Returns its completion, once it has one.
    pub(super) fn work(&self) -> Option<Completion> {
        let CpuQueue { jobs, state, done } = &mut *lock(&self.queue);
        let (token, job) = *jobs.front()?;
        // SAFETY: the job was submitted, and has not completed, so that memory and session are
        // valid, and leased.
        *done += unsafe { state.work(&job, *done, PIECE) };
        if *done < job.len() {
            return None;
        }
        *done = 0;
        jobs.pop_front();
        self.pending.fetch_sub(1, SeqCst);
        Some(Completion::new(token, state.outcome(&job)))
    }

    /// Drops all jobs, whose memory is then no longer touched.
    pub(super) fn end(&self) {
        let mut queue = lock(&self.queue);
        self.pending.fetch_sub(queue.jobs.len(), SeqCst);
        queue.jobs.clear();
    }
}
