//! Registered memory, buffers in it, and leases, which decide what may touch which bytes now.
//!
//! - [`Mmap`] is a memory range that is registered with devices. [`MmapBuilder`] allocates the
//!   memory, or registers memory of the application.
//! - [`BufPool`] has buffers of one size; [`BufInventory`] makes buffers on any range; [`BufArray`]
//!   has buffers by index. All of them give out [`Buf`]s.
//! - [`BufChain`] is a list of buffers that one job gathers from or scatters to.
//! - [`RemoteMmap`] is memory that another process has exported, and [`RemoteBuf`] a range of it.
//!
//! # Leases
//!
//! A borrow cannot guard memory that a forgotten future leaves in flight. A *lease* does: it lets
//! many readers, or one writer, touch some bytes. A job takes its leases when it is submitted and
//! returns them when it completes; guards ([`BufData`], [`BufDataMut`]) hold leases too. A job or
//! guard whose lease is refused fails with `InUse`: it never waits, and there is no undefined
//! behaviour.
//!
//! Leases belong to the [`Mmap`]. A [`BufPool`] and a [`BufArray`] claim their range, and each of
//! their elements counts its own leases. Bufs of a [`BufInventory`] may overlap, so the Mmap keeps
//! their leased ranges in interval trees.
//!
//! A lease is a reference as well: an element returns to its pool once it has neither a handle nor
//! a lease. So nothing dangles when a Buf, a guard or a future is dropped or forgotten, in whatever
//! order.

// | module | what it holds | imports |
// |---|---|---|
// | `operand` | what a job reads and writes, and how it is lent to a device | all others |
// | `chain` | lists of Bufs and of imported memory | `remote` and below |
// | `remote` | memory of another process | `pool` and below |
// | `pool` | where Bufs come from | `buf` and below |
// | `buf` | Bufs and parts of them | `element` and below |
// | `element` | the counts and leases of one Buf | `mmap`, `ranges` |
// | `mmap` | registered memory and the devices that hold it | `ranges` |
// | `ranges` | which bytes are claimed or leased | none |

mod buf;
mod chain;
mod element;
mod handle;
#[cfg(all(test, tokio_doca_loom))]
mod loom;
mod mmap;
mod operand;
mod pool;
mod ranges;
mod remote;

pub use crate::device::Access;
pub use buf::{Buf, BufData, BufDataMut, BufSlice, IntoBytesError, Released};
pub use chain::{BufChain, ChainPiece};
pub use handle::Handle;
pub use mmap::{HugePages, Mmap, MmapBuilder};
pub use operand::{
    Any, AnyCopyDestination, AnyCopySource, AnyDestination, AnySource, CopyDestination, CopySource,
    Destination, MaybeAnyDestination, MaybeAnyRemote, MaybeAnySource, MaybeDestination,
    MaybeRemote, MaybeSource, RdmaDestination, RdmaSource, Source,
};
pub use pool::{
    Alloc, ArrayTarget, BufArray, BufArrayBuilder, BufInventory, BufPool, BufPoolBuilder, PoolStats,
};
pub use remote::{Import, RemoteBuf, RemoteMmap};

pub(crate) use buf::Extent;
pub(crate) use handle::handles;
pub(crate) use mmap::Holder;
pub(crate) use operand::{
    Grow, Last, Leased, Leases, LeasesOf, OfJob, Reach, Reading, Rule, Session, Sides, Writing,
    event, hand_over, receive,
};
pub(crate) use pool::BufWait;
