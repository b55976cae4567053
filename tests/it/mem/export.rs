//! Exports and imports within one process: who may access what, and which event revokes an export.

use std::time::Duration;

use futures::executor::block_on;
use support::*;
use tokio_doca::soft::{Limits, Soft, View};
use tokio_doca::{
    Buf, BufPool, Device, Dma, Error, ErrorKind, Mmap, Mode, WorkQ,
    device::Audience,
    error::Reason,
    mem::{Access, BufInventory, HugePages, RemoteMmap},
};

const DPU: Access = Access::LOCAL_READ_WRITE.union(Access::DPU_READ_WRITE);
const DPU_READS: Access = Access::LOCAL_READ_WRITE.union(Access::DPU_READ_ONLY);
const LEN: usize = 1 << 16;

/// Both sides of the card.
struct Sides {
    host: Soft,
    dpu: Soft,
}

impl Sides {
    fn new() -> Sides {
        Sides {
            host: Soft::builder().build(),
            dpu: Soft::builder().view(View::Dpu).build(),
        }
    }

    fn host(&self) -> Device {
        self.host.open("pf0").unwrap()
    }

    fn dpu(&self) -> Device {
        self.dpu.open("p0").unwrap()
    }

    fn exported(&self, access: Access) -> Mmap {
        let device = self.host();
        let builder = Mmap::builder().device(&device).access(access);
        builder.alloc(LEN).unwrap()
    }
}

fn import(device: &Device, blob: &[u8]) -> Result<RemoteMmap, Error> {
    RemoteMmap::from_export(device, blob).wait()
}

#[track_caller]
fn refused(result: Result<impl std::fmt::Debug, Error>, kind: ErrorKind, names: &str) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(names), "{error}");
}

/// A `Dma` on the DPU's side, with its own memory.
struct Copies {
    dma: Dma,
    bufs: BufPool,
}

impl Copies {
    fn new(device: &Device) -> Copies {
        let mmap = Mmap::builder().device(device).alloc(4 * LEN).unwrap();
        let workq = WorkQ::builder().mode(Mode::BusyPoll).build().unwrap();
        Copies {
            dma: Dma::builder(device).attach(&workq).unwrap(),
            bufs: BufPool::builder(&mmap).element_size(LEN).build().unwrap(),
        }
    }

    fn filled(&self, bytes: &[u8]) -> Buf {
        let buf = self.bufs.try_alloc().unwrap();
        buf.extend_from_slice(bytes).unwrap();
        buf
    }
}

#[test]
fn a_blob_carries_memory_from_the_host_to_the_dpu_and_back() {
    let sides = Sides::new();
    let mmap = sides.exported(DPU);
    let blob = mmap.export_dpu(&sides.host()).unwrap();
    assert!(blob.len() <= 1024 && mmap.is_exported());
    let remote = import(&sides.dpu(), &blob).unwrap();
    assert_eq!(
        (remote.len(), remote.audience(), remote.is_own()),
        (LEN, Audience::Dpu, true)
    );
    assert_eq!(remote.access(), Access::DPU_READ_WRITE);
    assert_eq!(remote.device(), &sides.dpu());
    let copies = Copies::new(&sides.dpu());
    block_on(async {
        let there = remote.buf(100..5000).unwrap();
        assert_eq!(
            copies
                .dma
                .copy(&copies.filled(b"to the host"), &there)
                .await,
            Ok(11)
        );
        let back = copies.filled(b"and ");
        let part = there.slice(..11).unwrap();
        assert_eq!(copies.dma.copy(&part, &back).await, Ok(11));
        assert_eq!(&back.data().unwrap()[..], b"and to the host");
        // A range has no data length: each copy writes it from its start.
        assert_eq!(
            copies.dma.copy(&copies.filled(b"again"), &there).await,
            Ok(5)
        );
    });
    let seen = BufInventory::with_capacity(1);
    let seen = seen.buf_filled(&mmap, 100..111).unwrap();
    let mut bytes = [0; 11];
    seen.copy_out(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"againe host");
}

