//! Jobs as work requests, in a list on the stack, so that no Job allocates.

use std::ptr;

use arrayvec::ArrayVec;

use super::super::adapter::{LIST, REQUESTS, lkey, rkey};
use super::super::ffi::*;
use crate::device::{Access, CopyJob, RdmaJob, Receive, Segment, Segments, Token, Verb};

/// The id of a request that is not the last one of its Job. It completes only if it fails.
pub(in super::super) const UNNAMED: u64 = u64::MAX;

/// Returns the id of a probe. The id is not a Token. It contains the id of the queue pair, since an
/// adapter may give the number of a queue pair to a later one.
pub(in super::super) const fn probe(id: u64) -> u64 {
    id << 32 | u32::MAX as u64
}

const PIECES: usize = 64;

/// The maximum number of requests in a chain: those of a copy, or a batch of 32 jobs.
/// (`has_capacity` demands two free lists before a copy is added.)
const CHAIN: usize = 33;
const _: () = assert!(REQUESTS <= CHAIN);

const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;
const INLINE: u32 = ibv_send_flags::IBV_SEND_INLINE.0;

/// A list of work requests under construction.
pub(in super::super) struct Chain {
    wrs: ArrayVec<ibv_send_wr, CHAIN>,
    sges: ArrayVec<ibv_sge, PIECES>,
}

impl Chain {
    #[inline(always)]
    pub(in super::super) fn new() -> Chain {
        Chain {
            wrs: ArrayVec::new(),
            sges: ArrayVec::new(),
        }
    }

    /// Returns the numbers of requests and pieces.
    #[inline(always)]
    pub(super) fn mark(&self) -> (usize, usize) {
        (self.wrs.len(), self.sges.len())
    }

    /// Removes the requests and pieces that were appended since a [`mark`](Chain::mark).
    pub(in super::super) fn truncate(&mut self, (wrs, sges): (usize, usize)) {
        self.wrs.truncate(wrs);
        self.sges.truncate(sges);
    }

    /// Returns true if the chain has capacity for a Job of this many requests, and two lists of
    /// pieces.
    #[inline(always)]
    pub(super) fn has_capacity(&self, requests: usize) -> bool {
        self.wrs.len() + requests <= CHAIN && self.sges.len() + 2 * LIST <= PIECES
    }

    /// Links the requests. Returns the first one.
    #[inline(always)]
    pub(in super::super) fn link(&mut self) -> *mut ibv_send_wr {
        link(&mut self.wrs, &mut self.sges)
    }

    /// Returns the index of the request at this address, if there is one.
    pub(super) fn position(&self, wr: *const ibv_send_wr) -> Option<usize> {
        position(&self.wrs, wr)
    }

    /// Appends a copy: a write to the queue pair itself for each segment of the destination, or
    /// several if a segment needs more pieces than a request takes.
    pub(in super::super) fn push_copy(&mut self, token: Token, job: &CopyJob, max_sge: usize) {
        let CopyJob { src, dst, len } = job;
        let first = self.wrs.len();
        let mut to = dst.as_slice().iter().copied();
        let mut target = to.next();
        let mut left = *len;
        // True if the next piece continues where the last one ended, in the same segment of the
        // destination.
        let mut goes_on = false;
        for source in src.as_slice() {
            let mut source = *source;
            while let Some(range) = &mut target {
                let part = left.min(source.len()).min(range.len());
                if part > 0 {
                    self.sges.push(piece(&source, part));
                    match self.wrs.last_mut().filter(|_| goes_on) {
                        Some(wr) if (wr.num_sge as usize) < max_sge => wr.num_sge += 1,
                        _ => self.push_write(range),
                    }
                    goes_on = true;
                }
                left -= part;
                advance(&mut source, part);
                advance(range, part);
                if range.len() == 0 {
                    (goes_on, target) = (false, to.next());
                }
                if source.len() == 0 || left == 0 {
                    break;
                }
            }
        }
        if self.wrs.len() == first {
            // A write of no bytes names no memory, and needs no key.
            self.wrs.push(ibv_send_wr {
                opcode: IBV_WR_RDMA_WRITE,
                ..ibv_send_wr::default()
            });
        }
        if let Some(last) = self.wrs.last_mut() {
            (last.wr_id, last.send_flags) = (token.as_raw(), SIGNALED);
        }
    }

