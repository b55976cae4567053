//! What a job keeps of a [`RemoteBuf`]: the import, or a lease if the memory is this process's own.
#![allow(
    unreachable_pub,
    reason = "what jobs keep is named by the sealed traits of operand"
)]

use std::sync::Arc;

use super::buf::RemoteBuf;
use super::mmap::{RemoteMmap, RemoteMmapInner};
use crate::error::JobError;
use crate::mem::element::{ReadLease, WriteLease};

/// What a job that reads a RemoteBuf keeps until it has completed.
pub enum RemoteRead {
    /// A lease on memory of this process. The slab behind it keeps the import's origin, and so the
    /// key.
    Own(ReadLease),
    /// The import of memory that no lease of this process protects.
    Import(RemoteMmap),
    /// The job keeps nothing: the device reaches the memory without the import.
    Lasting,
}

/// What a job that writes a RemoteBuf keeps until it has completed.
pub enum RemoteWrite {
    /// A lease on memory of this process. The slab behind it keeps the import's origin, and so the
    /// key.
    Own(WriteLease),
    /// The import of memory that no lease of this process protects.
    Import(RemoteMmap),
    /// The job keeps nothing: the device reaches the memory without the import.
    Lasting,
}

impl RemoteRead {
    #[inline(always)]
    pub(in crate::mem) fn begin(of: &RemoteBuf) -> Result<RemoteRead, JobError> {
        match of.own() {
            Some(buf) => buf.0.read().map(RemoteRead::Own),
            None if of.mmap().0.lasting => Ok(RemoteRead::Lasting),
            None => Ok(RemoteRead::Import(of.mmap().clone())),
        }
    }
}

impl RemoteWrite {
    #[inline(always)]
    pub(in crate::mem) fn begin(of: &RemoteBuf) -> Result<RemoteWrite, JobError> {
        match of.own() {
            Some(buf) => buf.0.write().map(RemoteWrite::Own),
            None if of.mmap().0.lasting => Ok(RemoteWrite::Lasting),
            None => Ok(RemoteWrite::Import(of.mmap().clone())),
        }
    }
}

/// An import whose last reference is gone. Dropping this value gives the memory back.
pub(crate) struct LastImport(
    #[expect(dead_code, reason = "it is there to be dropped")] RemoteMmapInner,
);

impl RemoteMmap {
    /// Gives this reference back. If it was the last one, returns the import for the caller to
    /// drop.
    #[inline(always)]
    pub(in crate::mem) fn end(self) -> Option<LastImport> {
        Arc::into_inner(self.0).map(LastImport)
    }
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use std::ptr::NonNull;

    use super::super::mmap::tests::Always;
    use super::*;
    use crate::device::{Access, Audience, Device, Imported};

    #[test]
    fn a_job_keeps_an_import_unless_the_device_reaches_its_memory_without() {
        let device = Device::open("pf0").unwrap();
        for lasting in [false, true] {
            let (access, addr) = (Access::DPU_READ_WRITE, NonNull::<u8>::dangling());
            let imported = Imported::new(addr, 64, access, Audience::Dpu, 0, Arc::new(Always));
            let imported = match lasting {
                true => imported.lasting(),
                false => imported,
            };
            let buf = RemoteMmap::new(&device, imported).unwrap().buf(..).unwrap();
            let leases = (RemoteRead::begin(&buf), RemoteWrite::begin(&buf));
            let handles = Arc::strong_count(&buf.mmap().0);
            assert_eq!(handles, if lasting { 1 } else { 3 });
            drop(leases);
        }
    }
}