#[test]
fn a_remote_range_that_reaches_past_the_end_is_refused_with_its_numbers() {
    use std::ops::Bound::{self, Excluded, Included, Unbounded};

    const PAST: usize = LEN + 1;
    type Bounds = (Bound<usize>, Bound<usize>);

    let sides = Sides::new();
    let mmap = sides.exported(DPU);
    let remote = import(&sides.dpu(), &mmap.export_dpu(&sides.host()).unwrap()).unwrap();
    let whole = remote.buf(..).unwrap();
    // A slice has its own end, before the end of the memory.
    let part = remote.buf(1..LEN).unwrap().slice(..100).unwrap();
    let refused = |bounds: Bounds, numbers: [usize; 2], reason| {
        let numbers = numbers.map(|number| number as u64);
        let error = remote.buf(bounds).unwrap_err();
        assert_eq!(
            (error.kind(), error.call()),
            (ErrorKind::InvalidValue, Some("RemoteMmap::buf"))
        );
        mentions(&error.to_string(), &numbers);
        let error = whole.slice(bounds).unwrap_err();
        assert_eq!(
            (error.kind(), error.reason()),
            (ErrorKind::InvalidValue, reason),
            "{bounds:?}"
        );
        mentions(&error.to_string(), &numbers);
    };
    for (bounds, reach) in [
        ((Included(0), Excluded(PAST)), PAST),
        ((Included(LEN - 1), Included(LEN)), PAST),
        ((Included(PAST), Unbounded), PAST),
        ((Excluded(LEN), Unbounded), PAST),
        ((Included(PAST), Excluded(PAST + 9)), PAST + 9),
        ((Included(PAST), Excluded(9)), PAST),
        ((Unbounded, Included(usize::MAX)), usize::MAX),
        ((Unbounded, Excluded(usize::MAX)), usize::MAX),
        ((Included(usize::MAX), Unbounded), usize::MAX),
        ((Excluded(usize::MAX), Included(usize::MAX)), usize::MAX),
    ] {
        refused(bounds, [reach, LEN], Reason::OutOfRange);
        assert_eq!(
            part.slice(bounds).unwrap_err().reason(),
            Reason::OutOfRange,
            "{bounds:?}"
        );
    }
    for (bounds, range) in [
        ((Included(5), Excluded(2)), [5, 2]),
        ((Excluded(8), Included(7)), [9, 8]),
        ((Included(LEN), Excluded(0)), [LEN, 0]),
    ] {
        refused(bounds, range, Reason::RangeReversed);
    }
    for bounds in [
        (Included(7), Excluded(7)),
        (Excluded(7), Included(7)),
        (Included(LEN), Unbounded),
        (Unbounded, Excluded(0)),
    ] {
        assert_eq!(remote.buf(bounds).unwrap().len(), 0, "{bounds:?}");
    }
    let error = part.slice(50..101).unwrap_err();
    mentions(&error.to_string(), &[101, 100]);
    // Ranges that end with the memory, or with the slice, are allowed.
    assert_eq!(remote.buf(LEN - 1..=LEN - 1).unwrap().len(), 1);
    assert_eq!(part.slice(99..).unwrap().len(), 1);
}

#[test]
fn an_export_needs_a_permission_a_device_that_holds_it_and_a_memfd() {
    let sides = Sides::new();
    let plain = sides.exported(Access::LOCAL_READ_WRITE);
    refused(
        plain.export_dpu(&sides.host()),
        ErrorKind::NotPermitted,
        "DPU",
    );
    refused(
        plain.export_rdma(&sides.host()),
        ErrorKind::NotPermitted,
        "RDMA",
    );
    let mmap = sides.exported(DPU);
    refused(
        mmap.export_rdma(&sides.host()),
        ErrorKind::NotPermitted,
        "RDMA",
    );
    let other = sides.host.open("pf1").unwrap();
    refused(mmap.export_dpu(&other), ErrorKind::InvalidValue, "pf1");
    mmap.stop().unwrap();
    refused(
        mmap.export_dpu(&sides.host()),
        ErrorKind::BadState,
        "stopped",
    );
    let builder = Mmap::builder().device(&sides.dpu()).access(DPU);
    let on_the_dpu = builder.alloc(LEN).unwrap();
    refused(
        on_the_dpu.export_dpu(&sides.dpu()),
        ErrorKind::NotSupported,
        "p0",
    );
    let builder = Mmap::builder().device(&sides.host()).access(DPU);
    let owned = builder.from_owner(vec![0_u8; LEN]).unwrap();
    refused(
        owned.export_dpu(&sides.host()),
        ErrorKind::NotSupported,
        "memfd",
    );
    assert!(!owned.is_exportable() && !owned.is_exported());
}