    fn push_write(&mut self, to: &Segment) {
        let mut wr = ibv_send_wr {
            wr_id: UNNAMED,
            num_sge: 1,
            opcode: IBV_WR_RDMA_WRITE,
            ..ibv_send_wr::default()
        };
        wr.wr.rdma.remote_addr = to.addr().addr().get() as u64;
        wr.wr.rdma.rkey = rkey(to.key());
        self.wrs.push(wr);
    }

    /// Appends an operation, which is one request.
    #[inline(always)]
    pub(in super::super) fn push_remote(&mut self, token: Token, job: &RdmaJob, how: &Remote) {
        self.wrs.push(ibv_send_wr::default());
        if let Some(wr) = self.wrs.last_mut() {
            fill_request(wr, token, job, how, &mut self.sges);
        }
    }

    /// Appends a probe, which asks whether the peer exists: a read of no bytes, which needs no key
    /// (InfiniBand specification, C9-88).
    pub(in super::super) fn push_probe(&mut self, id: u64, signaled: bool, iwarp: bool) {
        self.wrs.push(ibv_send_wr {
            wr_id: probe(id),
            opcode: IBV_WR_RDMA_READ,
            send_flags: if signaled { SIGNALED } else { 0 },
            num_sge: if iwarp { no_sink(&mut self.sges) } else { 0 },
            ..ibv_send_wr::default()
        });
    }
}

/// A list of receives under construction.
pub(in super::super) struct RecvChain {
    wrs: ArrayVec<ibv_recv_wr, RECEIVES>,
    sges: ArrayVec<ibv_sge, PIECES>,
}

/// The maximum number of receives in one list, which a stream posts at once.
const RECEIVES: usize = 32;

impl RecvChain {
    #[inline(always)]
    pub(in super::super) fn new() -> RecvChain {
        RecvChain {
            wrs: ArrayVec::new(),
            sges: ArrayVec::new(),
        }
    }

    pub(in super::super) fn len(&self) -> usize {
        self.wrs.len()
    }

    /// Returns true if one more receive fits, with any list.
    #[inline(always)]
    pub(in super::super) fn has_capacity(&self) -> bool {
        self.wrs.len() < RECEIVES && self.sges.len() + LIST <= PIECES
    }

    /// Appends a receive. Returns false if its list is longer than any adapter takes. The caller
    /// has checked `has_capacity`.
    #[inline(always)]
    pub(in super::super) fn push(&mut self, receive: &Receive, iwarp: bool) -> bool {
        let first = self.sges.len();
        // No message is longer than 2 GiB.
        let mut left = receive.len.min(1 << 31);
        for segment in receive.dst.as_slice() {
            let part = segment.len().min(left);
            if part > 0 && self.sges.len() < first + LIST {
                self.sges.push(piece(segment, part));
                left -= part;
            }
        }
        if left > 0 {
            self.sges.truncate(first);
            return false;
        }
        if iwarp && self.sges.len() == first {
            no_sink(&mut self.sges);
        }
        self.wrs.push(ibv_recv_wr {
            wr_id: receive.token.as_raw(),
            num_sge: (self.sges.len() - first) as i32,
            ..ibv_recv_wr::default()
        });
        true
    }

    /// Links the receives. Returns the first one.
    #[inline(always)]
    pub(super) fn link(&mut self) -> *mut ibv_recv_wr {
        link(&mut self.wrs, &mut self.sges)
    }

    /// As for `Chain::position`.
    pub(super) fn position(&self, wr: *const ibv_recv_wr) -> Option<usize> {
        position(&self.wrs, wr)
    }
}

/// A request or a receive in a list.
trait Linked {
    /// Returns the number of pieces of the request or receive.
    fn pieces(&self) -> usize;

    fn set(&mut self, next: *mut Self, pieces: *mut ibv_sge);
}

macro_rules! linked {
    ($($wr:ty)*) => {$(
        impl Linked for $wr {
            #[inline(always)]
            fn pieces(&self) -> usize {
                self.num_sge as usize
            }

            #[inline(always)]
            fn set(&mut self, next: *mut Self, pieces: *mut ibv_sge) {
                (self.next, self.sg_list) = (next, pieces);
            }
        }
    )*};
}

