//! Checks of memory that is exported to peers, imported, and taken back.

use super::memory::{ALL, Memory};
use super::workq::Bench;
use super::{Peers, watched};
use tokio_doca::device::{Access, Audience};
use tokio_doca::error::ErrorKind;
use tokio_doca::{
    Mmap, Mode,
    mem::{BufInventory, RemoteMmap},
};

const LEN: usize = 4096;

/// Checks memory that one device exports to RDMA peers and the other imports, in both directions.
/// Data that is written through the import arrives, and the import has the access that was granted.
/// Invalid blobs are refused, and memory that was taken back is no longer reached.
///
/// # Panics
///
/// Panics if memory that is not exported is reached, or if exported memory is not.
pub fn exported_memory_is_reached(peers: impl Into<Peers>) {
    watched("exported_memory_is_reached", peers, |peers| {
        for side in [0, 1] {
            let device = &peers.devices[side];
            assert!(
                device.info().caps().share_rdma,
                "a device with remote operations shares memory for them"
            );
            access_is_told(peers, side);
            no_blob_is_refused(peers, side);
        }
        taken_back(peers);
    });
}

/// Checks that the import has the remote part of the access with which the Mmap was built.
fn access_is_told(peers: &Peers, side: usize) {
    let remote = [Access::RDMA_READ, Access::RDMA_WRITE, Access::RDMA_ATOMIC];
    for bits in 1..8 {
        let flags = (0..3).filter(|bit| bits >> bit & 1 == 1);
        let access: Access = flags.map(|bit: usize| remote[bit]).collect();
        let memory = Memory::new(peers, side, LEN, Access::LOCAL_READ_WRITE | access);
        assert_eq!(
            (memory.remote().access(), memory.remote().audience()),
            (access, Audience::Rdma),
            "registrar duty 4: an import tells what the exporter permits"
        );
        assert_eq!(memory.remote().check(), Ok(()), "it is exported");
    }
}

/// Checks that a truncated or changed blob is refused and does no harm.
fn no_blob_is_refused(peers: &Peers, side: usize) {
    let [owner, user] = [side, 1 - side].map(|side| &peers.devices[side]);
    let builder = Mmap::builder().device(owner).access(ALL);
    let mmap = builder.alloc(LEN).expect("memory that peers may reach");
    let blob = mmap.export_rdma(owner).expect("it is exported");
    let again = mmap.export_rdma(owner).expect("twice is no error");
    for blob in [&blob, &again] {
        let imported = RemoteMmap::from_export(user, blob).wait();
        assert_eq!(imported.map(|it| it.len()).ok(), Some(mmap.len()));
    }
    let refused = |blob: &[u8], what: &str| {
        let imported = RemoteMmap::from_export(user, blob).timeout(peers.deadline);
        assert!(
            imported.wait().is_err(),
            "registrar duty 4: {what} was imported"
        );
    };
    for len in [0, 1, blob.len() / 2, blob.len() - 1] {
        refused(&blob[..len], "a blob that was cut off");
    }
    let longer = [&blob[..], &[0]].concat();
    refused(&longer, "a blob with a byte too many");
    for bit in 0..8 * blob.len() {
        let mut changed = blob.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        refused(&changed, "a blob that was changed");
    }
}

/// Checks that operations and imports fail after the exporter has stopped or dropped its Mmap.
fn taken_back(peers: &Peers) {
    for gone in [false, true] {
        let pair = [0, 1].map(|side| Bench::new(peers, side, Mode::BusyPoll, 1));
        let [here, there] = &pair;
        Bench::connect(&pair);
        let builder = Mmap::builder().device(&peers.devices[1]).access(ALL);
        let mmap = builder.alloc(LEN).expect("memory that peers may reach");
        let blob = mmap.export_rdma(&peers.devices[1]).expect("it is exported");
        let remote = RemoteMmap::from_export(&peers.devices[0], &blob).wait();
        let remote = remote.expect("and imported");
        let src = here.filled(b"here I am");
        let len = peers.within(9);
        let part = || src.slice(..len).expect("a part of it");
        let written = here.block_on(there, here.rdma.write(part(), remote.buf(..).expect("all")));
        assert_eq!(written, Ok(len), "memory that is exported is reached");
        let owner = BufInventory::with_capacity(1)
            .buf(&mmap, ..)
            .expect("its own");
        owner.set_data(0, len).expect("no job has it");
        let mut found = vec![0; len];
        owner.copy_out(0, &mut found).expect("no job has it");
        assert_eq!(found, b"here I am"[..len], "what was written is there");
        drop(owner);
        // If the import is memory of this same process, a piece of it would keep `stop` from
        // succeeding.
        let piece = (!remote.is_own()).then(|| remote.buf(..).expect("all"));
        mmap.stop().expect("nothing of it is in use");
        if gone {
            drop(mmap);
        }
        let late = remote
            .check()
            .expect_err("registrar duty 3: memory was taken back, and its import does not say so");
        assert_eq!(late.kind(), ErrorKind::ConnectionReset, "{late}");
        if let Some(piece) = piece {
            let written = here.block_on(there, here.rdma.write(part(), &piece));
            let error =
                written.expect_err("registrar duty 3: memory was taken back, and is written");
            let expected = [ErrorKind::ConnectionReset, ErrorKind::NotPermitted];
            assert!(expected.contains(&error.kind()), "{error}");
        } else {
            // The import can no longer be used.
            let error = remote.buf(..).map(drop).expect_err("memory was taken back");
            assert_eq!(error.kind(), ErrorKind::BadState, "{error}");
        }
        let imported = RemoteMmap::from_export(&peers.devices[0], &blob).wait();
        assert!(
            imported.is_err(),
            "registrar duty 3: what was taken back is imported again"
        );
    }
}
