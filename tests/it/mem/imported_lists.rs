//! Lists with ranges of imported memory: one copy gathers from them and scatters to them.

use std::ops::Range;

use futures::executor::block_on;
use support::random::Random;
use support::*;
use tokio_doca::soft::{Limits, Soft, SoftBuilder, View};
use tokio_doca::{
    Buf, BufPool, Dma, ErrorKind, Mmap, Mode, Rdma, WorkQ,
    crc::Crc,
    error::{JobError, Reason},
    mem::{Access, BufChain, BufInventory, ChainPiece, RemoteMmap},
    sha::{Algorithm, Sha},
};

const DPU: Access = Access::LOCAL_READ_WRITE.union(Access::DPU_READ_WRITE);
const DPU_READS: Access = Access::LOCAL_READ_WRITE.union(Access::DPU_READ_ONLY);
const LEN: usize = 4096;

/// Memory of the host that the DPU has imported.
struct Shared {
    mmap: Mmap,
    remote: RemoteMmap,
}

impl Shared {
    fn bytes(&self, range: Range<usize>) -> Vec<u8> {
        let buf = BufInventory::with_capacity(1);
        let buf = buf.buf_filled(&self.mmap, range).unwrap();
        let mut bytes = vec![0; buf.data_len()];
        buf.copy_out(0, &mut bytes).unwrap();
        bytes
    }
}

/// A `Dma` on the DPU's side, with its own memory.
struct Bench {
    soft: Soft,
    dma: Dma,
    local: Mmap,
    bufs: BufInventory,
}

impl Bench {
    fn new(dpu: SoftBuilder) -> Bench {
        let soft = dpu.view(View::Dpu).build();
        let device = soft.open("p0").unwrap();
        let workq = WorkQ::builder().mode(Mode::BusyPoll).build().unwrap();
        Bench {
            soft,
            dma: Dma::builder(&device).attach(&workq).unwrap(),
            local: Mmap::builder().device(&device).alloc(LEN).unwrap(),
            bufs: BufInventory::with_capacity(64),
        }
    }

    fn shared(&self, access: Access) -> Shared {
        let host = Soft::builder().build().open("pf0").unwrap();
        let builder = Mmap::builder().device(&host).access(access);
        let mmap = builder.alloc(LEN).unwrap();
        let blob = mmap.export_dpu(&host).unwrap();
        let remote = RemoteMmap::from_export(self.dma.device(), &blob).wait();
        let remote = remote.unwrap();
        Shared { mmap, remote }
    }

    fn filled(&self, range: Range<usize>) -> Buf {
        self.bufs.buf_filled(&self.local, range).unwrap()
    }

    fn empty(&self, range: Range<usize>) -> Buf {
        self.bufs.buf(&self.local, range).unwrap()
    }

    fn copy(&self, src: &BufChain, dst: &BufChain) -> Result<usize, JobError> {
        block_on(self.dma.copy(src, dst))
    }
}

fn chain(pieces: impl IntoIterator<Item = ChainPiece>) -> BufChain {
    let pieces: Vec<ChainPiece> = pieces.into_iter().collect();
    let chain = BufChain::with_capacity(pieces.len());
    pieces
        .into_iter()
        .for_each(|piece| chain.push(piece).unwrap());
    chain
}

/// Returns a device for each way in which the software device copies.
fn ways() -> [SoftBuilder; 4] {
    let soft = Soft::builder;
    [
        soft(),
        soft().defer(true),
        soft().inline_limit(0),
        soft().engines(0),
    ]
}

