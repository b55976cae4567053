//! A [`RemoteBuf`] as the side of a copy or of a remote operation.

use std::ops::Range;

use super::copy::sealed::{Reads, Spans, Writes};
use super::leases::{Reading, Writing};
use super::rdma::sealed::{Gets, Gives, Remote};
use crate::device::{Audience, Segments};
use crate::error::{JobError, Reason};
use crate::mem::buf::Extent;
use crate::mem::mmap::Holder;
use crate::mem::remote::{RemoteBuf, RemoteRead, RemoteWrite};

impl Spans for RemoteBuf {
    fn each(&self, f: &mut dyn FnMut(Range<usize>)) {
        f(self.span());
    }
}

impl Reads for RemoteBuf {
    type Lease = RemoteRead;

    #[inline(always)]
    fn is_leased(&self) -> bool {
        false
    }

    #[inline(always)]
    fn is_single(&self) -> bool {
        true
    }

    #[inline(always)]
    fn most(&self) -> usize {
        self.len()
    }

    fn data_extent(&self) -> Extent {
        Extent::one(self.len())
    }

    #[inline(always)]
    fn begin_read(&self, holder: Holder) -> Result<(RemoteRead, Segments, usize), JobError> {
        let permitted = self.mmap().audience().may_read(self.mmap().access());
        let segments = self.segment(Audience::Dpu, holder, permitted, Reason::RemoteNotReadable)?;
        Ok((RemoteRead::begin(self)?, segments, self.len()))
    }
}

impl Writes for RemoteBuf {
    type Lease = RemoteWrite;

    #[inline(always)]
    fn is_leased(&self) -> bool {
        false
    }

    #[inline(always)]
    fn is_single(&self) -> bool {
        true
    }

    fn room_extent(&self) -> Extent {
        Extent::one(self.len())
    }

    #[inline(always)]
    fn begin_write(&self, holder: Holder) -> Result<(RemoteWrite, Segments, usize), JobError> {
        let permitted = self.mmap().audience().may_write(self.mmap().access());
        let segments = self.segment(Audience::Dpu, holder, permitted, Reason::RemoteNotWritable)?;
        Ok((RemoteWrite::begin(self)?, segments, self.len()))
    }

    fn is_leased_by(&self, _lease: &Writing) -> bool {
        false
    }
}

impl Remote for RemoteBuf {}
impl Remote for &RemoteBuf {}

/// Of a RemoteBuf, and of a reference to one: a blanket would meet that of local operands.
macro_rules! remote {
    ($($remote:ty),*) => {$(
        impl Gives for $remote {
            type Lease = RemoteRead;
            const LEASED: bool = false;

            #[inline(always)]
            fn is_single(&self) -> bool {
                true
            }

            #[inline(always)]
            fn most(&self) -> usize {
                self.len()
            }

            fn offset(&self) -> usize {
                RemoteBuf::offset(self)
            }

            fn extent(&self) -> Extent {
                Extent::one(self.len())
            }

            /// An atomic takes a read Lease on memory of this process, as those of a Buf do where others write anyway.
            #[inline(always)]
            fn begin_give(
                &self,
                holder: Holder,
                atomic: bool,
            ) -> Result<(RemoteRead, Segments, usize), JobError> {
                let access = self.mmap().access();
                let (permitted, or) = if atomic {
                    (
                        Audience::Rdma.may_do_atomics(access),
                        Reason::RemoteNotAtomic,
                    )
                } else {
                    (Audience::Rdma.may_read(access), Reason::RemoteNotReadable)
                };
                let segments = self.segment(Audience::Rdma, holder, permitted, or)?;
                Ok((RemoteRead::begin(self)?, segments, self.len()))
            }

            fn held(lease: RemoteRead) -> Option<Reading> {
                Some(lease.into())
            }
        }

        impl Gets for $remote {
            type Lease = RemoteWrite;
            const LEASED: bool = false;

            #[inline(always)]
            fn is_single(&self) -> bool {
                true
            }

            fn extent(&self) -> Extent {
                Extent::one(self.len())
            }

            #[inline(always)]
            fn begin_get(&self, holder: Holder) -> Result<(RemoteWrite, Segments, usize), JobError> {
                let permitted = Audience::Rdma.may_write(self.mmap().access());
                let or = Reason::RemoteNotWritable;
                let segments = self.segment(Audience::Rdma, holder, permitted, or)?;
                Ok((RemoteWrite::begin(self)?, segments, self.len()))
            }

            /// It has no rooms.
            #[inline(always)]
            fn grow(_lease: &RemoteWrite, _by: usize) {}

            fn held(lease: RemoteWrite) -> Option<Writing> {
                Some(lease.into())
            }
        }
    )*};
}

remote!(RemoteBuf, &RemoteBuf);