#[test]
fn a_memfd_of_the_applications_is_exported_as_a_whole_and_sealed() {
    use nix::fcntl::{FcntlArg, SealFlag, fcntl};
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use std::os::fd::OwnedFd;

    let sides = Sides::new();
    let memfd = || -> OwnedFd {
        let memfd = memfd_create("shared", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        nix::unistd::ftruncate(&memfd, LEN as i64).unwrap();
        memfd
    };
    let host = sides.host();
    let mmap = |memfd: OwnedFd, range: std::ops::Range<usize>, access| {
        let builder = Mmap::builder().device(&host).access(access);
        builder.from_memfd(memfd, range).unwrap()
    };
    for part in [0..LEN - 4096, 4096..LEN] {
        let error = mmap(memfd(), part, DPU).export_dpu(&host);
        refused(error, ErrorKind::NotPermitted, "65536");
    }
    // An Mmap that lacks only the rest of the file's last page counts as the whole file.
    assert!(mmap(memfd(), 0..LEN - 4000, DPU).export_dpu(&host).is_ok());
    let always = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    for (access, seals) in [
        (DPU, always),
        (DPU_READS, always | SealFlag::F_SEAL_FUTURE_WRITE),
    ] {
        let file = memfd();
        let mmap = mmap(file.try_clone().unwrap(), 0..LEN, access);
        let blob = mmap.export_dpu(&host).unwrap();
        assert!(import(&sides.dpu(), &blob).unwrap().is_own());
        let sealed = fcntl(&file, FcntlArg::F_GET_SEALS).unwrap();
        assert_eq!(SealFlag::from_bits_retain(sealed), seals, "{access:?}");
    }
}

#[test]
fn the_same_export_again_is_the_same_blob() {
    let sides = Sides::new();
    let (pf0, vf) = (sides.host(), sides.host.open("pf0vf1").unwrap());
    let builder = Mmap::builder().device(&pf0).device(&vf);
    let mmap = builder.access(DPU | Access::RDMA_READ).alloc(LEN).unwrap();
    let blobs = [
        mmap.export_dpu(&pf0).unwrap(),
        mmap.export_dpu(&vf).unwrap(),
        mmap.export_rdma(&pf0).unwrap(),
    ];
    assert_eq!(mmap.export_dpu(&pf0).unwrap(), blobs[0]);
    assert!(blobs[0] != blobs[1] && blobs[1] != blobs[2] && blobs[0] != blobs[2]);
    for blob in &blobs {
        assert_eq!(import(&sides.dpu(), blob).unwrap().len(), LEN);
    }
}

#[test]
fn a_blob_goes_to_the_devices_that_it_is_for() {
    let sides = Sides::new();
    let vf = sides.host.open("pf1vf0").unwrap();
    let builder = Mmap::builder().device(&vf);
    let mmap = builder.access(DPU | Access::RDMA_READ).alloc(LEN).unwrap();
    let (dpu, rdma) = (
        mmap.export_dpu(&vf).unwrap(),
        mmap.export_rdma(&vf).unwrap(),
    );
    for (soft, name, imports, exports) in [
        (&sides.host, "pf0", false, true),
        (&sides.host, "pf1vf0", false, true),
        (&sides.dpu, "p0", true, false),
        (&sides.dpu, "p1", true, false),
        (&sides.dpu, "p1s0", false, false),
    ] {
        let device = soft.open(name).unwrap();
        let caps = device.info().caps();
        assert_eq!(
            (caps.import_dpu, caps.export_dpu, caps.share_rdma),
            (imports, exports, true),
            "{name}"
        );
        if name == "p1" {
            assert!(import(&device, &dpu).is_ok());
        } else {
            refused(import(&device, &dpu), ErrorKind::NotSupported, "p1");
        }
        assert!(import(&device, &rdma).is_ok(), "{name}");
    }
}

#[test]
fn what_the_exporter_does_not_permit_is_an_error_of_the_job() {
    let sides = Sides::new();
    let mmap = sides.exported(DPU_READS | Access::RDMA_READ);
    let remote = import(&sides.dpu(), &mmap.export_dpu(&sides.host()).unwrap()).unwrap();
    let rdma = import(&sides.dpu(), &mmap.export_rdma(&sides.host()).unwrap()).unwrap();
    let copies = Copies::new(&sides.dpu());
    let other = Copies::new(&sides.dpu.open("p1").unwrap());
    block_on(async {
        let (dma, buf) = (&copies.dma, copies.filled(&[1; 100]));
        let reason = |result: Result<usize, tokio_doca::error::JobError>| {
            let error = result.unwrap_err();
            (error.reason(), error.kind())
        };
        let there = remote.buf(..100).unwrap();
        let write = reason(dma.copy(&buf, &there).await);
        assert_eq!(write, (Reason::RemoteNotWritable, ErrorKind::NotPermitted));
        assert_eq!(dma.copy(&there, &buf).await, Ok(100));
        let read = reason(dma.copy(&rdma.buf(..100).unwrap(), &buf).await);
        assert_eq!(read, (Reason::NotForDma, ErrorKind::NotSupported));
        let elsewhere = reason(other.dma.copy(&there, &other.filled(b"")).await);
        assert_eq!(elsewhere, (Reason::ForeignDevice, ErrorKind::InvalidValue));
        let long = reason(dma.copy(&remote.buf(..).unwrap(), &buf).await);
        assert_eq!(long, (Reason::TailroomTooSmall, ErrorKind::InvalidValue));
    });
}

#[test]
fn ones_own_memory_keeps_its_leases() {
    let sides = Sides::new();
    let mmap = sides.exported(DPU_READS);
    let remote = import(&sides.dpu(), &mmap.export_dpu(&sides.host()).unwrap()).unwrap();
    let inventory = BufInventory::with_capacity(4);
    let local = inventory.buf_filled(&mmap, 50..150).unwrap();
    let there = remote.buf(..100).unwrap();
    let copies = Copies::new(&sides.dpu());
    block_on(async {
        let guard = local.data_mut().unwrap();
        let error = copies
            .dma
            .copy(&there, &copies.filled(b""))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InUse);
        drop(guard);
        assert_eq!(copies.dma.copy(&there, &copies.filled(b"")).await, Ok(100));
        // A read guard does not prevent the copy.
        let _guard = local.data().unwrap();
        assert_eq!(copies.dma.copy(&there, &copies.filled(b"")).await, Ok(100));
    });
    refused_stop(&mmap);
    drop((there, local));
    let pool = BufPool::builder(&mmap).range(..4096).build().unwrap();
    // While the pool exists no other handle may write its range, so that a guard may lend a slice
    // of a Buf.
    refused(remote.buf(..100), ErrorKind::InUse, "pool");
    assert!(remote.buf(4096..).is_ok());
    drop(pool);
    assert!(remote.buf(..100).is_ok());
}

