//! Awaitable DMA and RDMA on Tokio: the programming model of DOCA Core 2.2 as futures, with a complete device in software.
//!
//! ```
//! use tokio_doca::{BufPool, Device, Dma, Mmap, WorkQ};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tokio_doca::Error> {
//! let device = Device::open_default()?;                              // a device; no hardware needed
//! let mmap = Mmap::builder().device(&device).alloc(1 << 20)?;        // memory that it holds
//! let pool = BufPool::builder(&mmap).element_size(4096).build()?;    // pieces of it
//! let workq = WorkQ::builder().depth(256).build()?;                  // where jobs go in and completions come out
//! let dma = Dma::builder(&device).attach(&workq)?;                   // what copies
//!
//! let (src, dst) = (pool.alloc().await, pool.alloc().await);
//! src.extend_from_slice(b"hello")?;
//! let copied = dma.copy(&src, &dst).await?;
//! assert_eq!((copied, &dst.data()?[..]), (5, &b"hello"[..]));
//! # Ok(())
//! # }
//! ```
//!
//! # What it does, and what not
//!
//! Memory copies between Bufs of this process, to and from memory that another process of the host has exported ([`RemoteMmap`]), SHA
//! digests ([`Sha`]), and RDMA ([`Rdma`]) within a process and between those of one host: messages, and reads, writes and atomics in the
//! memory of a connected peer. One by one,
//! gathered and scattered ([`BufChain`]), event-driven, busy-polling or both ([`Mode`]), with back-pressure, from any task of any
//! runtime, or without futures from an epoll loop of your own ([`WorkQ::event_handle`]). The memory is allocated, or yours: a
//! memfd, the bytes of an owner, or raw
//! ([`MmapBuilder`]); a [`Buf`] becomes `Bytes` without a copy, and is written by codecs.
//!
//! There are two providers. [`soft`] is a complete device in software: it runs anywhere on Linux, is the default, and takes the
//! limits of an adapter on request ([`soft::Limits`]). It shows either side of a card, the host's functions or the DPU's ports
//! with their [`Representor`]s ([`soft::Topology`]), between which [`Channel`]s carry control messages. `verbs` drives real
//! adapters through libibverbs; the feature `verbs` switches it on. Others can be added ([`add_provider`]), with kinds of jobs of
//! their own ([`Accel`]): [`device`] has the contract, and a guide. [`Graph`]s run jobs, functions and futures in an order of
//! yours, and [`SyncEvent`]s signal another processor. Byte streams over RDMA are to come. The vendor's DOCA SDK is not used.
//!
//! # What an operation is
//!
//! A method such as [`Dma::copy`] returns an [`Op`]: a value that says what is to be done, and a future that does it. Await it;
//! make it own what it was lent ([`Op::owned`]), to spawn it; submit it now, and await its end later ([`Op::start`]); or post it
//! to a loop of your own ([`Op::post`]), and [`WorkQ::progress`] hands out its [`Output`].
//!
//! # The life of one copy
//!
//! 1. `dma.copy(&src, &dst)` makes a future. Nothing happens: futures are lazy.
//! 2. The first poll takes a read *Lease* on `src` and a write Lease on `dst`; either refused is `InUse`, at once.
//! 3. If the device finishes the job inline (the software device does, up to 64 KiB), the data length of `dst` grows, the
//!    Leases go back, and the future is ready: no Slot, no lock, no allocation, no system call.
//! 4. Otherwise the Leases move into a *Slot* of the WorkQ, and the job to the device. With no Slot free the future
//!    stands in line.
//! 5. In event mode the task sleeps until the event handle rings: its descriptor sits in an `AsyncFd`, whose waker
//!    collects what is finished and wakes the tasks. In busy mode the future's own poll looks; in Hybrid mode it looks for
//!    a bounded time, and sleeps then.
//! 6. The completion gives the Leases back, and the next poll takes the result.
//!
//! # Cancellation
//!
//! Dropping a future is ordinary. Before step 4 nothing was begun; afterwards the job goes on, its memory stays leased,
//! and its completion frees everything. Forgetting a future (`mem::forget`) leaks its
//! Slot, and what it owns; nothing dangles.
//!
//! A receive cannot be recalled: one that is dropped stays posted, and the next one that begins has its message ([`Rdma::recv`]). A wait of a
//! [`SyncEvent`] can: dropped, it waits no more.
//!
//! # The life of one message
//!
//! 1. Each side attaches an [`Rdma`] to a WorkQ, and they exchange blobs: [`Rdma::handshake`], or [`export`](Rdma::export) and
//!    [`connect`](Rdma::connect).
//! 2. The receiver posts: [`recv`](Rdma::recv) at its first poll or, [started](Op::start), at once, [`recv_stream`](Rdma::recv_stream) several. The
//!    Lease on the destination moves into a place of the Rdma's own table, which counts against no depth.
//! 3. The sender's `send` is a job like a copy. It is over once the message is the receiver's; with no receive it waits, until
//!    [`rnr_timeout`](RdmaBuilder::rnr_timeout).
//! 4. The message ends the oldest receive: its data grows, and whoever awaits it is woken.
//! 5. The first failure takes both sides to [`RdmaState::Error`], and the rest is flushed, until they are [`reset`](Rdma::reset) and connected anew.
//!
//! # Threads and runtimes
//!
//! Everything is `Send + Sync`; clones are handles on the same thing. A WorkQ can be awaited on up to four runtimes at a
//! time; busy mode needs none, nor does any mode in [`WorkQ::block_on`] or beside a loop of your own.
//!
//! # Clean-up
//!
//! Every handle keeps what it stands on, so the order of drops does not matter. The last handle of a WorkQ never waits for
//! jobs in flight: the device keeps what they need, and frees it after the last one. [`WorkQ::shutdown`] waits.
//!
//! # Glossary
//!
//! | word | meaning | DOCA |
//! |---|---|---|
//! | [`Device`], [`DevInfo`] | an open device, and what can be opened | `doca_dev`, `doca_devinfo` |
//! | [`Mmap`] | a registered memory range | `doca_mmap` |
//! | [`Buf`] | a piece of it with headroom, data and tailroom | `doca_buf` |
//! | [`BufChain`] | a scatter/gather list of Bufs | `doca_buf` linked list |
//! | [`BufPool`], [`BufInventory`], [`BufArray`] | sources of Bufs: one size and fast; any range; by index | `doca_bufpool`, `doca_buf_inventory`, `doca_buf_arr` |
//! | [`RemoteMmap`], [`RemoteBuf`] | a range that a peer has exported, and a piece of it | `doca_mmap_create_from_export` |
//! | blob | what an importer, or the peer of an Rdma, needs to find what was exported: a secret | export descriptor |
//! | [`WorkQ`] | where jobs go in and completions come out | `doca_workq` |
//! | [`Dma`] | a context: copies, on one WorkQ | `doca_dma` |
//! | [`Sha`], [`ShaSession`] | a context: hashes; a message that comes in parts | `doca_sha`, `doca_sha_partial_session` |
//! | [`Rdma`] | a context: one side of a connection, for messages and for the memory of its peer | `doca_rdma` |
//! | Endpoint | the device's half of an Rdma ([`device::Endpoint`]): a queue pair | `ibv_qp` |
//! | [`RepInfo`], [`Representor`] | the DPU's proxy of a host's function, and an open one | `doca_devinfo_rep`, `doca_dev_rep` |
//! | [`Channel`], [`Service`] | control messages between host and DPU, and who accepts them | DOCA Comm Channel |
//! | [`RecvStream`] | messages as they come, into Bufs of a pool | |
//! | receive | a place for one message, posted before it comes | `DOCA_RDMA_JOB_RECV` |
//! | adopt | a receive takes over one that was dropped, and its message | |
//! | RNR | a message found no receive: "receiver not ready" | |
//! | flushed | ended because another job of the Rdma failed first: [`JobError::cause`] | `IBV_WC_WR_FLUSH_ERR` |
//! | immediate | 32 bits beside a message, or of a write that ends a receive | immediate data |
//! | [`SyncEvent`], [`BlockingSyncEvent`] | a counter that two processors change, read and wait for; the flavour without a WorkQ | `doca_sync_event` |
//! | [`Accel`] | a context for jobs of a provider's own kinds, by opcode | |
//! | [`Op`] | an operation, as a value and a future: [`DmaCopy`], [`ShaOp`], [`RdmaOp`], [`RdmaRecv`], [`SyncEventOp`], [`SyncEventWait`], [`AccelOp`], [`graph::Run`] | |
//! | [`Graph`], [`graph::Node`], [`Instance`] | jobs and functions with dependencies; one of them; the operands of a run | `doca_graph`, `doca_graph_node`, `doca_graph_instance` |
//! | Lease | the right of one job, guard or `Bytes` to touch some bytes | |
//! | Slot, orphan | a job's place in the WorkQ; a Slot whose Op was dropped | |
//! | arm, clear, reap | ask for a ring, acknowledge it, collect completions | `..._arm`, `..._clear`, `doca_workq_progress_retrieve` |
//!
//! # Features
//!
//! - `contract`: the suite that every provider must pass, for authors of providers.
//! - `verbs`: adapters through libibverbs. It needs cmake and libclang to build, and finds the library when it runs.
#![warn(missing_docs, clippy::unwrap_used)]