/// Lists of pieces of two imports and of local memory, split at random, are copied like one piece.
#[test]
fn lists_of_several_imports_and_local_memory_copy_like_one_piece() {
    for (way, soft) in ways().into_iter().enumerate() {
        let bench = Bench::new(soft);
        let shared = [bench.shared(DPU), bench.shared(DPU)];
        let mut dice = Random(way as u64);
        for _ in 0..100 {
            // Sources are in the lower half of each memory, and destinations in the upper half.
            let half = LEN / 2;
            let texts = [1, 2, 3].map(|_| pattern(dice.below(250) as u8, LEN));
            let fill = |mmap: &Mmap, text: &[u8]| {
                let all = bench.bufs.buf_filled(mmap, ..).unwrap();
                all.copy_in(0, text).unwrap();
            };
            fill(&bench.local, &texts[2]);
            for (shared, text) in shared.iter().zip(&texts) {
                fill(&shared.mmap, text);
            }
            let (mut src, mut dst) = (Vec::new(), Vec::new());
            let mut expected = texts.clone();
            let mut moved = Vec::new();
            for _ in 0..1 + dice.below(6) {
                let (of, at) = (dice.below(3) as usize, dice.below(1000) as usize);
                let piece = at..at + dice.below(300) as usize;
                moved.extend_from_slice(&texts[of][piece.clone()]);
                src.push(match shared.get(of) {
                    Some(shared) => shared.remote.buf(piece).unwrap().into(),
                    None => ChainPiece::from(bench.filled(piece)),
                });
            }
            let (mut room, mut ends) = (0, [half; 3]);
            while room < moved.len() {
                let of = dice.below(3) as usize;
                let len = (dice.below(700) as usize).min(LEN - ends[of]);
                let piece = ends[of]..ends[of] + len;
                let part = len.min(moved.len() - room);
                let target = &mut expected[of][piece.start..piece.start + part];
                target.copy_from_slice(&moved[room..room + part]);
                (ends[of], room) = (piece.end, room + len);
                dst.push(match shared.get(of) {
                    Some(shared) => shared.remote.buf(piece).unwrap().into(),
                    None => ChainPiece::from(bench.empty(piece)),
                });
            }
            let (src, dst) = (chain(src), chain(dst));
            assert_eq!((src.data_len(), dst.tailroom()), (moved.len(), room));
            assert_eq!(bench.copy(&src, &dst), Ok(moved.len()));
            drop((src, dst));
            let found = bench.filled(0..LEN);
            assert!(found.data().unwrap()[..] == expected[2][..], "local memory");
            for (shared, expected) in shared.iter().zip(&expected) {
                assert!(shared.bytes(0..LEN) == *expected, "imported memory");
            }
        }
    }
}

#[test]
fn what_a_copy_appends_to_a_buf_lies_behind_what_imported_pieces_took() {
    let bench = Bench::new(Soft::builder());
    let shared = bench.shared(DPU);
    let (first, last) = (bench.empty(1000..1010), bench.empty(2000..2010));
    let dst = chain([
        ChainPiece::from(&first),
        shared.remote.buf(..20).unwrap().into(),
        ChainPiece::from(&last),
    ]);
    let src = chain([bench.filled(0..33).into()]);
    assert_eq!(bench.copy(&src, &dst), Ok(33));
    assert_eq!((first.data_len(), last.data_len()), (10, 3));
    // Each copy writes a range from its start, but appends to the data of a Buf.
    assert_eq!(dst.tailroom(), 27);
    let pop = || dst.pop().unwrap();
    assert!(pop().is_some() && pop().is_some() && pop().is_some() && pop().is_none());
}

#[test]
fn a_list_that_shares_memory_with_itself_is_refused() {
    let bench = Bench::new(Soft::builder());
    let overlaps = |src: &BufChain, dst: &BufChain| {
        let error = bench.copy(src, dst).unwrap_err();
        assert_eq!(error.reason(), Reason::Overlap, "{error}");
        // The refused copy has left no leases on the lists.
        src.pop().unwrap();
        dst.pop().unwrap();
    };
    // Memory with leases, and memory of a pool, on which a `RemoteBuf` takes none.
    for claimed in [false, true] {
        let shared = bench.shared(DPU);
        let claim = || BufPool::builder(&shared.mmap).build().unwrap();
        let _pool = claimed.then(claim);
        let range = |range| ChainPiece::from(shared.remote.buf(range).unwrap());
        let other = || ChainPiece::from(bench.empty(3000..3500));
        overlaps(
            &chain([range(0..10), range(100..200)]),
            &chain([range(300..400), range(199..250)]),
        );
        overlaps(
            &chain([bench.filled(0..10).into()]),
            &chain([range(0..10), other(), range(9..30)]),
        );
        let both = chain([range(0..10), range(20..30)]);
        overlaps(&both, &both.clone());
        // Only a destination must not contain a byte twice.
        let twice = chain([range(0..10), range(5..15), range(0..10)]);
        let dst = chain([range(15..20), other(), range(20..30)]);
        assert_eq!(bench.copy(&twice, &dst), Ok(30));
    }
    // A Buf of a pool overlaps with a range of the same memory that takes no leases.
    let host = Soft::builder().build();
    let both = Soft::builder().view(View::Dpu).build();
    let (pf0, p0) = (host.open("pf0").unwrap(), both.open("p0").unwrap());
    let builder = Mmap::builder().device(&pf0).device(&p0).access(DPU);
    let mmap = builder.alloc(LEN).unwrap();
    let pool = BufPool::builder(&mmap).element_size(1024).build().unwrap();
    let (buf, free) = (pool.try_alloc().unwrap(), pool.try_alloc().unwrap());
    buf.set_data(0, 1024).unwrap();
    let dma = Dma::builder(&p0).attach(&WorkQ::builder().build().unwrap());
    let dma = dma.unwrap();
    let remote = RemoteMmap::from_export(&p0, &mmap.export_dpu(&pf0).unwrap());
    let remote = remote.wait().unwrap();
    let range = |range| chain([remote.buf(range).unwrap().into()]);
    let shares = block_on(dma.copy(&buf, range(1000..2048))).unwrap_err();
    assert_eq!(shares.reason(), Reason::Overlap);
    let shares = block_on(dma.copy(range(1000..1100), &free)).unwrap_err();
    assert_eq!(shares.reason(), Reason::Overlap);
    assert_eq!(block_on(dma.copy(&buf, range(1024..2048))), Ok(1024));
}

