//! Checks of duty 1 and registrar duty 3 for lists with imported memory.

use crate::rig::watched;
use tokio_doca::device::{Access, Device};
use tokio_doca::error::JobError;
use tokio_doca::{
    Buf, Dma, Mmap, Mode, WorkQ,
    mem::{BufChain, BufInventory, ChainPiece, RemoteMmap},
};

/// The size of each memory in bytes. Sources are in the first half, destinations in the second.
const LEN: usize = 1 << 14;
const LONGEST: u32 = 6;

/// An Mmap of the exporter, and its import.
struct Shared {
    owner: Mmap,
    remote: RemoteMmap,
}

impl Shared {
    fn new(exporter: &Device, importer: &Device) -> Shared {
        let access = Access::LOCAL_READ_WRITE | Access::DPU_READ_WRITE;
        let owner = Mmap::builder().device(exporter).access(access).alloc(LEN);
        let owner = owner.expect("memory that the DPU may reach");
        let blob = owner.export_dpu(exporter);
        let blob = blob.expect("the exporter exports to the DPU (export_dpu)");
        let remote = RemoteMmap::from_export(importer, &blob).wait();
        let remote = remote.expect("registrar duty 4: what was exported is imported");
        Shared { owner, remote }
    }

    /// Ends the export. The import remains, and the owner can still use the memory.
    fn take_back(&self, exporter: &Device) {
        self.owner.stop().expect("no job uses it");
        let started = self.owner.start([exporter]);
        started.expect("the exporter has had it before");
    }
}

/// The Dma under test, and the three memories whose pieces alternate in the lists.
struct Rig {
    dma: Dma,
    workq: WorkQ,
    shared: [Shared; 2],
    local: Mmap,
    bufs: BufInventory,
    /// The distance in bytes between the starts of two pieces.
    stride: usize,
}

impl Rig {
    fn new(exporter: &Device, importer: &Device, longest: usize) -> Rig {
        let workq = WorkQ::builder().mode(Mode::BusyPoll).build();
        let workq = workq.expect("a WorkQ");
        let local = Mmap::builder().device(importer).alloc(LEN);
        Rig {
            dma: Dma::builder(importer).attach(&workq).expect("it copies"),
            workq,
            shared: [(); 2].map(|()| Shared::new(exporter, importer)),
            local: local.expect("memory of its own"),
            bufs: BufInventory::with_capacity(2 * longest + 1),
            stride: LEN / 2 / longest,
        }
    }

    /// Returns a piece as a Buf of its owner.
    fn owned(&self, number: usize, start: usize, len: usize) -> Buf {
        let mmap = self.shared.get(number % 3);
        let mmap = mmap.map_or(&self.local, |shared| &shared.owner);
        let at = start + number * self.stride;
        let buf = self.bufs.buf_filled(mmap, at..at + len);
        buf.expect("its own memory")
    }

    /// Returns a list of pieces of `len` bytes each.
    fn list(&self, pieces: usize, len: usize, start: usize) -> BufChain {
        let list = BufChain::with_capacity(pieces);
        for number in 0..pieces {
            let at = start + number * self.stride;
            let piece = match self.shared.get(number % 3) {
                Some(shared) => ChainPiece::from(shared.remote.buf(at..at + len).expect("a range")),
                None => {
                    let buf = self.owned(number, start, len);
                    let data = if start == 0 { len } else { 0 };
                    buf.set_data(0, data).expect("no job has it");
                    ChainPiece::from(buf)
                }
            };
            list.push(piece).expect("it has room");
        }
        list
    }

    /// Copies from a list, and to a list, whose pieces have `bytes` bytes each.
    fn each_side(&self, pieces: usize, bytes: usize) -> [Result<usize, JobError>; 2] {
        let len = pieces * bytes;
        let (src, dst) = (self.owned(2, 0, len), self.owned(2, LEN / 2, len));
        src.copy_in(0, &vec![1; len]).expect("no job has it");
        dst.set_data(0, 0).expect("no job has it");
        let from = self.dma.copy(self.list(pieces, bytes, 0), dst);
        let to = self.dma.copy(src, self.list(pieces, bytes, LEN / 2));
        [self.workq.block_on(from), self.workq.block_on(to)]
    }

