//! Duty 1 for lists with imported memory.

use crate::contract::rig::watched;
use crate::device::{Access, Device};
use crate::{
    Buf, Dma, Mmap, Mode, WorkQ,
    mem::{BufChain, BufInventory, ChainPiece, RemoteMmap},
};

/// Bytes of each memory. Sources are in the first half, and destinations in the second one.
const LEN: usize = 1 << 14;
const LONGEST: u32 = 6;

/// Memory of the exporter, and its import.
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
}

/// What is under test, and the three memories whose pieces stand in the lists in turn.
struct Rig {
    dma: Dma,
    workq: WorkQ,
    shared: [Shared; 2],
    local: Mmap,
    bufs: BufInventory,
    /// Bytes from the start of one piece to that of the next.
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

    /// A piece as its owner has it.
    fn owned(&self, number: usize, start: usize, len: usize) -> Buf {
        let mmap = self.shared.get(number % 3);
        let mmap = mmap.map_or(&self.local, |shared| &shared.owner);
        let at = start + number * self.stride;
        let buf = self.bufs.buf_filled(mmap, at..at + len);
        buf.expect("its own memory")
    }

    /// A list of pieces of `len` bytes each.
    fn list(&self, pieces: usize, len: usize, start: usize) -> BufChain {
        let list = BufChain::with_capacity(pieces);
        for number in 0..pieces {
            let at = start + number * self.stride;
            let piece = match self.shared.get(number % 3) {
                Some(shared) => ChainPiece::from(shared.remote.buf(at..at + len).expect("a range")),
                None => {
                    let buf = self.owned(number, start, len);
                    let data = if start == 0 { len } else { 0 };
                    buf.set_data(0, data).expect("nobody has it");
                    ChainPiece::from(buf)
                }
            };
            list.push(piece).expect("it has room");
        }
        list
    }

    /// One copy from a list to another.
    fn check(&self, from: usize, to: usize, unit: usize) {
        let (len, part) = (from * to * unit, to * unit);
        let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + from) as u8).collect();
        for number in 0..from {
            let source = self.owned(number, 0, part);
            let bytes = &bytes[number * part..][..part];
            source.copy_in(0, bytes).expect("nobody has it");
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
            target.copy_out(0, found).expect("nobody has it");
        }
        assert!(
            found == bytes,
            "duty 1: the bytes of {from} pieces lie otherwise in {to}"
        );
    }
}

/// Duty 1: copies between lists whose pieces are of two imports and of registered memory in turn.
/// The importer has [`Caps::import_dpu`](crate::device::Caps::import_dpu), and imports what
/// `exporter` exports to the DPU.
///
/// # Panics
///
/// If a copy fails, or bytes arrive in another place or order.
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
