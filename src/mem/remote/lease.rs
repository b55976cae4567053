//! What a job keeps of a [`RemoteBuf`]: the import, or a lease if the memory is this process's own.
#![allow(
    unreachable_pub,
    reason = "what jobs keep is named by the sealed traits of operand"
)]

use std::sync::Arc;

use super::buf::RemoteBuf;
use super::mmap::{Inner, RemoteMmap};
use crate::error::JobError;
use crate::mem::element::{ReadLease, WriteLease};

/// What a job that reads a RemoteBuf keeps.
pub enum RemoteRead {
    /// A lease on own memory. Its slab keeps the import's origin, and so its key.
    Own(ReadLease),
    /// The import, which no lease of this process protects.
    Import(RemoteMmap),
}

/// What a job that writes a RemoteBuf keeps.
pub enum RemoteWrite {
    /// A lease on own memory. Its slab keeps the import's origin, and so its key.
    Own(WriteLease),
    /// The import, which no lease of this process protects.
    Import(RemoteMmap),
}

impl RemoteRead {
    #[inline(always)]
    pub(in crate::mem) fn begin(of: &RemoteBuf) -> Result<RemoteRead, JobError> {
        match of.own() {
            Some(buf) => buf.0.read().map(RemoteRead::Own),
            None => Ok(RemoteRead::Import(of.mmap().clone())),
        }
    }
}

impl RemoteWrite {
    #[inline(always)]
    pub(in crate::mem) fn begin(of: &RemoteBuf) -> Result<RemoteWrite, JobError> {
        match of.own() {
            Some(buf) => buf.0.write().map(RemoteWrite::Own),
            None => Ok(RemoteWrite::Import(of.mmap().clone())),
        }
    }
}

/// An import whose last count was given back: dropping this gives back the memory.
pub(crate) struct LastImport(#[expect(dead_code, reason = "it is there to be dropped")] Inner);

impl RemoteMmap {
    /// Gives this count back, and leaves what is to be done after the last one to the caller.
    #[inline(always)]
    pub(in crate::mem) fn end(self) -> Option<LastImport> {
        Arc::into_inner(self.0).map(LastImport)
    }
}
