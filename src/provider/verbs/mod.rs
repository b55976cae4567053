//! Real adapters, through rdma-core's libibverbs (feature `verbs`).
//!
//! Devices have the names that `ibv_devices` shows, and everything else is as on the software device: contexts, memory, graphs.
//!
//! ```no_run
//! use tokio_doca::{Device, Mmap, Rdma, WorkQ};
//!
//! # fn main() -> Result<(), tokio_doca::Error> {
//! let device = Device::open("mlx5_0")?;          // or "rxe0", Soft-RoCE
//! let workq = WorkQ::builder().build()?;
//! let rdma = Rdma::builder(&device).attach(&workq)?;
//! # Ok(())
//! # }
//! ```
//!
//! What is different, since the transport is:
//!
//! - Connecting makes no round trip: a peer that has gone is noticed by the first operation. A connection tells nothing to who only waits, so that an
//!   idle peer is asked whether it is there once a second (by a read of no bytes); one that is silent fails within about two seconds.
//! - Memory is registered for copies and for remote operations apart, and locked: `ulimit -l` counts both
//!   ([`MmapBuilder::only_for`](crate::MmapBuilder::only_for)).
//! - A [`Dma`](crate::Dma) is a loopback through the adapter, in a protection domain of its own. Hashes are the CPU's.
//!
//! ```text
//!   list, sysfs            what there is: names, PCI addresses, capabilities (traits), and why there is nothing
//!   context                an open device: protection domains, addresses
//!   memory, blob           regions, exports, what peers exchange
//!   queue                  one WorkQ's half: who polls, and what failed (core, cq)
//!   connection, endpoint   its Jobs and receives (sends, posting, wr), their ends (outcome), probes
//!                          (watch, events), causes (status)
//!   copies, hashes         Dma, Sha
//!   watcher                the thread that hears of devices' events, and looks at the time (wake, watched)
//!   ffi                    the C side
//! ```

mod blob;
mod bridge;
mod connection;
mod context;
mod copies;
mod core;
mod cq;
mod device;
mod endpoint;
mod events;
#[doc(hidden)]
pub mod ffi;
mod hashes;
mod list;
mod local_endpoints;
mod memory;
mod outcome;
mod posting;
mod qp;
mod queue;
mod sends;
mod status;
mod sysfs;
mod traits;
mod wake;
mod watch;
mod watched;
mod watcher;
mod wr;

pub use blob::Address;
pub use ffi::ibv_pd;
pub use list::Verbs;
