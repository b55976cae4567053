//! Tests that ranges of imported memory do not allocate: a service takes a new range for each job.

use std::ops::Range;

use support::peer::{Peer, hear, hex, role, say, unhex};
use support::{counting, test_name};
use tokio_doca::soft::{Soft, View};
use tokio_doca::{
    Device, Dma, Mmap, Mode, Result, WorkQ,
    mem::{Access, BufChain, BufInventory, RemoteBuf, RemoteMmap},
};

use super::{LEN, Rig, inline, on_runtime};

const RANGES: usize = 8;

fn exported(device: &Device) -> (Mmap, Vec<u8>) {
    let access = Access::LOCAL_READ_WRITE | Access::DPU_READ_WRITE;
    let mmap = Mmap::builder().device(device).access(access);
    let mmap = mmap.alloc(RANGES * LEN).unwrap();
    let blob = mmap.export_dpu(device).unwrap();
    (mmap, blob)
}

/// Runs in the child: exports memory until the parent has ended.
fn exporter() {
    let (_mmap, blob) = exported(&Soft::builder().build().open("pf0").unwrap());
    say(&hex(&blob));
    while hear().is_some() {}
}

/// A `Dma` context on the DPU's side, with the memory imported.
struct Importer {
    dma: Dma,
    remote: RemoteMmap,
    local: Mmap,
}

impl Importer {
    fn new(blob: &[u8], defer: bool) -> Importer {
        let soft = Soft::builder().view(View::Dpu).defer(defer).build();
        let device = soft.open("p0").unwrap();
        let workq = WorkQ::builder().mode(Mode::BusyPoll).build().unwrap();
        Importer {
            dma: Dma::builder(&device).attach(&workq).unwrap(),
            remote: RemoteMmap::from_export(&device, blob).wait().unwrap(),
            local: Mmap::builder().device(&device).alloc(LEN).unwrap(),
        }
    }

    /// Returns the allocations of this thread for a copy to and from each range that `range` makes,
    /// after several warm-up rounds.
    async fn allocated_by(&self, range: impl Fn(Range<usize>) -> RemoteBuf) -> u64 {
        let inventory = BufInventory::with_capacity(2);
        let src = inventory.buf_filled(&self.local, ..).unwrap();
        let mut before = 0;
        for round in 0..8 {
            if round == 4 {
                before = counting::here();
            }
            for at in (0..RANGES).map(|at| at * LEN) {
                let remote = range(at..at + LEN);
                assert_eq!(self.dma.copy(&src, &remote).await, Ok(LEN));
                src.reset_data_len().unwrap();
                let read = self.dma.copy(remote.clone(), &src).await;
                assert_eq!(read, Ok(LEN));
            }
        }
        counting::here() - before
    }

    /// As `allocated_by`, with lists: ranges are pushed to a list for one copy to it and one from
    /// it.
    async fn allocated_by_lists(&self) -> u64 {
        let list = BufChain::with_capacity(2);
        let inventory = BufInventory::with_capacity(2);
        let src = inventory.buf_filled(&self.local, ..).unwrap();
        let mut before = 0;
        for round in 0..8 {
            if round == 4 {
                before = counting::here();
            }
            for at in (0..RANGES).step_by(2).map(|at| at * LEN) {
                for range in [at..at + LEN / 2, at + LEN..at + LEN * 3 / 2] {
                    list.push(self.remote.buf(range).unwrap()).unwrap();
                }
                assert_eq!(self.dma.copy(&src, &list).await, Ok(LEN));
                src.reset_data_len().unwrap();
                assert_eq!(self.dma.copy(&list, &src).await, Ok(LEN));
                while list.pop().unwrap().is_some() {}
            }
        }
        counting::here() - before
    }

    async fn check(&self) {
        let made = self.allocated_by(|range| self.remote.buf(range).unwrap());
        assert_eq!(made.await, 0, "ranges of the import");
        let whole = self.remote.buf(..).unwrap();
        let cut = self.allocated_by(|range| whole.slice(range).unwrap());
        assert_eq!(cut.await, 0, "slices of a range");
        assert_eq!(self.allocated_by_lists().await, 0, "lists");
    }
}

#[test]
fn a_range_of_another_processes_memory_allocates_nothing() {
    if role().as_deref() == Some("exporter") {
        return exporter();
    }
    let name = test_name!(a_range_of_another_processes_memory_allocates_nothing);
    let mut peer = Peer::start(name, "exporter");
    let blob = unhex(&peer.hear());
    for defer in [false, true] {
        on_runtime(Importer::new(&blob, defer).check());
    }
    peer.ends();
}

#[test]
fn a_range_of_own_memory_allocates_nothing() {
    let rig = Rig::new(Mode::BusyPoll, inline(), 4);
    for defer in [false, true] {
        let (_mmap, blob) = exported(&rig.device);
        on_runtime(Importer::new(&blob, defer).check());
    }
}

/// Tests that descriptors of ranges are reused, however many ranges are alive at once.
#[test]
fn ranges_of_own_memory_allocate_only_when_more_are_alive_than_ever() -> Result<()> {
    let rig = Rig::new(Mode::BusyPoll, inline(), 4);
    let (_mmap, blob) = exported(&rig.device);
    let importer = Importer::new(&blob, false);
    let many = || -> Result<u64> {
        let mut ranges = Vec::with_capacity(1000);
        let before = counting::here();
        for _ in 0..1000 {
            ranges.push(importer.remote.buf(..LEN)?);
        }
        Ok(counting::here() - before)
    };
    let first = many()?;
    // The inventory grows six times: to 32, 64, .. 1,024 descriptors after the first 16.
    assert!((6..=36).contains(&first), "{first} allocations");
    assert_eq!(many()?, 0);
    Ok(())
}
