//! The request to compute a CRC, and its results.

#![allow(unreachable_pub, reason = "named by the sealed trait behind Operation")]

use std::marker::PhantomData;

use super::Crc;
use crate::device::{CrcJob, CrcOptions, CrcOrder, RegistrationUse};
use crate::error::JobError;
use crate::mem::{Extent, Handle, Leases, MaybeDestination, Reach, Sides, Source};
use crate::ops::op::{Answer, Answers, LeasedJob, Request, sealed::Of};
use crate::ops::operation::Op;
use crate::ops::operation::sealed::Own;
use crate::reactor::{Attachment, HasAttachment, JobFuture, ResultKind};

/// The output of [`Crc::copy_crc`] and [`Crc::copy_crc_with`]: the number of copied bytes and their
/// CRC.
///
/// ```
/// use tokio_doca::crc::{Crc, CrcCopied, combine};
/// # use tokio_doca::{BufPool, Device, Mmap, WorkQ};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tokio_doca::Result<()> {
/// # let device = Device::open_default()?;
/// # let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(1 << 16)?).build()?;
/// # let crc = Crc::builder(&device).attach(&WorkQ::builder().build()?)?;
/// # let (one, two, file) = (pool.alloc().await, pool.alloc().await, pool.alloc().await);
/// # one.extend_from_slice(b"1234")?;
/// # two.extend_from_slice(b"56789")?;
/// let first: CrcCopied = crc.copy_crc(&one, &file).await?;
/// let second: CrcCopied = crc.copy_crc(&two, &file).await?;
/// assert_eq!(combine(first.crc, second.crc, second.bytes), 0xe306_9283);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrcCopied {
    /// The number of bytes that were copied.
    pub bytes: usize,
    /// The CRC of the copied bytes, computed from the seed of [`Crc::copy_crc_with`], or from 0.
    pub crc: u32,
}

impl From<u64> for CrcCopied {
    /// Converts the number that [`WorkQ::progress`](crate::WorkQ::progress) hands out for a posted
    /// [`Crc::copy_crc`], or that is the result of a graph's node.
    fn from(number: u64) -> CrcCopied {
        CrcCopied {
            bytes: (number >> 32) as usize,
            crc: number as u32,
        }
    }
}

impl Answer for CrcCopied {}

impl Of for CrcCopied {
    const MEANING: ResultKind = ResultKind::Value;

    fn of(number: u64) -> CrcCopied {
        number.into()
    }
}

/// The result is a CRC.
impl Answer for u32 {}

impl Of for u32 {
    const MEANING: ResultKind = ResultKind::Value;

    fn of(number: u64) -> u32 {
        number as u32
    }
}

/// Returns the CRC of a message that consists of two parts. The first part has the CRC `first`; the
/// second part has `second_len` bytes and the CRC `second`. So the CRCs of the parts can be
/// computed in any order, or at the same time.
///
/// ```
/// use tokio_doca::crc::combine;
///
/// // "1234" and "56789".
/// assert_eq!(combine(0xf63a_f4ee, 0x83b5_65d8, 5), 0xe306_9283);
/// ```
pub fn combine(first: u32, second: u32, second_len: usize) -> u32 {
    crc32c::crc32c_combine(first, second, second_len)
}

/// A request to compute a CRC. `C` is the context: borrowed (`&Crc`) or owned (`Crc`). `D` is `()`
/// if nothing is copied.
pub struct CrcRequest<C, S, D, A> {
    crc: C,
    options: CrcOptions,
    src: S,
    dst: D,
    answer: PhantomData<fn() -> A>,
}

impl<C, S, D, A> CrcRequest<C, S, D, A> {
    pub(super) fn new(crc: C, options: CrcOptions, src: S, dst: D) -> CrcRequest<C, S, D, A> {
        CrcRequest {
            crc,
            options,
            src,
            dst,
            answer: PhantomData,
        }
    }
}

impl<C: AsRef<Crc>, S, D, A> HasAttachment for CrcRequest<C, S, D, A> {
    fn attachment(&self) -> &Attachment {
        self.crc.as_ref().attachment()
    }
}

impl<C: AsRef<Crc>, S: Source, D: MaybeDestination, A: Answer> Request for CrcRequest<C, S, D, A> {
    type Leases = Leases;
    type Job = CrcJob;

    fn begin(&self) -> Result<LeasedJob<Self>, JobError> {
        let context = &self.crc.as_ref().0;
        context.attachment().check_open()?;
        let order = CrcOrder {
            options: self.options,
            copies: self.dst.reach() != Reach::None,
        };
        let check = |from: Extent, to| context.check_limits(from, to, from.bytes);
        let holder = context.attachment().holder(RegistrationUse::Dma);
        Sides::new(&self.src, &self.dst, holder).lend_read(order, None, check)
    }
}

impl<C, S, D, A: Answer> Answers for CrcRequest<C, S, D, A> {
    type Answer = A;
}

impl<C, S, D, A: Answer> Own for CrcRequest<C, S, D, A>
where
    C: AsRef<Crc> + Handle<Owned = Crc>,
    S: Source + Handle<Owned: Source>,
    D: MaybeDestination + Handle<Owned: MaybeDestination>,
{
    type Owned = CrcRequest<Crc, S::Owned, D::Owned, A>;

    fn own(flight: &JobFuture<Self>) -> Self::Owned {
        let request = flight.context();
        let (src, dst) = (request.src.cloned(), request.dst.cloned());
        CrcRequest::new(request.crc.cloned(), request.options, src, dst)
    }
}

/// The operation of [`Crc::crc32c`] and [`Crc::crc32c_with`]. Its output is the CRC.
pub type CrcOp<C, S> = Op<CrcRequest<C, S, (), u32>>;

/// The operation of [`Crc::copy_crc`] and [`Crc::copy_crc_with`]. Its output is the number of
/// copied bytes and their CRC.
pub type CopyCrcOp<C, S, D> = Op<CrcRequest<C, S, D, CrcCopied>>;