pub mod channel;
#[cfg(feature = "contract")]
pub mod contract;
pub mod device;
mod error;
mod mem;
mod ops;
mod process;
mod provider;
mod reactor;
mod sync;

pub use channel::{Channel, ChannelBuilder, ChannelStats, Peer, Service};
pub use device::{
    AccelCaps, Access, Algorithm, Audience, Caps, DevInfo, Device, DmaCaps, EndpointState, JobKind,
    Mtu, PciAddr, PciFunction, RdmaCaps, RdmaKind, RecvOpcode, RepCaps, RepFilter, RepInfo,
    RepKind, Representor, ShaCaps, SyncEventCaps, SyncEventKind,
};
pub use error::{Error, ErrorKind, JobError, Reason, Result};
pub use mem::{
    Alloc, ArrayTarget, Buf, BufArray, BufArrayBuilder, BufChain, BufData, BufDataMut,
    BufInventory, BufPool, BufPoolBuilder, BufSlice, CopyDestination, CopySource, Destination,
    Handle, HugePages, Import, IntoBytesError, Link, MaybeDestination, MaybeRemote, MaybeSource,
    Mmap, MmapBuilder, RdmaDestination, RdmaSource, RemoteBuf, RemoteMmap, Source,
};
pub use ops::graph::{self, Graph, GraphBuilder, Instance};
pub use ops::{
    Accel, AccelBuilder, AccelCall, AccelOp, Answer, BlockingSyncEvent, Connect, Dma, DmaBuilder,
    DmaCopy, ImportedSyncEvent, Location, Message, Op, Operation, Output, Rdma, RdmaBuilder,
    RdmaOp, RdmaRecv, RecvStream, Refused, Sha, ShaBuilder, ShaOp, ShaSession, Started, SyncEvent,
    SyncEventBuilder, SyncEventImport, SyncEventOp, SyncEventWait,
};
#[cfg(feature = "verbs")]
pub use provider::verbs;
pub use provider::{add_provider, soft};
pub use reactor::{Mode, RdmaState, RdmaWatch, Received, Shutdown, Stats, WorkQ, WorkQBuilder};
