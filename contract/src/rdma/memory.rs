//! Memory that a peer reaches: exported by its owner, imported by the other end.
#![expect(unsafe_code, reason = "names memory of a peer's without a Lease")]

use super::Peers;
use tokio_doca::device::contract::Segment;
use tokio_doca::device::{Access, Device};
use tokio_doca::{
    Buf, Mmap,
    mem::{BufInventory, RemoteMmap},
};

/// All that a peer may do.
pub(super) const REMOTE: Access = Access::RDMA_READ
    .union(Access::RDMA_WRITE)
    .union(Access::RDMA_ATOMIC);

/// What memory is built with that a peer may do all with.
pub(super) const ALL: Access = Access::LOCAL_READ_WRITE.union(REMOTE);

pub(super) struct Memory {
    owner: Buf,
    remote: RemoteMmap,
}

impl Memory {
    /// Memory of the device of one side, for the other.
    pub(super) fn new(peers: &Peers, side: usize, len: usize, access: Access) -> Memory {
        let [owner, user]: [&Device; 2] = [side, 1 - side].map(|side| &peers.devices[side]);
        let mmap = Mmap::builder().device(owner).access(access).alloc(len);
        let mmap = mmap.expect("memory that peers may reach");
        let blob = mmap.export_rdma(owner);
        let blob = blob.expect("a device with remote operations exports memory (share_rdma)");
        assert!(blob.len() <= 1024, "a blob of {} bytes", blob.len());
        let remote = RemoteMmap::from_export(user, &blob).timeout(peers.deadline);
        let remote = remote
            .wait()
            .expect("registrar duty 4: what was exported is imported");
        assert_eq!(
            remote.len(),
            mmap.len(),
            "memory is imported as it was exported"
        );
        let buf = BufInventory::with_capacity(1).buf(&mmap, ..);
        let buf = buf.expect("its own memory");
        buf.set_data(0, len).expect("nobody has it");
        Memory { owner: buf, remote }
    }

    pub(super) fn remote(&self) -> &RemoteMmap {
        &self.remote
    }

    /// What the owner finds.
    pub(super) fn read(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.owner
            .copy_out(at, &mut bytes)
            .expect("nobody has it leased");
        bytes
    }

    pub(super) fn write(&self, at: usize, bytes: &[u8]) {
        self.owner.copy_in(at, bytes).expect("nobody has it leased");
    }

    /// A piece of it as the user's device knows it.
    pub(super) fn segment(&self, at: usize, len: usize) -> Segment {
        // SAFETY: this keeps the import, and a check's jobs are over before it goes; peers of one
        // check touch what their jobs name, and nobody else has the memory.
        let whole = unsafe { self.remote.whole() };
        whole.part(at, len)
    }
}
