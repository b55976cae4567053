//! Real adapters, through rdma-core's libibverbs (feature `verbs`, on by default).
//!
//! Devices have the names that `ibv_devices` shows. There are no sync events, and no exports to the
//! DPU. All other memory, graphs and contexts work as on the software device.
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
//! A device uses one port of its adapter: the first that is up, or the port that the name gives, as
//! in `mlx5_0/2` ([`Device::open`](crate::Device::open)).
//!
//! These differences follow from the transport:
//!
//! - Connecting makes no round trip, so that only the first operation notices that a peer is gone.
//!   Nothing shows the end of the peer to a side that only waits. So the crate probes an idle peer
//!   once a second, by a read of no bytes. The connection to a silent peer fails within about two
//!   seconds. [`probe_interval`](crate::rdma::Transport::probe_interval) sets another interval.
//! - Memory is registered separately for copies and for remote operations, and locked: `ulimit -l`
//!   counts both ([`MmapBuilder::only_for`](crate::mem::MmapBuilder::only_for)).
//! - A [`Dma`](crate::Dma) copies by a loopback through the adapter, in a protection domain of its
//!   own; an iWARP adapter has no Dma. The CPU computes hashes and CRCs.

// list, device, bridge   the adapters of the system; an open one; one over the application's domain
// watcher                the thread that reads the events of devices, and checks time limits
// workq                  one WorkQ's half: its queue and endpoints, copies, hashes
// managed                connections that rdma_cm makes, and its listeners
// connection             a connection: its Jobs and receives, their ends, its timeouts
// transport              completion queues, queue pairs, requests, the causes of failures
// cm                     rdma_cm: its event channel, and the ids on it
// adapter                an open device: protection domains, capabilities, memory, blobs
// ffi                    the C side
//
// Each of these folders and files imports only those below it.

mod adapter;
mod bridge;
mod cm;
mod connection;
mod device;
#[doc(hidden)]
pub mod ffi;
mod list;
mod managed;
mod transport;
mod watcher;
mod workq;

pub use adapter::{Address, MemoryAddress};
pub use list::Verbs;
