//! Memory that reads write to, where the peer's answer is a write of the peer's (iWARP, RFC 5040):
//! for as long as the read takes, and no longer, it is registered so that the peer may.
#![expect(unsafe_code, reason = "registers memory that was lent")]

use std::sync::Arc;

use super::super::adapter::{Context, Mr};
use super::super::ffi::ibv_access_flags;
use crate::device::{Job, LeakFlag, RdmaJob, Segment, Segments, Token};
use crate::error::JobError;

/// The sinks of the reads of a connection.
#[derive(Default)]
pub(in super::super) struct Sinks {
    all: Vec<Sink>,
    /// A region of a read that was not posted stays: the connection ends, and all with it.
    pub(super) any_stuck: bool,
}

struct Sink {
    token: Token,
    regions: Vec<(Mr, LeakFlag)>,
    /// The peer may write there although a region is gone.
    stuck: bool,
    /// The pieces, by the keys of these regions.
    list: Box<[Segment]>,
}

impl Sink {
    /// Takes the peer's permission back; false if it may still write.
    fn end(&mut self) -> bool {
        for (region, stays) in self.regions.drain(..) {
            drop(region);
            self.stuck |= stays.is_set();
        }
        !self.stuck
    }
}

impl Sinks {
    /// Permits the peer to write where a read does; the read, by the keys of that. If a part of
    /// that was permitted and stays, it is the read as it was, not to be posted (`any_stuck`).
    ///
    /// # Safety
    ///
    /// The memory of the read is valid, and leased, until this was removed or cleared.
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
            let stays = region.tell_if_it_stays();
            sink.regions.push((region, stays));
        }
        sink.list = list.into_boxed_slice();
        // SAFETY: the list stays where it is until this is removed, when the job has completed.
        let local = unsafe { Segments::list(&sink.list) };
        self.all.push(sink);
        Ok(RdmaJob { local, ..*job })
    }

    /// A read has completed; false if its peer may still write there.
    pub(super) fn remove(&mut self, token: Token) -> bool {
        let at = self.all.iter().position(|sink| sink.token == token);
        at.is_none_or(|at| self.all.swap_remove(at).end())
    }

    /// Reads among these were not taken. Their sinks are removed, unless that of one stays: then
    /// `any_stuck` is set, and `clear` removes all.
    pub(super) fn were_refused(&mut self, jobs: &[(Token, Job<'_>)]) {
        let is_refused = |sink: &Sink| jobs.iter().any(|(token, _)| *token == sink.token);
        for sink in self.all.iter_mut().filter(|sink| is_refused(sink)) {
            self.any_stuck |= !sink.end();
        }
        if !self.any_stuck {
            self.all.retain(|sink| !is_refused(sink));
        }
    }

    /// All reads have completed. Returns those whose peer may still write there.
    pub(super) fn clear(&mut self) -> Vec<Token> {
        self.any_stuck = false;
        let mut all = std::mem::take(&mut self.all);
        all.retain_mut(|sink| !sink.end());
        all.iter().map(|sink| sink.token).collect()
    }
}
