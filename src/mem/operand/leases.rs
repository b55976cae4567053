//! The Leases of a job, whatever its operands are, and what is left to do after they were given
//! back.
//!
//! Giving a count back runs no code of the application. After the last count, the element returns
//! to its slab, and perhaps its Mmap ends: that wakes wakers and drops owners. A caller that must
//! not run such code ends the Leases, and drops the returned [`Last`] later.
#![allow(
    unreachable_pub,
    reason = "the Leases are named by the sealed traits of operands"
)]

use super::session::SessionLease;
use crate::mem::chain::{AfterChain, ChainRead, ChainWrite};
use crate::mem::element::{AfterLease, ReadLease, WriteLease};
use crate::mem::remote::{LastImport, RemoteMmap, RemoteRead, RemoteWrite};

/// The Leases of a job of any kind, in the form in which a slot keeps them.
pub(crate) struct Leases {
    pub(crate) read: Option<Reading>,
    pub(crate) write: Option<Writing>,
    pub(crate) session: Option<SessionLease>,
}

impl Leases {
    #[inline(always)]
    pub(crate) fn of(read: Option<Reading>, write: Option<Writing>) -> Leases {
        let session = None;
        Leases {
            read,
            write,
            session,
        }
    }
}

/// The Leases on both sides of a job.
pub(crate) trait OfJob {
    /// Appends `by` bytes to the data of the destination, if the job succeeded, and gives the
    /// leases back.
    fn end(self, by: Option<usize>);

    /// Converts the Leases to the form in which a slot keeps them.
    fn keep(self) -> Leases;
}

impl OfJob for Leases {
    #[inline(always)]
    fn end(self, by: Option<usize>) {
        if let Some(by) = by {
            self.write.grow(by);
        }
    }

    #[inline(always)]
    fn keep(self) -> Leases {
        self
    }
}

impl<R: IntoKept<Reading>, W: IntoKept<Writing> + Grow> OfJob for (R, W) {
    #[inline(always)]
    fn end(self, by: Option<usize>) {
        // Ended one by one, since the drop glue of a pair is a call.
        let (read, write) = self;
        if let Some(by) = by {
            write.grow(by);
        }
        drop(write);
        drop(read);
    }

    #[inline(always)]
    fn keep(self) -> Leases {
        Leases::of(self.0.kept(), self.1.kept())
    }
}

/// The read Leases of one job.
pub enum Reading {
    Buf(ReadLease),
    Chain(ChainRead),
    /// Memory that no lease of this process protects.
    Import(RemoteMmap),
    /// Memory that no lease of this process protects, and that the device reaches without the
    /// import.
    Lasting,
}

/// The write Leases of one job.
pub enum Writing {
    Buf(WriteLease),
    Chain(ChainWrite),
    /// Memory that no lease of this process protects.
    Import(RemoteMmap),
    /// Memory that no lease of this process protects, and that the device reaches without the
    /// import.
    Lasting,
}

/// A slot has two words for each side of its job.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<(Option<Reading>, Option<Writing>)>() == 32);

impl Reading {
    /// Returns true if a peer or another process may write some of the memory while the job reads
    /// it.
    pub(crate) fn is_shared(&self) -> bool {
        match self {
            Reading::Buf(lease) => lease.is_shared(),
            Reading::Chain(lease) => lease.is_shared(),
            Reading::Import(_) | Reading::Lasting => true,
        }
    }
}

/// A write Lease, whose data grows by the bytes that a job wrote.
pub trait Grow {
    /// Appends `by` bytes to the data.
    fn grow(&self, by: usize);
}

impl Grow for WriteLease {
    #[inline(always)]
    fn grow(&self, by: usize) {
        WriteLease::grow(self, by);
    }
}

impl Grow for ChainWrite {
    fn grow(&self, by: usize) {
        ChainWrite::grow(self, by);
    }
}

/// Imported memory has no data that grows.
impl Grow for RemoteWrite {
    #[inline(always)]
    fn grow(&self, _by: usize) {}
}

impl Grow for () {
    #[inline(always)]
    fn grow(&self, _by: usize) {}
}

impl Grow for Writing {
    #[inline(always)]
    fn grow(&self, by: usize) {
        match self {
            Writing::Buf(lease) => lease.grow(by),
            Writing::Chain(lease) => lease.grow(by),
            Writing::Import(_) | Writing::Lasting => {}
        }
    }
}

impl Grow for Option<Writing> {
    #[inline(always)]
    fn grow(&self, by: usize) {
        if let Some(lease) = self {
            lease.grow(by);
        }
    }
}

/// A Lease on operands of one type, or no Lease (`()`, `None`). It converts to `K`, the enum in
/// which a slot keeps a Lease on an operand of any type.
pub trait IntoKept<K> {
    /// Converts the Lease to the form in which a slot keeps it.
    fn kept(self) -> Option<K>;
}

macro_rules! keep {
    ($($lease:ty => $kept:ty: |$name:pat_param| $how:expr;)*) => {$(
        impl IntoKept<$kept> for $lease {
            #[inline(always)]
            fn kept(self) -> Option<$kept> {
                let $name = self;
                $how
            }
        }
    )*};
}

keep! {
    ReadLease => Reading: |lease| Some(Reading::Buf(lease));
    ChainRead => Reading: |lease| Some(Reading::Chain(lease));
    RemoteRead => Reading: |lease| Some(match lease {
        RemoteRead::Own(lease) => Reading::Buf(lease),
        RemoteRead::Import(import) => Reading::Import(import),
        RemoteRead::Lasting => Reading::Lasting,
    });
    Option<Reading> => Reading: |lease| lease;
    () => Reading: |()| None;
    WriteLease => Writing: |lease| Some(Writing::Buf(lease));
    ChainWrite => Writing: |lease| Some(Writing::Chain(lease));
    RemoteWrite => Writing: |lease| Some(match lease {
        RemoteWrite::Own(lease) => Writing::Buf(lease),
        RemoteWrite::Import(import) => Writing::Import(import),
        RemoteWrite::Lasting => Writing::Lasting,
    });
    Option<Writing> => Writing: |lease| lease;
    () => Writing: |()| None;
}

/// Work left to do after a Lease was given back. Dropping the value does the work, and may run code
/// of the application: the drop of an owner, and wakers that wait for an element.
#[must_use = "its drop may run code of the application's"]
#[expect(dead_code, reason = "what is in it is there to be dropped")]
pub(crate) enum Last {
    /// The work due after the end of a Lease on an element.
    Element(AfterLease),
    /// The work due after the end of a chain's leases, and a reference to the chain.
    Chain(AfterChain),
    /// The last reference to an import.
    Import(LastImport),
}

impl Reading {
    /// Gives the Lease back. Returns what is left to do, which may run code of the application:
    /// dropping the result does it.
    #[inline(always)]
    pub(crate) fn end(self) -> Option<Last> {
        match self {
            Reading::Buf(lease) => lease.end().map(Last::Element),
            Reading::Chain(lease) => lease.end().map(Last::Chain),
            Reading::Import(import) => import.end().map(Last::Import),
            Reading::Lasting => None,
        }
    }
}

impl Writing {
    /// Gives the Lease back. The result is the work that may run code of the application, for the
    /// caller to drop.
    #[inline(always)]
    pub(crate) fn end(self) -> Option<Last> {
        match self {
            Writing::Buf(lease) => lease.end().map(Last::Element),
            Writing::Chain(lease) => lease.end().map(Last::Chain),
            Writing::Import(import) => import.end().map(Last::Import),
            Writing::Lasting => None,
        }
    }
}
