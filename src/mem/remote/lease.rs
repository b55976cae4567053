//! What a job keeps of a RemoteBuf: the import, and a Lease if it is memory of this process.
#![allow(
    unreachable_pub,
    reason = "what jobs keep is named by the sealed traits of operand"
)]

use std::mem::ManuallyDrop;
use std::sync::Arc;

use super::buf::{Piece, RemoteBuf};
use crate::error::JobError;

impl Piece {
    /// Gives back the read Lease that a job was begun with.
    #[inline(always)]
    fn end_read(&self) {
        if let Some(buf) = &self.own {
            buf.0.end_read();
        }
    }

    /// Gives back the write Lease that a job was begun with.
    #[inline(always)]
    fn end_write(&self) {
        if let Some(buf) = &self.own {
            buf.0.end_write();
        }
    }
}

/// What a job that reads a RemoteBuf keeps: it, and a read Lease if it is memory of this process.
/// In one word, as the Leases of other operands are: every Slot has room for it. `None` once it was
/// given back.
pub struct RemoteRead(Option<Arc<Piece>>);

/// The same of one that writes.
pub struct RemoteWrite(Option<Arc<Piece>>);

/// The last count of a piece was given back: it goes with this, and the import maybe.
pub(crate) struct LastPiece(#[expect(dead_code, reason = "it is there to be dropped")] Piece);

impl RemoteRead {
    #[inline]
    pub(in crate::mem) fn begin(of: &RemoteBuf) -> Result<RemoteRead, JobError> {
        let piece = &of.0;
        if let Some(buf) = &piece.own {
            // Given back below.
            std::mem::forget(buf.0.read()?);
        }
        Ok(RemoteRead(Some(Arc::clone(piece))))
    }
}

impl RemoteRead {
    /// Gives it back, and leaves what is to be done after the last one to the caller.
    #[inline]
    pub(in crate::mem) fn end(self) -> Option<LastPiece> {
        let piece = ManuallyDrop::new(self).0.take()?;
        piece.end_read();
        Arc::into_inner(piece).map(LastPiece)
    }
}

impl Drop for RemoteRead {
    // Not inline: it stands beside the Leases of every job.
    #[inline(never)]
    fn drop(&mut self) {
        if let Some(piece) = &self.0 {
            piece.end_read();
        }
    }
}

impl RemoteWrite {
    #[inline]
    pub(in crate::mem) fn begin(of: &RemoteBuf) -> Result<RemoteWrite, JobError> {
        let piece = &of.0;
        if let Some(buf) = &piece.own {
            // Given back below.
            std::mem::forget(buf.0.write()?);
        }
        Ok(RemoteWrite(Some(Arc::clone(piece))))
    }
}

impl RemoteWrite {
    /// Gives it back, and leaves what is to be done after the last one to the caller.
    #[inline]
    pub(in crate::mem) fn end(self) -> Option<LastPiece> {
        let piece = ManuallyDrop::new(self).0.take()?;
        piece.end_write();
        Arc::into_inner(piece).map(LastPiece)
    }
}

impl Drop for RemoteWrite {
    // Not inline: it stands beside the Leases of every job.
    #[inline(never)]
    fn drop(&mut self) {
        if let Some(piece) = &self.0 {
            piece.end_write();
        }
    }
}