#[track_caller]
fn refused_stop(mmap: &Mmap) {
    assert_eq!(mmap.stop().unwrap_err().kind(), ErrorKind::InUse);
}

#[test]
fn a_pool_on_what_peers_may_write_stands_in_nobodys_way() {
    let sides = Sides::new();
    let mmap = sides.exported(DPU);
    let pool = BufPool::builder(&mmap).build().unwrap();
    let remote = import(&sides.dpu(), &mmap.export_dpu(&sides.host()).unwrap()).unwrap();
    let copies = Copies::new(&sides.dpu());
    let buf = pool.try_alloc().unwrap();
    let at = 4096 * (pool.elements() - 1);
    block_on(async {
        for start in [0, at] {
            let there = remote.buf(start..start + 4096).unwrap();
            let copied = copies
                .dma
                .copy(&copies.filled(&pattern(3, 4096)), &there)
                .await;
            assert_eq!(copied, Ok(4096));
        }
    });
    buf.set_data(0, 4096).unwrap();
    let mut bytes = vec![0; 4096];
    buf.copy_out(0, &mut bytes).unwrap();
    assert_eq!(bytes, pattern(3, 4096));
}

#[test]
fn a_copy_within_imported_memory_must_not_overlap_itself() {
    let sides = Sides::new();
    let mmap = sides.exported(DPU);
    let remote = import(&sides.dpu(), &mmap.export_dpu(&sides.host()).unwrap()).unwrap();
    let dma = Copies::new(&sides.dpu()).dma;
    let copy = |from: std::ops::Range<usize>, to: std::ops::Range<usize>| {
        block_on(dma.copy(remote.buf(from).unwrap(), remote.buf(to).unwrap()))
    };
    assert_eq!(copy(0..100, 100..200), Ok(100));
    for (from, to) in [(0..100, 0..100), (0..100, 99..200), (99..200, 0..100 + 1)] {
        let error = copy(from, to).unwrap_err();
        assert_eq!(error.reason(), Reason::Overlap);
    }
}

