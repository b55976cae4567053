//! Memory that a device may hold: who owns it, who may touch which bytes of it now.
//!
//! Borrows cannot guard memory that a forgotten future leaves in flight. A *Lease* does: many readers or one
//! writer of some bytes. Jobs take Leases when they are submitted and give them back at their completion;
//! guards ([`BufData`], [`BufDataMut`]) are Leases too. A refused Lease is `InUse`: no wait, no undefined behaviour.
//!
//! Leases belong to the [`Mmap`]. A [`BufPool`] and a [`BufArray`] claim their range, and a Lease on one of their elements is
//! a count in the element's word. Bufs of a [`BufInventory`] may overlap: their leased ranges stand in interval trees
//! of the Mmap.
//!
//! A Lease is a reference as well: an element goes home when neither a handle nor a Lease is left. So nothing
//! dangles when a Buf, a guard or a future is dropped or forgotten, in whatever order.
//!
//! | room | what lives there | imports |
//! |---|---|---|
//! | [`operand`] | what a job reads and writes, and how it is lent to a device | all others |
//! | [`remote`] | memory of another process | `pool` and below |
//! | [`pool`] | where Bufs come from | `buf` and below |
//! | [`buf`] | Bufs and lists of them | `element` and below |
//! | [`element`] | the counts and Leases of one Buf | `mmap`, `ranges` |
//! | [`mmap`] | registered memory and the devices that hold it | `ranges` |
//! | [`ranges`] | which bytes are claimed or leased | none |

mod buf;
mod element;
mod handle;
#[cfg(all(test, tokio_doca_loom))]
mod loom;
mod mmap;
mod operand;
mod pool;
mod ranges;
mod remote;

pub use buf::{Buf, BufChain, BufData, BufDataMut, BufSlice, IntoBytesError, Link};
pub use handle::Handle;
pub use mmap::{HugePages, Mmap, MmapBuilder};
pub use operand::{
    Any, AnyCopyDestination, AnyCopySource, AnyDestination, AnySource, CopyDestination, CopySource,
    Destination, MaybeAnyDestination, MaybeAnyRemote, MaybeAnySource, MaybeDestination,
    MaybeRemote, MaybeSource, RdmaDestination, RdmaSource, Source,
};
pub use pool::{
    Alloc, ArrayTarget, BufArray, BufArrayBuilder, BufInventory, BufPool, BufPoolBuilder,
};
pub use remote::{Import, RemoteBuf, RemoteMmap};

pub(crate) use buf::Extent;
pub(crate) use handle::handles;
pub(crate) use mmap::Holder;
#[cfg(feature = "contract")]
pub(crate) use operand::SessionLease;
pub(crate) use operand::{
    Grow, Last, Leased, Leases, LeasesOf, Place, Reading, Rule, Session, Sides, Writing, event,
    hand_over, receive,
};