linked!(ibv_send_wr ibv_recv_wr);

/// Links each request to the next, and to its pieces, adjacent in `sges`. Returns the first
/// request.
#[inline(always)]
fn link<W: Linked>(wrs: &mut [W], sges: &mut [ibv_sge]) -> *mut W {
    let (first, count) = (wrs.as_mut_ptr(), wrs.len());
    let mut pieces = sges.as_mut_ptr();
    for (number, wr) in wrs.iter_mut().enumerate() {
        let next = match number + 1 == count {
            true => ptr::null_mut(),
            false => first.wrapping_add(number + 1),
        };
        // Without pieces this is null: irdma reads a first piece in any case, but not from null.
        let own = match wr.pieces() {
            0 => ptr::null_mut(),
            _ => pieces,
        };
        pieces = pieces.wrapping_add(wr.pieces());
        wr.set(next, own);
    }
    first
}

/// Returns the index of the element at this address, if there is one.
fn position<W>(wrs: &[W], wr: *const W) -> Option<usize> {
    let bytes = wr.addr().wrapping_sub(wrs.as_ptr().addr());
    Some(bytes / size_of::<W>()).filter(|&at| at < wrs.len())
}

/// Turns the empty request `wr` into that of an operation, whose list is appended to `sges`.
#[inline(always)]
pub(super) fn fill_request<const N: usize>(
    wr: &mut ibv_send_wr,
    token: Token,
    job: &RdmaJob,
    how: &Remote,
    sges: &mut ArrayVec<ibv_sge, N>,
) {
    (wr.wr_id, wr.send_flags) = (token.as_raw(), SIGNALED);
    let (remote_addr, rkey) = match &job.remote {
        Some(remote) => (remote.addr().addr().get() as u64, rkey(remote.key())),
        None => (0, 0),
    };
    let fits = job.len > 0 && job.len <= how.max_inline as usize;
    // Only one piece is sent inline, since irdma before rdma-core 44 sends the first piece and no
    // others.
    let inline = |pieces: i32| if fits && pieces == 1 { INLINE } else { 0 };
    let mut imm = |immediate: Option<u32>, [without, with]: [u32; 2]| match immediate {
        None => without,
        Some(value) => {
            wr.imm_data = value.to_be();
            with
        }
    };
    match job.verb {
        Verb::Send(immediate) => {
            wr.opcode = imm(immediate, [IBV_WR_SEND, IBV_WR_SEND_WITH_IMM]);
            wr.num_sge = gather(sges, &job.local, job.len);
            wr.send_flags |= inline(wr.num_sge);
        }
        Verb::Write(immediate) => {
            wr.opcode = imm(immediate, [IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM]);
            wr.num_sge = gather(sges, &job.local, job.len);
            wr.send_flags |= inline(wr.num_sge);
            wr.wr.rdma.remote_addr = remote_addr;
            wr.wr.rdma.rkey = rkey;
        }
        Verb::Read => {
            wr.opcode = IBV_WR_RDMA_READ;
            wr.num_sge = match how.iwarp && job.len == 0 {
                true => no_sink(sges),
                false => gather(sges, &job.local, job.len),
            };
            let permitted = how.permitted.contains(Access::RDMA_READ);
            (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey) = match permitted {
                true => (remote_addr, rkey),
                false => NOWHERE,
            };
        }
        Verb::CompareSwap { compare, swap } => {
            wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
            wr.num_sge = answer(sges, token, how);
            wr.wr.atomic.compare_add = compare;
            wr.wr.atomic.swap = swap;
            wr.wr.atomic.remote_addr = remote_addr;
            wr.wr.atomic.rkey = rkey;
        }
        Verb::FetchAdd(add) => {
            wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
            wr.num_sge = answer(sges, token, how);
            wr.wr.atomic.compare_add = add;
            wr.wr.atomic.remote_addr = remote_addr;
            wr.wr.atomic.rkey = rkey;
        }
    }
}

/// Appends an empty piece for a read or receive of no bytes on iWARP, where a read names its
/// destination (RFC 5040, 4.4). With an empty list, siw takes the piece of an earlier read, and
/// refuses the receive.
fn no_sink<const N: usize>(sges: &mut ArrayVec<ibv_sge, N>) -> i32 {
    sges.push(ibv_sge::default());
    1
}

