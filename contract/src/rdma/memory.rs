//! Memory that a peer can access: exported by its owner, and imported by the other end.
#![expect(unsafe_code, reason = "names memory of a peer's without a Lease")]

use super::Peers;
use tokio_doca::device::contract::Segment;
use tokio_doca::device::{Access, Device};
use tokio_doca::{
    Buf, Mmap,
    mem::{BufInventory, RemoteMmap},
};

/// All access that a peer can have.
pub(super) const REMOTE: Access = Access::RDMA_READ
    .union(Access::RDMA_WRITE)
    .union(Access::RDMA_ATOMIC);

/// The access of memory for which a peer has all permissions.
pub(super) const ALL: Access = Access::LOCAL_READ_WRITE.union(REMOTE);

pub(super) struct Memory {
    owner: Buf,
    remote: RemoteMmap,
}

impl Memory {
    /// Allocates memory on the device of one side, and imports it on the other.
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
        buf.set_data(0, len).expect("no job has it");
        Memory { owner: buf, remote }
    }

    pub(super) fn remote(&self) -> &RemoteMmap {
        &self.remote
    }

    /// Returns the bytes that the owner sees.
    pub(super) fn read(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.owner
            .copy_out(at, &mut bytes)
            .expect("no job has it leased");
        bytes
    }

    pub(super) fn write(&self, at: usize, bytes: &[u8]) {
        self.owner.copy_in(at, bytes).expect("no job has it leased");
    }

    /// Returns a range as a Segment of the importing device.
    pub(super) fn segment(&self, at: usize, len: usize) -> Segment {
        // SAFETY: `self` keeps the import alive, and the jobs of a check end before it is dropped.
        // The peers of a check touch only what their jobs name, and nothing else uses the memory.
        let whole = unsafe { self.remote.whole() };
        whole.part(at, len)
    }
}