#[test]
fn a_slice_of_ones_own_memory_takes_leases_of_its_bytes_alone() {
    let sides = Sides::new();
    let mmap = sides.exported(DPU);
    let remote = import(&sides.dpu(), &mmap.export_dpu(&sides.host()).unwrap()).unwrap();
    let all = remote.buf(..).unwrap();
    let dma = Copies::new(&sides.dpu()).dma;
    let part = |range| all.slice(range).unwrap();
    assert_eq!(block_on(dma.copy(part(0..100), part(100..200))), Ok(100));
    let error = block_on(dma.copy(part(0..100), part(99..200))).unwrap_err();
    assert_eq!(error.reason(), Reason::Overlap);
    let inner = part(1000..2000).slice(500..).unwrap();
    let local = BufInventory::with_capacity(1);
    let local = local.buf_filled(&mmap, 1000..1500).unwrap();
    let hold = sides.host.faults().hold();
    let (workq, pf0) = (WorkQ::builder().build().unwrap(), sides.host());
    let host = Dma::builder(&pf0).attach(&workq).unwrap();
    let room = Mmap::builder().device(&pf0).alloc(LEN).unwrap();
    let room = BufInventory::with_capacity(1).buf(&room, ..).unwrap();
    let mut held = Box::pin(host.copy(&local, &room));
    let runtime = runtime();
    runtime.block_on(async { poll_pending(held.as_mut()) });
    // The memory that the held job reads cannot be written; the memory behind it can.
    let error = block_on(dma.copy(part(0..100), part(1400..1600))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse);
    assert_eq!(block_on(dma.copy(part(0..100), &inner)), Ok(100));
    drop(hold);
    assert_eq!(runtime.block_on(held), Ok(500));
    drop((all, inner, local));
    mmap.stop().unwrap();
}

#[test]
fn stopping_ends_the_exports_and_starting_begins_anew() {
    let sides = Sides::new();
    let mmap = sides.exported(DPU);
    let old = mmap.export_dpu(&sides.host()).unwrap();
    let remote = import(&sides.dpu(), &old).unwrap();
    let there = remote.buf(..100).unwrap();
    refused_stop(&mmap);
    drop(there);
    remote.check().unwrap();
    mmap.stop().unwrap();
    assert!(!mmap.is_exported());
    let error = remote.check().unwrap_err();
    assert_eq!(
        (error.reason(), error.kind()),
        (Reason::ExportRevoked, ErrorKind::ConnectionReset)
    );
    refused(remote.buf(..100), ErrorKind::BadState, "stopped");
    mmap.start([&sides.host()]).unwrap();
    // An import from before does not reach the new export.
    let copies = Copies::new(&sides.dpu());
    let there = remote.buf(..100).unwrap();
    let error = block_on(copies.dma.copy(&there, &copies.filled(b""))).unwrap_err();
    assert_eq!(error.reason(), Reason::ExportRevoked);
    let error = import(&sides.dpu(), &old).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotPermitted, "{error}");
    let new = mmap.export_dpu(&sides.host()).unwrap();
    assert_ne!(new, old);
    let remote = import(&sides.dpu(), &new).unwrap();
    let there = remote.buf(..100).unwrap();
    assert_eq!(
        block_on(copies.dma.copy(&there, &copies.filled(b""))),
        Ok(100)
    );
}