#[test]
fn a_range_in_a_list_takes_leases_like_a_buf() {
    let bench = Bench::new(Soft::builder());
    let shared = bench.shared(DPU_READS);
    let local = bench.bufs.buf_filled(&shared.mmap, 50..150).unwrap();
    let src = chain([
        bench.filled(0..10).into(),
        shared.remote.buf(..100).unwrap().into(),
    ]);
    let dst = chain([bench.empty(1000..2000).into()]);
    let guard = local.data_mut().unwrap();
    let error = bench.copy(&src, &dst).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse);
    assert!(
        error.to_string().starts_with("piece 1 of the chain: "),
        "{error}"
    );
    drop(guard);
    assert_eq!(bench.copy(&src, &dst), Ok(110));
    assert!(shared.mmap.stop().is_err(), "a range is on it");
    drop((src, local));
    shared.mmap.stop().unwrap();
}

#[test]
fn a_refused_piece_is_named() {
    let bench = Bench::new(Soft::builder());
    let (readable, writable) = (bench.shared(DPU_READS), bench.shared(DPU));
    let src = chain([bench.filled(0..64).into()]);
    let dst = chain([
        writable.remote.buf(..32).unwrap().into(),
        readable.remote.buf(..32).unwrap().into(),
    ]);
    let error = bench.copy(&src, &dst).unwrap_err();
    assert_eq!(error.reason(), Reason::RemoteNotWritable);
    assert_eq!(
        error.to_string(),
        "piece 1 of the chain: the exporter's Mmap does not let this peer write: build it with \
         RDMA_WRITE for an Rdma, with DPU_READ_WRITE for a Dma"
    );
    // Memory that was imported for an `Rdma`, and memory that another device imported.
    let device = bench.dma.device();
    let builder = Mmap::builder().device(device);
    let builder = builder.access(Access::LOCAL_READ_WRITE | Access::RDMA_READ);
    let mmap = builder.alloc(LEN).unwrap();
    let blob = mmap.export_rdma(device).unwrap();
    let rdma = RemoteMmap::from_export(device, &blob).wait().unwrap();
    let foreign = Bench::new(Soft::builder()).shared(DPU);
    for (piece, reason) in [
        (rdma.buf(..).unwrap(), Reason::NotForDma),
        (foreign.remote.buf(..).unwrap(), Reason::ForeignDevice),
    ] {
        let src = chain([bench.filled(0..4).into(), piece.into()]);
        let error = bench.copy(&src, &dst).unwrap_err();
        assert_eq!(error.reason(), reason);
        assert!(
            error.to_string().starts_with("piece 1 of the chain: "),
            "{error}"
        );
    }
    assert_eq!(writable.bytes(0..32), [0; 32], "nothing was moved");
}

#[test]
fn limits_hold_for_lists_of_imported_memory() {
    let limits = Limits::unlimited().max_list_len(2).max_buf_size(100);
    let bench = Bench::new(Soft::builder().limits(limits));
    let shared = bench.shared(DPU);
    let range = |range| ChainPiece::from(shared.remote.buf(range).unwrap());
    let dst = chain([bench.empty(0..1000).into()]);
    let error = |src| bench.copy(&src, &dst).unwrap_err().reason();
    let long = chain([range(0..1), range(1..2), range(2..3)]);
    assert_eq!(error(long), Reason::ListTooLong);
    let large = chain([range(0..60), range(60..101)]);
    assert_eq!(error(large), Reason::TooLarge);
    // Empty ranges do not count.
    let src = chain([range(0..60), range(60..60), range(60..100)]);
    assert_eq!(bench.copy(&src, &dst), Ok(100));
}

