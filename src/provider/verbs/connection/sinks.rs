//! Memory that reads write to, where the peer's answer is a write of the peer's (iWARP, RFC 5040):
//! for as long as the read takes, and no longer, it is registered so that the peer may.
#![expect(unsafe_code, reason = "registers memory that was lent")]

use std::sync::Arc;

use super::super::adapter::{Context, Mr};
use super::super::ffi::ibv_access_flags;
use crate::device::{LeakFlag, RdmaJob, Segment, Segments, Token};
use crate::error::JobError;

/// The sinks of the reads of a connection.
#[derive(Default)]
pub(in super::super) struct Sinks(Vec<Sink>);

struct Sink {
    token: Token,
    regions: Vec<(Mr, LeakFlag)>,
    /// The pieces, by the keys of these regions.
    _list: Box<[Segment]>,
}

impl Sink {
    /// Takes the peer's permission back; false if it may still write.
    fn end(self) -> bool {
        let ended = |(region, stays): (Mr, LeakFlag)| {
            drop(region);
            !stays.is_set()
        };
        self.regions
            .into_iter()
            .map(ended)
            .fold(true, |all, one| all & one)
    }
}

impl Sinks {
    /// Permits the peer to write where a read does; the read, by the keys of that.
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
        let (mut left, mut regions, mut list) = (job.len, Vec::new(), Vec::new());
        for segment in job.local.as_slice() {
            let (addr, len) = (segment.addr(), segment.len().min(left));
            if len == 0 {
                continue;
            }
            left -= len;
            // SAFETY: the domain is the context's. The range is valid until the region is dropped,
            // as the caller promises.
            let region = unsafe { Mr::register(context, context.pd(), addr, len, flags) };
            let mut region = region.map_err(|error| JobError::device(error.kind(), 0))?;
            // SAFETY: the key is that of a region of these bytes, which are the job's.
            list.push(unsafe { Segment::new(addr, len, region.lkey().into()) });
            let stays = region.tell_if_it_stays();
            regions.push((region, stays));
        }
        let list = list.into_boxed_slice();
        // SAFETY: the list stays where it is until this is removed, when the job is over.
        let local = unsafe { Segments::list(&list) };
        self.0.push(Sink {
            token,
            regions,
            _list: list,
        });
        Ok(RdmaJob { local, ..*job })
    }

    /// A read is over, or was not taken; false if its peer may still write there.
    pub(super) fn remove(&mut self, token: Token) -> bool {
        let at = self.0.iter().position(|sink| sink.token == token);
        at.is_none_or(|at| self.0.swap_remove(at).end())
    }

    /// All reads are over. Returns those whose peer may still write there.
    pub(super) fn clear(&mut self) -> Vec<Token> {
        let ended = self.0.drain(..).map(|sink| (sink.token, sink.end()));
        ended
            .filter_map(|(token, ended)| (!ended).then_some(token))
            .collect()
    }
}