#[test]
fn lists_long_copies_and_the_defer_mode_reach_it_too() {
    for (defer, engines) in [(false, 1), (true, 1), (false, 0), (false, 2)] {
        let host = Soft::builder().build();
        let dpu = Soft::builder()
            .view(View::Dpu)
            .defer(defer)
            .engines(engines)
            .build();
        let (pf0, p0) = (host.open("pf0").unwrap(), dpu.open("p0").unwrap());
        let len = 3 << 20;
        let mmap = Mmap::builder().device(&pf0).access(DPU).alloc(len).unwrap();
        let remote = import(&p0, &mmap.export_dpu(&pf0).unwrap()).unwrap();
        let own = Mmap::builder().device(&p0).alloc(2 * len).unwrap();
        let inventory = BufInventory::with_capacity(8);
        let workq = WorkQ::builder().mode(Mode::BusyPoll).build().unwrap();
        let dma = Dma::builder(&p0).attach(&workq).unwrap();
        let bytes = pattern(7, len);
        let chain = tokio_doca::mem::BufChain::with_capacity(3);
        for piece in [0..1000, 1000..1 << 20, 1 << 20..len] {
            let buf = inventory.buf(&own, piece.clone()).unwrap();
            buf.extend_from_slice(&bytes[piece]).unwrap();
            chain.push(buf).unwrap();
        }
        block_on(async {
            let there = remote.buf(..).unwrap();
            assert_eq!(dma.copy(&chain, &there).await, Ok(len));
            let back = inventory.buf(&own, len..).unwrap();
            assert_eq!(dma.copy(&there, &back).await, Ok(len));
            assert!(back.data().unwrap()[..] == bytes[..]);
            drop(there);
            what_is_taken_back_is_refused(&mmap, &remote, &dma, &chain, &back).await;
        });
    }
}

/// After the end of the export every operation fails, and accesses nothing.
async fn what_is_taken_back_is_refused(
    mmap: &Mmap,
    remote: &RemoteMmap,
    dma: &Dma,
    chain: &tokio_doca::mem::BufChain,
    back: &Buf,
) {
    // A range in a pool's memory that peers may write takes no lease, and does not prevent the
    // `Mmap` from being stopped.
    let pool = BufPool::builder(mmap).build().unwrap();
    let pieces = [..100, ..mmap.len()].map(|range| remote.buf(range).unwrap());
    drop(pool);
    back.reset_data_len().unwrap();
    assert_eq!(dma.copy(&pieces[0], back).await, Ok(100));
    mmap.stop().unwrap();
    back.reset_data_len().unwrap();
    for there in &pieces {
        let error = dma.copy(there, back).await.unwrap_err();
        assert_eq!(error.reason(), Reason::ExportRevoked);
    }
    let error = dma.copy(chain, &pieces[1]).await.unwrap_err();
    assert_eq!(error.reason(), Reason::ExportRevoked);
    assert_eq!(back.data_len(), 0);
}

#[test]
fn a_blob_that_was_touched_is_refused_with_a_reason() {
    let sides = Sides::new();
    let mmap = sides.exported(DPU);
    let blob = mmap.export_dpu(&sides.host()).unwrap();
    let p0 = sides.dpu();
    for len in 0..blob.len() {
        let error = import(&p0, &blob[..len]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidValue, "{len}: {error}");
    }
    let longer: Vec<u8> = blob.iter().copied().chain([0]).collect();
    refused(import(&p0, &longer), ErrorKind::InvalidValue, "");
    for at in 0..blob.len() {
        let mut forged = blob.clone();
        forged[at] ^= 1 << (at % 8);
        let error = import(&p0, &forged).unwrap_err();
        let kinds = [ErrorKind::InvalidValue, ErrorKind::UnsupportedVersion];
        assert!(kinds.contains(&error.kind()), "byte {at}: {error}");
    }
    refused(import(&p0, b"#!/bin/sh"), ErrorKind::InvalidValue, "");
    assert!(import(&p0, &blob).is_ok());
}

