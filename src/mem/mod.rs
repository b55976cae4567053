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

mod any;
mod array;
mod begun;
mod bridge;
mod buf;
mod builder;
mod bytes;
mod chain;
mod cut;
mod devices;
mod element;
mod event;
mod exports;
mod free_list;
mod guard;
mod handle;
mod handover;
mod huge;
mod import;
mod interval;
mod inventory;
mod last;
mod lease;
#[cfg(all(test, tokio_doca_loom))]
mod loom;
mod memfd;
mod memory;
mod mmap;
mod operand;
mod or_remote;
mod overlap;
mod owner;
mod pool;
mod ranges;
mod rdma;
mod remote;
mod remote_lease;
mod session;
mod shared;
mod side;
mod slab;
mod word;

pub use any::{AnyDestination, AnySource, MaybeAny};
pub use array::{ArrayTarget, BufArray, BufArrayBuilder};
pub use buf::{Buf, BufSlice};
pub use builder::MmapBuilder;
pub use bytes::IntoBytesError;
pub use chain::{BufChain, Link};
pub use guard::{BufData, BufDataMut};
pub use handle::Handle;
pub use huge::HugePages;
pub use import::Import;
pub use inventory::BufInventory;
pub use mmap::Mmap;
pub use operand::{CopyDestination, CopySource, Destination, Source};
pub use or_remote::OrRemote;
pub use pool::{Alloc, BufPool, BufPoolBuilder};
pub use rdma::{MaybeRemote, RdmaDestination, RdmaSource};
pub use remote::{RemoteBuf, RemoteMmap};
pub use side::{MaybeDestination, MaybeSource};

pub(crate) use begun::{Begun, Leases, begin};
pub(crate) use devices::Holder;
pub(crate) use handle::handles;
pub(crate) use handover::hand_over;
pub(crate) use last::Last;
pub(crate) use operand::{Extent, Grow, Reading, Writing, surely_within};
pub(crate) use rdma::{Moves, begin_rdma};
pub(crate) use session::{Session, SessionLease};
pub(crate) use side::{begin_receive, begin_sides};
