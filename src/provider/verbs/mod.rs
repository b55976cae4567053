//! Real adapters, through rdma-core's libibverbs (feature `verbs`, on by default).
//!
//! Devices have the names that `ibv_devices` shows, and everything else is as on the software
//! device: contexts, memory, graphs.
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
//! A device uses one port of its adapter: the first that is up, or the one that the name says, as
//! `mlx5_0/2` does ([`Device::open`](crate::Device::open)).
//!
//! What is different, since the transport is:
//!
//! - Connecting makes no round trip: a peer that has gone is noticed by the first operation. A
//!   connection tells nothing to who only waits, so that an idle peer is asked whether it is there
//!   once a second (by a read of no bytes); one that is silent fails within about two seconds.
//!   [`probe_interval`](crate::rdma::Transport::probe_interval) changes that.
//! - Memory is registered for copies and for remote operations apart, and locked: `ulimit -l`
//!   counts both ([`MmapBuilder::only_for`](crate::mem::MmapBuilder::only_for)).
//! - A [`Dma`](crate::Dma) is a loopback through the adapter, in a protection domain of its own.
//!   Hashes are the CPU's.
//!
//! ```text
//!   list, device, bridge   what adapters there are, an open one, one over a foreign protection domain
//!   watcher                the thread that hears of devices' events, and looks at the time
//!   workq                  one WorkQ's half: its queue and endpoints, copies, hashes
//!   managed                connections that rdma_cm makes, and its listeners
//!   connection             a connection: its Jobs and receives, their ends, its timeouts
//!   transport              completion queues, queue pairs, requests, the causes of failures
//!   adapter                an open device: protection domains, capabilities, memory, blobs
//!   cm                     rdma_cm: its event channel, and an id of it
//!   ffi                    the C side
//! ```
//!
//! Each imports what stands below it only.

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