#[inline(always)]
fn piece(segment: &Segment, len: usize) -> ibv_sge {
    ibv_sge {
        addr: segment.addr().addr().get() as u64,
        length: len as u32,
        lkey: lkey(segment.key()),
    }
}

/// Appends the first `len` bytes of a list. Returns the number of pieces.
#[inline(always)]
fn gather<const N: usize>(sges: &mut ArrayVec<ibv_sge, N>, from: &Segments, len: usize) -> i32 {
    if let Some(segment) = from.as_one().filter(|_| len > 0) {
        sges.push(piece(segment, len.min(segment.len())));
        return 1;
    }
    let (before, mut left) = (sges.len(), len);
    for segment in from.as_slice() {
        let part = left.min(segment.len());
        if part > 0 {
            sges.push(piece(segment, part));
        }
        left -= part;
    }
    (sges.len() - before) as i32
}

/// Appends the word for the answer of an atomic.
fn answer<const N: usize>(sges: &mut ArrayVec<ibv_sge, N>, token: Token, how: &Remote) -> i32 {
    sges.push(ibv_sge {
        addr: how.answers + 8 * u64::from(token.index()),
        length: 8,
        lkey: how.answers_lkey,
    });
    1
}

/// An address that no peer has exported: the last page of the address space. A read there fails on
/// both sides, as if the peer had refused it.
const NOWHERE: (u64, u32) = (!0xfff, 0);

/// The values that requests to a peer need besides the Job.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Remote {
    /// The permissions that the peer has given. Its adapter refuses writes and atomics that they do
    /// not allow. It allows all reads, since probes are reads, so this side refuses reads that are
    /// not permitted.
    pub(in super::super) permitted: Access,
    pub(in super::super) iwarp: bool,
    pub(in super::super) max_inline: u32,
    /// The address of an array of words that receive the answers, one for each Job.
    pub(in super::super) answers: u64,
    pub(in super::super) answers_lkey: u32,
}

fn advance(segment: &mut Segment, by: usize) {
    *segment = segment.part(by, segment.len() - by);
}

#[cfg(test)]
mod tests {
    #![expect(unsafe_code, reason = "lends lists to Jobs")]
    use std::ptr::NonNull;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn segments(from: usize, lens: &[usize], key: u64) -> Vec<Segment> {
        let mut at = from;
        let each = lens.iter().map(|&len| {
            let addr = NonNull::new(std::ptr::without_provenance_mut(at)).unwrap();
            at += len + 100;
            // SAFETY: no adapter gets the requests.
            unsafe { Segment::new(addr, len, key) }
        });
        each.collect()
    }

    /// Returns the addresses of the bytes of a list.
    fn addresses(of: &[Segment], len: usize) -> Vec<u64> {
        let each = of.iter().flat_map(|it| {
            let start = it.addr().addr().get();
            (start..start + it.len()).map(|at| at as u64)
        });
        each.take(len).collect()
    }

