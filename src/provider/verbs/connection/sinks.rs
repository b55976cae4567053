//! Memory to which reads write on iWARP, where the peer answers a read with a write of its own (RFC
//! 5040). The memory is registered for the peer only as long as the read takes.
#![expect(unsafe_code, reason = "registers memory that was lent")]

use std::sync::Arc;

use super::super::adapter::{Context, Mr};
use super::super::ffi::ibv_access_flags;
use crate::device::{Job, LeakFlag, RdmaJob, Segment, Segments, Token};
use crate::error::JobError;

/// The memory that a connection's iWARP reads fill.
#[derive(Default)]
pub(in super::super) struct Sinks {
    all: Vec<Sink>,
    /// True if a read was not posted, but a region of its sink could not be deregistered. The
    /// connection must then end.
    pub(super) any_stuck: bool,
}

struct Sink {
    token: Token,
    regions: Vec<(Mr, LeakFlag)>,
    /// True if the peer may still write to the memory, since a region could not be deregistered.
    stuck: bool,
    /// The pieces of the read, with the keys of `regions`.
    list: Box<[Segment]>,
}

impl Sink {
    /// Revokes the peer's permission. Returns false if the peer may still write.
    fn end(&mut self) -> bool {
        for (region, stays) in self.regions.drain(..) {
            drop(region);
            self.stuck |= stays.is_set();
        }
        !self.stuck
    }
}

impl Sinks {
    /// Permits the peer to write to the memory of a read. Returns the read, with the keys of the
    /// new regions. If registering a piece fails, and the region of an earlier piece stays, sets
    /// `any_stuck` and returns the read unchanged; the caller must not post it.
    ///
    /// # Safety
    ///
    /// The memory of the read is valid, and leased, until the sink was removed or cleared.
    pub(super) unsafe fn add(
        &mut self,
        context: &Arc<Context>,
        token: Token,
        job: &RdmaJob,
    ) -> Result<RdmaJob, JobError> {
        let flags =
            ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
        let mut sink = Sink {
            token,
            regions: Vec::new(),
            stuck: false,
            list: Box::default(),
        };
        let (mut left, mut list) = (job.len, Vec::new());
        for segment in job.local.as_slice() {
            let (addr, len) = (segment.addr(), segment.len().min(left));
            if len == 0 {
                continue;
            }
            left -= len;
            // SAFETY: the domain is the context's. The range is valid until the region is dropped,
            // as the caller promises.
            let region = unsafe { Mr::register(context, context.pd(), addr, len, flags) };
            let mut region = match region {
                Ok(region) => region,
                Err(error) if sink.end() => return Err(JobError::device(error.kind(), 0)),
                Err(_) => {
                    self.any_stuck = true;
                    self.all.push(sink);
                    return Ok(*job);
                }
            };
            // SAFETY: the key is that of a region of these bytes, which are the job's.
            list.push(unsafe { Segment::new(addr, len, region.lkey().into()) });
            let stays = region.log_if_it_stays();
            sink.regions.push((region, stays));
        }
        sink.list = list.into_boxed_slice();
        // SAFETY: the list is not moved until the sink is removed, when the job has completed.
        let local = unsafe { Segments::list(&sink.list) };
        self.all.push(sink);
        Ok(RdmaJob { local, ..*job })
    }

    /// Removes the sink of a read that has completed. Returns false if the peer may still write to
    /// the memory.
    pub(super) fn remove(&mut self, token: Token) -> bool {
        let at = self.all.iter().position(|sink| sink.token == token);
        at.is_none_or(|at| self.all.swap_remove(at).end())
    }

    /// Removes the sinks of the reads among `jobs`, which were not posted. If the region of a sink
    /// stays, sets `any_stuck` and removes none of them; `clear` later removes all.
    pub(super) fn were_refused(&mut self, jobs: &[(Token, Job<'_>)]) {
        let is_refused = |sink: &Sink| jobs.iter().any(|(token, _)| *token == sink.token);
        for sink in self.all.iter_mut().filter(|sink| is_refused(sink)) {
            self.any_stuck |= !sink.end();
        }
        if !self.any_stuck {
            self.all.retain(|sink| !is_refused(sink));
        }
    }

    /// Removes all sinks. Returns the reads to whose memory the peer may still write.
    pub(super) fn clear(&mut self) -> Vec<Token> {
        self.any_stuck = false;
        let mut all = std::mem::take(&mut self.all);
        all.retain_mut(|sink| !sink.end());
        all.iter().map(|sink| sink.token).collect()
    }
}