/// The remote side of a remote operation must be one range, and the local side local memory; jobs
/// that the CPU computes need local memory.
#[test]
fn only_copies_take_lists_with_imported_memory() {
    let bench = Bench::new(Soft::builder());
    let (device, workq) = (bench.dma.device(), bench.dma.workq());
    let access = Access::RDMA_READ | Access::RDMA_WRITE;
    let attach = || Rdma::builder(device).permissions(access).attach(&workq);
    let (here, there) = (attach().unwrap(), attach().unwrap());
    here.connect(&there.export().unwrap()).wait().unwrap();
    there.connect(&here.export().unwrap()).wait().unwrap();
    let builder = Mmap::builder().device(device);
    let mmap = builder.access(Access::LOCAL_READ_WRITE | access);
    let mmap = mmap.alloc(LEN).unwrap();
    let blob = mmap.export_rdma(device).unwrap();
    let remote = RemoteMmap::from_export(device, &blob).wait().unwrap();
    let range = |range| remote.buf(range).unwrap();
    let list = chain([bench.filled(0..64).into(), range(0..64).into()]);
    let (buf, room) = (bench.filled(100..200), bench.empty(200..300));
    let sha = Sha::builder(device).attach(&workq).unwrap();
    let crc = Crc::builder(device).attach(&workq).unwrap();
    let shared = bench.shared(DPU);
    let imported = chain([shared.remote.buf(..100).unwrap().into()]);
    let refused = |error: JobError, piece: usize| {
        assert_eq!(error.reason(), Reason::RemoteInChain);
        assert_eq!(error.kind(), ErrorKind::NotSupported);
        let start = format!("piece {piece} of the chain: ");
        assert!(error.to_string().starts_with(&start), "{error}");
    };
    let runtime = runtime();
    runtime.block_on(async {
        refused(here.send(&list).await.unwrap_err(), 1);
        refused(here.recv(&list).await.unwrap_err(), 1);
        let write = here.write(&list, range(1000..2000)).await;
        refused(write.unwrap_err(), 1);
        let read = here.read(range(1000..1020), &list).await;
        refused(read.unwrap_err(), 1);
        let hash = sha.hash(Algorithm::Sha256, &imported, &room).await;
        refused(hash.unwrap_err(), 0);
        let digest = sha.hash(Algorithm::Sha256, &buf, &imported).await;
        refused(digest.unwrap_err(), 0);
        refused(crc.crc32c(&imported).await.unwrap_err(), 0);
        refused(crc.copy_crc(&imported, &room).await.unwrap_err(), 0);
        refused(crc.copy_crc(&buf, &imported).await.unwrap_err(), 0);
        // A copy takes the list that those jobs have refused.
        assert_eq!(bench.dma.copy(&imported, &room).await, Ok(100));
    });
    list.pop().unwrap();
    assert_eq!(runtime.block_on(here.write(&list, range(0..64))), Ok(64));
}

/// A list in flight is kept with its ranges, whatever happens to the handles.
#[test]
fn a_list_in_flight_keeps_its_ranges() {
    let bench = Bench::new(Soft::builder().defer(true));
    let shared = bench.shared(DPU);
    let src = chain([shared.remote.buf(..100).unwrap().into()]);
    let dst = chain([bench.empty(0..100).into()]);
    let runtime = runtime();
    let hold = bench.soft.faults().hold();
    runtime.block_on(async {
        let mut copy = Box::pin(bench.dma.copy(src.clone(), dst.clone()));
        poll_pending(copy.as_mut());
        // Another job may read the list meanwhile; a hash is refused because of the imported
        // memory.
        let kind = src.pop().map(drop).unwrap_err().kind();
        assert_eq!(kind, ErrorKind::InUse);
        let sha = Sha::builder(bench.dma.device()).attach(&bench.dma.workq());
        let room = bench.empty(200..300);
        let hash = sha.unwrap().hash(Algorithm::Sha256, &src, &room).await;
        assert_eq!(hash.unwrap_err().reason(), Reason::RemoteInChain);
        drop(src);
        assert!(shared.mmap.stop().is_err());
        drop(hold);
        assert_eq!(copy.await, Ok(100));
    });
    shared.mmap.stop().unwrap();
}

/// Two threads copy between two lists in both directions. Either copy may be refused, and neither
/// waits for the other.
#[test]
fn copies_in_both_directions_at_once_end() {
    let bench = Bench::new(Soft::builder());
    let shared = bench.shared(DPU);
    let _pool = BufPool::builder(&shared.mmap).build().unwrap();
    let pieces = |from: usize| {
        let range = |at: usize| ChainPiece::from(shared.remote.buf(at..at + 10).unwrap());
        chain((0..8).map(|piece| range(from + 20 * piece)))
    };
    let (one, other) = (pieces(0), pieces(1000));
    let done = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for (src, dst) in [(&one, &other), (&other, &one), (&one, &one)] {
            let (dma, done) = (&bench.dma, &done);
            scope.spawn(move || {
                for _ in 0..3000 {
                    match block_on(dma.copy(src, dst)) {
                        Ok(bytes) => {
                            assert_eq!(bytes, 80);
                            done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        }
                        Err(error) => assert!(
                            [Reason::ChainInUse, Reason::Overlap].contains(&error.reason()),
                            "{error}"
                        ),
                    }
                }
            });
        }
    });
    assert!(done.into_inner() > 0);
}