    proptest! {
        #[test]
        fn a_copy_becomes_writes_of_all_its_bytes(
            src in vec(0..9_usize, 1..=LIST),
            dst in vec(0..9_usize, 1..=LIST),
            cut in 0..10_usize,
            max_sge in 1..5_usize,
        ) {
            let (from, to) = (segments(0x1000, &src, 7), segments(0x9000, &dst, 9 << 32));
            let most = src.iter().sum::<usize>().min(dst.iter().sum());
            prop_assume!(most > 0);
            let len = most.saturating_sub(cut).max(1);
            // SAFETY: the list outlives the job.
            let src = unsafe { Segments::list(&from) };
            // SAFETY: as above.
            let dst = unsafe { Segments::list(&to) };
            let job = CopyJob { src, dst, len };
            let mut chain = Chain::new();
            let token = Token::new(0, 3, 4);
            chain.push_copy(token, &job, max_sge);
            let (wrs, sges) = chain.mark();
            prop_assert!(wrs <= REQUESTS && sges <= 2 * LIST);
            let (mut reads, mut writes) = (Vec::new(), Vec::new());
            let mut pieces = chain.sges.iter();
            for (number, wr) in chain.wrs.iter().enumerate() {
                let last = number + 1 == wrs;
                prop_assert_eq!((wr.wr_id == token.as_raw(), wr.send_flags == SIGNALED), (last, last));
                prop_assert!(wr.num_sge >= 1 && wr.num_sge as usize <= max_sge);
                // SAFETY: this is a write's part of the union, for which all bytes are valid.
                let rdma = unsafe { wr.wr.rdma };
                prop_assert_eq!(rdma.rkey, 9);
                let mut at = rdma.remote_addr;
                for _ in 0..wr.num_sge {
                    let sge = pieces.next().unwrap();
                    prop_assert_eq!(sge.lkey, 7);
                    reads.extend(sge.addr..sge.addr + u64::from(sge.length));
                    writes.extend(at..at + u64::from(sge.length));
                    at += u64::from(sge.length);
                }
            }
            prop_assert!(pieces.next().is_none());
            prop_assert_eq!(reads, addresses(&from, len));
            prop_assert_eq!(writes, addresses(&to, len));
            chain.link();
            let list: Vec<_> = chain.wrs.iter().map(|wr| wr.next as usize).collect();
            let want: Vec<_> = (1..=wrs).map(|at| match at == wrs {
                true => 0,
                false => &raw const chain.wrs[at] as usize,
            }).collect();
            prop_assert_eq!(list, want);
        }
    }

    fn remote(
        verb: Verb,
        len: usize,
        local: &[Segment],
        how: &Remote,
    ) -> (ibv_send_wr, Vec<ibv_sge>) {
        let job = RdmaJob {
            verb,
            // SAFETY: the list outlives the job.
            local: unsafe { Segments::list(local) },
            remote: Some(segments(0x9000, &[4096], 9 << 32)[0]),
            len,
        };
        let mut chain = Chain::new();
        chain.push_remote(Token::new(0, 3, 4), &job, how);
        (chain.wrs[0], chain.sges.to_vec())
    }

    #[test]
    fn each_verb_becomes_one_request() {
        let how = Remote {
            permitted: Access::all(),
            iwarp: false,
            max_inline: 16,
            answers: 0x5000,
            answers_lkey: 77,
        };
        let local = segments(0x1000, &[10, 10], 7);
        let (wr, sges) = remote(Verb::Send(Some(0x0102_0304)), 15, &local, &how);
        assert_eq!(wr.opcode, IBV_WR_SEND_WITH_IMM);
        assert_eq!(wr.imm_data, 0x0102_0304_u32.to_be());
        // The message has two pieces, and is not sent inline.
        assert_eq!((wr.num_sge, wr.send_flags), (2, SIGNALED));
        assert_eq!((sges[0].length, sges[1].length), (10, 5));
        let (wr, _) = remote(Verb::Send(None), 9, &local, &how);
        assert_eq!((wr.num_sge, wr.send_flags), (1, SIGNALED | INLINE));
        let (wr, sges) = remote(Verb::Write(None), 20, &local, &how);
        assert_eq!((wr.opcode, wr.send_flags), (IBV_WR_RDMA_WRITE, SIGNALED));
        assert_eq!(sges.len(), 2);
        let (wr, _) = remote(Verb::Read, 8, &local, &how);
        // SAFETY: this is a read's part of the union.
        let rdma = unsafe { wr.wr.rdma };
        assert_eq!((rdma.remote_addr, rdma.rkey, wr.num_sge), (0x9000, 9, 1));
        let (wr, sges) = remote(Verb::FetchAdd(5), 8, &[], &how);
        // SAFETY: this is an atomic's part of the union.
        let atomic = unsafe { wr.wr.atomic };
        assert_eq!((atomic.compare_add, atomic.rkey), (5, 9));
        assert_eq!(
            (sges[0].addr, sges[0].length, sges[0].lkey),
            (0x5018, 8, 77)
        );
        let nobody = Remote {
            permitted: Access::empty(),
            ..how
        };
        let (wr, _) = remote(Verb::Read, 8, &local, &nobody);
        // SAFETY: this is a read's part of the union.
        assert_eq!(unsafe { wr.wr.rdma.rkey }, 0);
        let (wr, sges) = remote(Verb::Send(None), 0, &[], &how);
        assert_eq!((wr.num_sge, sges.len(), wr.send_flags), (0, 0, SIGNALED));
    }
}