    /// Checks one copy from a list to another.
    fn check(&self, from: usize, to: usize, unit: usize) {
        let (len, part) = (from * to * unit, to * unit);
        let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + from) as u8).collect();
        for number in 0..from {
            let source = self.owned(number, 0, part);
            let bytes = &bytes[number * part..][..part];
            source.copy_in(0, bytes).expect("no job has it");
        }
        let src = self.list(from, part, 0);
        let dst = self.list(to, from * unit, LEN / 2);
        let answer = self.workq.block_on(self.dma.copy(&src, &dst));
        assert_eq!(
            answer,
            Ok(len),
            "duty 1: a copy of {from} pieces to {to}, of registered and imported memory"
        );
        drop((src, dst));
        let mut found = vec![0; len];
        for number in 0..to {
            let target = self.owned(number, LEN / 2, from * unit);
            let found = &mut found[number * from * unit..][..from * unit];
            target.copy_out(0, found).expect("no job has it");
        }
        assert!(
            found == bytes,
            "duty 1: the bytes of {from} pieces lie otherwise in {to}"
        );
    }
}

/// Checks duty 1 for copies between lists whose pieces alternate between two imports and registered
/// memory. The importer must have [`Caps::import_dpu`](tokio_doca::device::Caps::import_dpu). It
/// imports memory that `exporter` exports to the DPU.
///
/// # Panics
///
/// Panics if a copy fails, or if bytes arrive in another place or order.
pub fn imported_lists_are_gathered_and_scattered(exporter: &Device, importer: &Device) {
    let exporter = exporter.clone();
    let what = "imported_lists_are_gathered_and_scattered";
    watched(what, importer, move |subject| {
        let longest = subject.max_list_len().min(LONGEST) as usize;
        let rig = Rig::new(&exporter, &subject.device, longest);
        for from in 1..=longest {
            for to in 1..=longest {
                rig.check(from, to, subject.within(from * to * 100) / (from * to));
            }
        }
    });
}

/// Checks registrar duty 3: a copy fails if the export of any piece of its lists was taken back,
/// wherever the piece is in the list, and the memory of that piece stays unchanged. The devices are
/// those of [`imported_lists_are_gathered_and_scattered`].
///
/// # Panics
///
/// Panics if such a copy succeeds, or writes to that piece, or if a copy before that fails.
pub fn each_import_of_a_list_is_checked(exporter: &Device, importer: &Device) {
    let exporter = exporter.clone();
    let what = "each_import_of_a_list_is_checked";
    watched(what, importer, move |subject| {
        // Two imports, and registered memory after them.
        let most = 3;
        let pieces = subject.within(most.min(subject.max_list_len() as usize));
        let bytes = subject.within(pieces * 16) / pieces;
        for gone in 0..pieces.min(2) {
            let rig = Rig::new(&exporter, &subject.device, most);
            let copied = rig.each_side(pieces, bytes);
            let all = [Ok(pieces * bytes), Ok(pieces * bytes)];
            assert_eq!(copied, all, "duty 1: lists with imported memory are copied");
            let piece = || rig.owned(gone, LEN / 2, bytes);
            piece().copy_in(0, &vec![7; bytes]).expect("no job has it");
            rig.shared[gone].take_back(&exporter);
            for copied in rig.each_side(pieces, bytes) {
                assert!(
                    copied.is_err(),
                    "registrar duty 3: a copy reaches piece {gone} of {pieces}, whose export was taken back"
                );
            }
            let mut found = vec![0; bytes];
            piece().copy_out(0, &mut found).expect("no job has it");
            assert!(
                found == vec![7; bytes],
                "registrar duty 3: a copy that failed has written piece {gone}, whose export was taken back"
            );
        }
    });
}