#[test]
fn an_import_is_lazy_and_can_be_dropped_and_needs_no_runtime() {
    let sides = Sides::new();
    let mmap = sides.exported(DPU);
    let blob = mmap.export_dpu(&sides.host()).unwrap();
    let p0 = sides.dpu();
    drop(RemoteMmap::from_export(&p0, &blob));
    assert_eq!(
        block_on(RemoteMmap::from_export(&p0, &blob)).unwrap().len(),
        LEN
    );
    let mut dropped = RemoteMmap::from_export(&p0, &blob).timeout(Duration::from_secs(1));
    // The import may have completed by then.
    let _ = support::poll(std::pin::Pin::new(&mut dropped));
    drop(dropped);
    let mut ended = RemoteMmap::from_export(&p0, &blob);
    assert!(block_on(&mut ended).is_ok());
    refused(block_on(&mut ended), ErrorKind::BadState, "handed out");
    let mut polled = RemoteMmap::from_export(&p0, &blob);
    let _ = support::poll(std::pin::Pin::new(&mut polled));
    refused(polled.wait(), ErrorKind::BadState, "await");
    let never = RemoteMmap::from_export(&p0, &blob).timeout(Duration::MAX);
    assert!(block_on(never).is_ok());
    let error = block_on(RemoteMmap::from_export(&p0, b"")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidValue);
}

#[test]
fn limits_of_an_adapter_hold_for_remote_copies() {
    let sides = Sides::new();
    let mmap = sides.exported(DPU);
    let blob = mmap.export_dpu(&sides.host()).unwrap();
    let limits = Limits::unlimited().max_buf_size(1000);
    let dpu = Soft::builder().view(View::Dpu).limits(limits).build();
    let p0 = dpu.open("p0").unwrap();
    let remote = import(&p0, &blob).unwrap();
    let copies = Copies::new(&p0);
    let error = block_on(
        copies
            .dma
            .copy(&remote.buf(..).unwrap(), &copies.filled(b"")),
    );
    assert_eq!(error.unwrap_err().reason(), Reason::TooLarge);
}

#[test]
fn memory_is_exported_late_with_jobs_running() {
    let sides = Sides::new();
    let (mmap, device) = (sides.exported(DPU), sides.host());
    let inventory = BufInventory::with_capacity(2);
    let src = inventory.buf_filled(&mmap, ..1000).unwrap();
    let dst = inventory.buf(&mmap, 1000..2000).unwrap();
    let workq = WorkQ::builder().mode(Mode::BusyPoll).build().unwrap();
    let dma = Dma::builder(&device).attach(&workq).unwrap();
    let hold = sides.host.faults().hold();
    let mut copy = Box::pin(dma.copy(&src, &dst));
    poll_pending(copy.as_mut());
    let blob = mmap.export_dpu(&device).unwrap();
    let remote = import(&sides.dpu(), &blob).unwrap();
    // The memory of the job in flight stays leased.
    let copies = Copies::new(&sides.dpu());
    let there = remote.buf(..1500).unwrap();
    let error = block_on(copies.dma.copy(&there, &copies.filled(b""))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse);
    drop(hold);
    assert_eq!(block_on(copy), Ok(1000));
    assert_eq!(
        block_on(copies.dma.copy(&there, &copies.filled(b""))),
        Ok(1500)
    );
}

/// Tests that need huge pages, which `.ci/run` lets the system reserve; they are ignored by
/// default.
mod needs_huge_pages {
    use super::*;

    #[test]
    #[ignore = "needs vm.nr_hugepages of 4"]
    fn huge_pages_are_exported_to_be_read_and_not_to_be_written() {
        let sides = Sides::new();
        let device = sides.host();
        for (access, exports) in [(DPU, false), (DPU_READS, true)] {
            let builder = Mmap::builder().device(&device).access(access);
            let mmap = builder
                .huge_pages(HugePages::Size2MiB)
                .alloc(2 << 20)
                .unwrap();
            let exported = mmap.export_dpu(&device);
            match exports {
                true => assert_eq!(
                    import(&sides.dpu(), &exported.unwrap()).unwrap().len(),
                    2 << 20
                ),
                false => refused(exported, ErrorKind::NotSupported, "Transparent"),
            }
        }
    }
}
