//! Pure functions: a Job to work requests, a work completion to a result.

use std::ffi::c_int;
use std::ptr;

use tokio_doca::device::{Job, Segment};
use tokio_doca::{ErrorKind, JobError};

use super::memory;
use super::table::*;

/// Pieces on one side of a Job, the provider's `max_list_len`.
pub(super) const LIST: usize = 8;
/// The most work requests of one Job: each piece that is left after a cut was cut by one side.
pub(super) const REQUESTS: usize = 2 * LIST - 1;
/// `wr_id` of all requests of a Job but its last. They complete only if they fail, and then the last follows, flushed.
pub(super) const CHAINED: u64 = u64::MAX;

/// A list of work requests under construction: on the stack, nothing is allocated per Job.
pub(super) struct Chain {
    pub(super) wrs: [ibv_send_wr; Chain::LEN],
    sges: [ibv_sge; Chain::LEN],
    wr_count: usize,
    sge_count: usize,
}

impl Chain {
    const LEN: usize = 4 * REQUESTS;

    pub(super) fn new() -> Chain {
        let wr = ibv_send_wr {
            wr_id: CHAINED,
            next: ptr::null_mut(),
            sg_list: ptr::null_mut(),
            num_sge: 0,
            opcode: IBV_WR_RDMA_WRITE,
            send_flags: 0,
            remote_addr: 0,
            rkey: 0,
        };
        let sge = ibv_sge {
            addr: 0,
            length: 0,
            lkey: 0,
        };
        Chain {
            wrs: [wr; Chain::LEN],
            sges: [sge; Chain::LEN],
            wr_count: 0,
            sge_count: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.wr_count
    }

    /// Whether any Job fits; it has no more requests than pieces.
    pub(super) fn has_room(&self) -> bool {
        self.sge_count + REQUESTS <= Chain::LEN
    }

    /// Appends a Job: one request for each remote range and `max_sge` local ones, of which the last is signalled.
    pub(super) fn push(&mut self, token: u64, job: &Job, max_sge: usize) {
        let first = self.wr_count;
        pieces(job, |src, dst, len| {
            let (lkey, rkey) = (memory::lkey(src.key), memory::rkey(dst.key));
            let sge = ibv_sge {
                addr: address(src),
                length: len as u32,
                lkey,
            };
            let wr = self.wrs[first..self.wr_count].last_mut();
            let goes_on = wr.filter(|wr| {
                // The same remote range, right behind what this request writes already.
                let taken = &self.sges[self.sge_count - wr.num_sge as usize..self.sge_count];
                let end =
                    wr.remote_addr + taken.iter().map(|sge| u64::from(sge.length)).sum::<u64>();
                wr.rkey == rkey && end == address(dst) && (wr.num_sge as usize) < max_sge
            });
            match goes_on {
                Some(wr) => wr.num_sge += 1,
                None => {
                    let wr = &mut self.wrs[self.wr_count];
                    (wr.wr_id, wr.send_flags, wr.num_sge) = (CHAINED, 0, 1);
                    (wr.remote_addr, wr.rkey) = (address(dst), rkey);
                    self.wr_count += 1;
                }
            }
            self.sges[self.sge_count] = sge;
            self.sge_count += 1;
        });
        let last = &mut self.wrs[self.wr_count - 1];
        (last.wr_id, last.send_flags) = (token, IBV_SEND_SIGNALED);
    }

    /// Takes back what was appended since.
    pub(super) fn truncate(&mut self, (wr_count, sge_count): (usize, usize)) {
        (self.wr_count, self.sge_count) = (wr_count, sge_count);
    }

    pub(super) fn mark(&self) -> (usize, usize) {
        (self.wr_count, self.sge_count)
    }

    /// Links the requests, and gives the first.
    pub(super) fn link(&mut self) -> *mut ibv_send_wr {
        let wrs = self.wrs.as_mut_ptr();
        let mut sges = self.sges.as_mut_ptr();
        for (number, wr) in self.wrs[..self.wr_count].iter_mut().enumerate() {
            let is_last = number + 1 == self.wr_count;
            wr.next = if is_last {
                ptr::null_mut()
            } else {
                wrs.wrapping_add(number + 1)
            };
            wr.sg_list = sges;
            sges = sges.wrapping_add(wr.num_sge as usize);
        }
        wrs
    }
}

fn address(segment: &Segment) -> u64 {
    segment.addr.addr().get() as u64
}

/// Calls `f` with each piece that lies in one Segment of both sides.
fn pieces(job: &Job, mut f: impl FnMut(&Segment, &Segment, usize)) {
    let Job::Copy { src, dst, len } = job else {
        unreachable!("the capabilities have no other Job")
    };
    let (mut sources, mut targets) = (src.as_slice().iter(), dst.as_slice().iter());
    let (mut from, mut to) = (sources.next().copied(), targets.next().copied());
    let mut left = *len;
    while let (Some(source), Some(target), true) = (&mut from, &mut to, left > 0) {
        let part = left.min(source.len).min(target.len);
        f(source, target, part);
        left -= part;
        if advance(source, part) {
            from = sources.next().copied();
        }
        if advance(target, part) {
            to = targets.next().copied();
        }
    }
}

/// True at its end.
fn advance(segment: &mut Segment, by: usize) -> bool {
    segment.len -= by;
    let Some(addr) = segment.addr.addr().checked_add(by) else {
        return true;
    };
    segment.addr = segment.addr.with_addr(addr);
    segment.len == 0
}

/// What a failed completion says.
pub(super) fn failure(status: c_int, vendor: u32) -> JobError {
    let kind = match status {
        IBV_WC_LOC_PROT_ERR | IBV_WC_REM_ACCESS_ERR => ErrorKind::NotPermitted,
        IBV_WC_WR_FLUSH_ERR => ErrorKind::ConnectionAborted,
        _ => ErrorKind::IoFailed,
    };
    JobError::device(kind, (status as u64) << 32 | u64::from(vendor))
}

/// Why `post_send` refused.
pub(super) fn refusal(errno: c_int) -> JobError {
    let kind = match errno {
        libc::ENOMEM => ErrorKind::Again,
        libc::EINVAL => ErrorKind::InvalidValue,
        _ => ErrorKind::IoFailed,
    };
    JobError::device(kind, errno as u64)
}
