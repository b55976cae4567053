//! A side of a job that may be missing: `()` stands for no source, or for no destination.

#![allow(
    unreachable_pub,
    reason = "the sealed traits are public in a private module"
)]
#![expect(unsafe_code, reason = "promises that Leases are those of a job")]

use std::ops::Range;

use super::copy::sealed::Spans;
use super::copy::{Destination, Source};
use super::leased::Leased;
use super::leases::{Leases, Reading, Writing};
use super::overlap::explain;
use super::rdma::sealed::{Gets, Gives};
use super::session::SessionLease;
use crate::device::{AccelJob, Algorithm, Segments, ShaJob};
use crate::error::JobError;
use crate::mem::buf::Extent;
use crate::mem::mmap::Holder;

/// A [`Source`], or `()`: nothing is read.
pub trait MaybeSource: sealed::MayRead {}

/// A [`Destination`], or `()`: nothing is written.
pub trait MaybeDestination: sealed::MayWrite {}

impl<T: sealed::MayRead> MaybeSource for T {}
impl<T: sealed::MayWrite> MaybeDestination for T {}

/// Leases and Segments of the sides that a job has.
pub(crate) struct BegunSides {
    read: Option<Reading>,
    write: Option<Writing>,
    src: Segments,
    dst: Segments,
}

impl BegunSides {
    /// Returns how much the sides have; `None` for a side that there is not.
    pub(crate) fn extents(&self) -> (Option<Extent>, Option<Extent>) {
        let from = self.read.is_some().then(|| Extent::of(&self.src));
        let to = self.write.is_some().then(|| Extent::of(&self.dst));
        (from, to)
    }

    /// A job of a provider's own kind.
    pub(crate) fn accel(self, opcode: u32, arg: u64) -> Leased<Leases, AccelJob> {
        let (src, dst) = (self.src, self.dst);
        let job = AccelJob {
            opcode,
            arg,
            src,
            dst,
        };
        // SAFETY: the Leases are those of the Segments, and two of one of which writes are disjoint.
        unsafe { Leased::new(Leases::of(self.read, self.write), job) }
    }

    /// A hash, whose digest goes to the front of the destination. Panics if that is too short.
    pub(crate) fn sha(
        self,
        algorithm: Algorithm,
        session: Option<SessionLease>,
    ) -> Leased<Leases, ShaJob> {
        let room = self.dst.as_slice().first();
        let job = ShaJob {
            algorithm,
            shared: self.read.as_ref().is_some_and(Reading::is_shared),
            src: self.src,
            dst: room.map(|room| room.part(0, algorithm.digest_len())),
            session: session.as_ref().map(SessionLease::for_device),
        };
        let (read, write) = (self.read, self.write);
        let leases = Leases {
            read,
            write,
            session,
        };
        // SAFETY: as above; a digest's room is as long as one, and the session is leased too.
        unsafe { Leased::new(leases, job) }
    }
}

/// Takes the Lease of a receive that may write all of the tailroom of `dst`.
pub(crate) fn begin_receive(
    dst: &impl MaybeDestination,
    holder: Holder,
) -> Result<Leased<Option<Writing>, Segments>, JobError> {
    let (lease, segments, _) = dst.may_write(holder)?;
    // SAFETY: the Lease is that of the Segments.
    Ok(unsafe { Leased::new(lease, segments) })
}

/// Takes the Leases of a job that reads all of `src` and may write all of the tailroom of `dst`; all or none.
pub(crate) fn begin_sides(
    src: &impl MaybeSource,
    dst: &impl MaybeDestination,
    holder: Holder,
) -> Result<BegunSides, JobError> {
    let (read, from, _) = src
        .may_read(holder)
        .map_err(|error| explain(src, dst, error))?;
    let (write, to, _) = dst
        .may_write(holder)
        .map_err(|error| explain(src, dst, error))?;
    Ok(BegunSides {
        read,
        write,
        src: from,
        dst: to,
    })
}

/// The traits behind [`MaybeSource`] and [`MaybeDestination`], which nobody else implements.
pub mod sealed {
    use super::*;

    pub trait MayRead: Spans + Gives {
        /// Its data now, without a Lease; `None` if there is no such side.
        fn extent_now(&self) -> Option<Extent>;
        /// Leases, Segments, and how many bytes of data.
        fn may_read(&self, holder: Holder) -> Result<(Option<Reading>, Segments, usize), JobError>;
    }

    pub trait MayWrite: Spans + Gets {
        /// Its tailroom now, without a Lease; `None` if there is no such side.
        fn extent_now(&self) -> Option<Extent>;
        /// Leases, Segments, and how many bytes of tailroom.
        fn may_write(&self, holder: Holder)
        -> Result<(Option<Writing>, Segments, usize), JobError>;
        /// Whether this write Lease is its own.
        fn has(&self, lease: &Writing) -> bool;
    }
}

use sealed::{MayRead, MayWrite};

impl Spans for () {
    fn each(&self, _f: &mut dyn FnMut(Range<usize>)) {}
}

impl MayRead for () {
    fn extent_now(&self) -> Option<Extent> {
        None
    }

    fn may_read(&self, _: Holder) -> Result<(Option<Reading>, Segments, usize), JobError> {
        Ok((None, Segments::none(), 0))
    }
}

impl MayWrite for () {
    fn extent_now(&self) -> Option<Extent> {
        None
    }

    fn may_write(&self, _: Holder) -> Result<(Option<Writing>, Segments, usize), JobError> {
        Ok((None, Segments::none(), 0))
    }

    fn has(&self, _lease: &Writing) -> bool {
        false
    }
}

impl<T: Source> MayRead for T {
    fn extent_now(&self) -> Option<Extent> {
        Some(self.data_extent())
    }

    fn may_read(&self, holder: Holder) -> Result<(Option<Reading>, Segments, usize), JobError> {
        let (lease, segments, len) = self.begin_read(holder)?;
        Ok((Some(lease.into()), segments, len))
    }
}

impl<T: Destination> MayWrite for T {
    fn extent_now(&self) -> Option<Extent> {
        Some(self.room_extent())
    }

    fn may_write(&self, holder: Holder) -> Result<(Option<Writing>, Segments, usize), JobError> {
        let (lease, segments, room) = self.begin_write(holder)?;
        Ok((Some(lease.into()), segments, room))
    }

    fn has(&self, lease: &Writing) -> bool {
        self.is_leased_by(lease)
    }
}
