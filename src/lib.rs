//! Awaitable DMA and RDMA on Tokio: the programming model of DOCA Core 2.2 as futures, with a
//! complete device in software.
//!
//! ```
//! use tokio_doca::{BufPool, Device, Dma, Mmap, WorkQ};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> tokio_doca::Result<()> {
//! let device = Device::open_default()?;                           // needs no hardware
//! let mmap = Mmap::builder().device(&device).alloc(1 << 20)?;     // memory for the device
//! let pool = BufPool::builder(&mmap).element_size(4096).build()?; // buffers in that memory
//! let workq = WorkQ::builder().depth(256).build()?;               // a queue of jobs
//! let dma = Dma::builder(&device).attach(&workq)?;                // a context that copies
//!
//! let (src, dst) = (pool.alloc().await, pool.alloc().await);
//! src.extend_from_slice(b"hello")?;
//! let copied = dma.copy(&src, &dst).await?;
//! assert_eq!((copied, &dst.data()?[..]), (5, &b"hello"[..]));
//! # Ok(())
//! # }
//! ```
//!
//! # What you want to do
//!
//! | task | chapter of the [guide] | begin with |
//! |---|---|---|
//! | learn it by building a service | [1](guide::copies) to [7](guide::testing) | `examples/tiny_store` |
//! | copy memory by a device | [copies](guide::copies) | [`Dma`] |
//! | talk to a peer, read and write its memory | [RDMA](guide::rdma), [memory of another process](guide::memory) | [`Rdma`], [`mem::RemoteMmap`] |
//! | serve byte streams, HTTP, gRPC or TLS | [streams](guide::streams) | [`stream::RdmaListener`], [`stream::RdmaConnector`] |
//! | run a service: kills, shutdown, two hosts | [running a service](guide::service) | |
//! | poll instead of sleeping, or run a loop of your own | [busy polling](guide::modes) | [`WorkQ`], [`Mode`] |
//! | use RDMA adapters | [adapters](guide::adapters) | [`Device::open`] |
//! | test your service | [testing](guide::testing) | [`soft::Soft`] |
//! | know why it does not work | [mistakes](guide::mistakes), [`error::Reason`] | [`Error`] |
//! | stop waiting for something | [cancellation](guide::cancellation) | [`Op`] |
//! | know what you may rely on | [guarantees](guide::guarantees) | |
//! | port a program of DOCA | [coming from DOCA](guide::doca) | |
//! | drive a device of your own | [writing a provider](guide::provider) | [`device::contract`] |
//!
//! # Where things are
//!
//! | module | what it offers |
//! |---|---|
//! | [`device`] | opens devices and lists their capabilities |
//! | [`device::contract`] | for providers of other devices |
//! | [`mem`] | registered memory ([`Mmap`]) and buffers in it ([`Buf`], [`BufPool`], [`mem::BufChain`]); memory of other processes ([`mem::RemoteMmap`]) |
//! | [`workq`] | the queue that carries jobs ([`WorkQ`]), event-driven, busy-polling or both ([`Mode`]) |
//! | [`op`] | an operation as a value ([`Op`]): await it, start it, or post it to a loop of your own |
//! | [`dma`] | copies within the process, and to and from exported memory of other processes ([`Dma`]) |
//! | [`sha`] | SHA digests ([`sha::Sha`]) |
//! | [`crc`] | CRC-32C, alone or together with a copy ([`crc::Crc`]) |
//! | [`rdma`] | messages, and reads, writes and atomics in a peer's memory ([`Rdma`]) |
//! | [`stream`] | byte streams over RDMA, for services that were written for TCP ([`stream::RdmaStream`]) |
//! | [`sync_event`] | counters that two processors change and wait for ([`sync_event::SyncEvent`]) |
//! | [`accel`] | jobs of a provider's own kinds ([`accel::Accel`]) |
//! | [`graph`] | jobs, functions and futures with dependencies, described once and run often ([`graph::Graph`]) |
//! | [`channel`] | control messages between a host and its DPU ([`channel::Channel`]) |
//! | [`error`] | what calls and jobs fail with ([`Error`], [`error::JobError`]) |
//! | [`soft`] | the software device: limits, topology, environment variables |
//! | `verbs` | adapters through libibverbs |
//!
//! # What it does, and what not
//!
//! There are two providers of devices. [`soft`] is a complete device in software: it runs anywhere
//! on Linux, is the default, and takes on the limits of an adapter on request ([`soft::Limits`]).
//! It shows one of the two sides of a card: the host's functions, or the DPU's ports with their
//! [`device::Representor`]s ([`soft::Topology`]). `verbs` drives real adapters. You can add other
//! providers ([`add_provider`]). The crate does not use the vendor's DOCA SDK.
//!
//! The crate allocates memory, or registers yours: a memfd, the bytes of an owner, or raw memory
//! ([`mem::MmapBuilder`]). A [`Buf`] becomes `Bytes` without a copy, and codecs can write into it.
//!
//! # What an operation is
//!
//! A method such as [`Dma::copy`] returns an [`Op`]: a value that describes the operation, and a
//! future that does it. You can await the Op at once. To spawn it, make it own its operands first
//! ([`Op::owned`]). To await its end later, submit it now ([`Op::start`]). A loop of your own posts
//! it ([`Op::post`]), and [`WorkQ::progress`] returns its [`op::Output`].
//!
//! # The life of one copy
//!
//! ![The first poll takes leases. The device finishes the job inline, or the job takes a slot, is
//! submitted and completes later. A future that is dropped in flight leaves an orphan, which frees
//! itself.][job_svg]
//!
//! 1. `dma.copy(&src, &dst)` makes a future. Nothing happens: futures are lazy. 2. The first poll
//! takes a read *lease* on `src` and a write lease on `dst`. If a lease is refused, the copy fails
//! with `InUse` at once. 3. If the device finishes the job inline (the software device does, up to
//! 256 KiB), the data length of `dst` grows, the leases are returned, and the future is ready. This
//! takes no slot, no lock, no allocation and no system call. 4. Otherwise the leases move into a
//! *slot* of the WorkQ, and the job goes to the device. If no slot is free, the future waits in
//! line for one. 5. In event mode the task sleeps until the device signals the event handle of the
//! WorkQ. The handle's descriptor is in an `AsyncFd`, whose waker collects completions and wakes
//! the tasks. In busy mode the future polls the device itself. In Hybrid mode it polls for a
//! bounded time, and then sleeps. 6. The completion returns the leases, and the next poll returns
//! the result.
//!
//! # Cancellation
//!
//! You may drop a future at any time. Before step 4 nothing has begun. Afterwards the job
//! continues, its memory stays leased, and its completion frees everything. Forgetting a future
//! (`mem::forget`) leaks its slot and what it owns; nothing dangles.
//!
//! A receive cannot be recalled: one that is dropped stays posted, and the next receive that begins
//! takes over its message ([`Rdma::recv`]). Dropping a wait of a
//! [`SyncEvent`](sync_event::SyncEvent) ends the wait.
//!
//! # The life of one message
//!
//! 1. Each side attaches an [`Rdma`] to a WorkQ, and the sides exchange blobs: with
//!    [`Rdma::handshake_connect`], or with [`export`](Rdma::export) and [`connect`](Rdma::connect).
//! 2. The receiver posts a receive: a [`recv`](Rdma::recv) posts one at its first poll or, if it is
//!    [started](Op::start), at once; [`recv_stream`](Rdma::recv_stream) posts several. The lease on
//!    the destination moves into a table of the Rdma. Receives do not count against the depth of
//!    the WorkQ.
//! 3. The sender's `send` is a job like a copy; [`send_sink`](Rdma::send_sink) submits several at
//!    once. A send completes once the receiver has the message (over iWARP possibly
//!    [before](device::RdmaCaps::acknowledged)). If no receive is posted, the send waits for one,
//!    at most [`rnr_timeout`](rdma::RdmaBuilder::rnr_timeout).
//! 4. The message completes the oldest receive: the receive's data grows, and its task is woken.
//! 5. The first failure takes both sides to [`RdmaState::Error`](rdma::RdmaState::Error). What is
//!    in flight is flushed, and later operations fail until both sides are [`reset`](Rdma::reset)
//!    and connected anew.
//!
//! # Threads and runtimes
//!
//! Everything is `Send + Sync`; clones are handles on the same object. Tasks of up to four runtimes
//! can await operations of one WorkQ. Busy mode needs no runtime. Inside [`WorkQ::block_on`], or
//! with a loop of your own, no mode needs one.
//!
//! # Clean-up
//!
//! Every handle keeps the objects that it depends on alive, so the order of drops does not matter.
//! Dropping the last handle of a WorkQ never waits for jobs in flight: the device keeps what they
//! need, and frees it after the last one. [`WorkQ::shutdown`] waits.
//!
//! # Glossary
//!
//! To find the item that replaces a DOCA function or type, search this documentation for its DOCA
//! name, of release 2.2 or later. [Coming from DOCA](guide::doca) lists all of them.
//!
//! | word | meaning | DOCA |
//! |---|---|---|
//! | [`Device`], [`device::DevInfo`] | an open device; a device that can be opened | `doca_dev`, `doca_devinfo` |
//! | [`Mmap`] | a registered memory range | `doca_mmap` |
//! | [`Buf`] | a piece of an Mmap, with headroom, data and tailroom | `doca_buf` |
//! | [`mem::BufChain`] | a scatter/gather list of Bufs | `doca_buf` linked list |
//! | [`BufPool`], [`mem::BufInventory`], [`mem::BufArray`] | sources of Bufs: of one size and fast; of any range; by index | `doca_bufpool`, `doca_buf_inventory`, `doca_buf_arr` |
//! | [`mem::RemoteMmap`], [`mem::RemoteBuf`] | a range that a peer has exported; a piece of one | `doca_mmap_create_from_export` |
//! | blob | the bytes by which an importer, or the peer of an Rdma, finds what was exported; keep them secret | export descriptor |
//! | [`WorkQ`] | the queue that jobs enter and completions leave | `doca_workq` |
//! | context | an object that makes operations of one kind, on one WorkQ: [`Dma`], [`sha::Sha`], [`Rdma`], .. | `doca_ctx` |
//! | [`Dma`] | a context that copies | `doca_dma` |
//! | [`sha::Sha`], [`sha::ShaSession`] | a context that hashes; a message that comes in parts | `doca_sha`, `doca_sha_partial_session` |
//! | [`crc::Crc`] | a context that computes CRC-32C, alone or with a copy | |
//! | [`Rdma`] | a context: one side of a connection | `doca_rdma` |
//! | endpoint | the device's half of an Rdma ([`device::contract::Endpoint`]): a queue pair | `ibv_qp` |
//! | [`device::RepInfo`], [`device::Representor`] | the DPU's proxy of a host's function; an open one | `doca_devinfo_rep`, `doca_dev_rep` |
//! | [`channel::Channel`], [`channel::Service`] | control messages between host and DPU; the side that accepts | DOCA Comm Channel |
//! | [`rdma::RecvStream`] | a stream of messages in Bufs of a pool | |
//! | [`rdma::RecvPool`] | Bufs for the messages of many connections | `ibv_srq` |
//! | [`rdma::SendSink`] | a sink that sends messages in batches | |
//! | [`stream::RdmaStream`], [`stream::RdmaListener`] | a byte stream over an Rdma; the side that accepts | |
//! | receive | a request for one message, with memory for it, posted before the message comes | `DOCA_RDMA_JOB_RECV` |
//! | adopt | a receive takes over a dropped receive, with its message | |
//! | credit | the right to send one frame, or one message to an Rdma that receives from a [`rdma::RecvPool`] | |
//! | frame | a header and data: what a stream or a channel sends at once | |
//! | RNR | "receiver not ready": a message found no receive | |
//! | flushed | ended because another job of the Rdma failed first, or the connection ended: [`JobError::cause`](error::JobError::cause) says why | `IBV_WC_WR_FLUSH_ERR` |
//! | immediate | 32 bits beside a message, or beside a write that completes a receive | immediate data |
//! | [`sync_event::SyncEvent`], [`sync_event::BlockingSyncEvent`] | a counter that two processors change, read and wait for; the same without a WorkQ | `doca_sync_event` |
//! | [`accel::Accel`] | a context for jobs of a provider's own kinds | |
//! | [`Op`] | an operation, as a value and a future | |
//! | [`graph::Graph`], [`graph::Node`], [`graph::Instance`] | jobs and functions with dependencies; one of them; the operands of a run | `doca_graph`, `doca_graph_node`, `doca_graph_instance` |
//! | lease | the right of one job, guard or `Bytes` to touch some bytes | |
//! | slot, orphan | an entry of the WorkQ for a job in flight; a slot whose Op was dropped | |
//! | arm, clear, reap | request an event, acknowledge it, collect completions | `..._arm`, `..._clear`, `doca_workq_progress_retrieve` |
//!
//! # Features
//!
//! - `verbs`, on by default: adapters. It needs nothing to build, and opens libibverbs when the
//!   process asks for adapters.
//! - `ibverbs`: a device over a protection domain of the crate `ibverbs-sys`, which needs cmake and
//!   libclang to build.
//!
#![doc = include_str!("guide/pictures.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(missing_docs, clippy::unwrap_used)]

// These modules come first, since rustdoc shows the methods of a type in the order of modules.
mod provider;
mod reactor;

pub mod channel;
pub mod device;
pub mod error;
pub mod guide;
pub mod mem;
mod ops;
mod process;
pub mod stream;
mod sync;

#[doc(no_inline)]
pub use device::Device;
#[doc(no_inline)]
pub use dma::Dma;
#[doc(no_inline)]
pub use error::{Error, ErrorKind, Result};
#[doc(no_inline)]
pub use mem::{Buf, BufPool, Mmap};
#[doc(no_inline)]
pub use op::Op;
pub use ops::{crc, graph};
#[cfg(feature = "verbs")]
pub use provider::verbs;
pub use provider::{add_provider, soft};
#[doc(no_inline)]
pub use rdma::Rdma;
#[doc(no_inline)]
pub use workq::{Mode, WorkQ};

/// Memory copies by a device, in the process and between processes of one host.
pub mod dma {
    pub use crate::ops::{Dma, DmaBuilder, DmaCopy};
}

/// SHA digests by a device, of whole messages and of messages in parts.
pub mod sha {
    pub use crate::device::Algorithm;
    pub use crate::ops::{Sha, ShaBuilder, ShaOp, ShaSession};
}

/// Reliable connections: messages, and reads, writes and atomics in the memory of a peer.
pub mod rdma {
    pub use crate::device::{Mtu, Path, RecvOpcode, Transport};
    pub use crate::ops::{
        CmAccept, CmListener, CmRequest, Connect, ConnectTo, Message, Rdma, RdmaBuilder, RdmaOp,
        RdmaRecv, RdmaStats, RecvPool, RecvStream, SendSink,
    };
    pub use crate::reactor::{RdmaState, RdmaWatch, Received};
}

/// Counters of 64 bits that two processors change, read and wait for.
pub mod sync_event {
    pub use crate::ops::{
        BlockingSyncEvent, ImportedSyncEvent, Location, SyncEvent, SyncEventBuilder,
        SyncEventImport, SyncEventOp, SyncEventWait,
    };
}

/// Jobs of kinds that a provider defines, by opcode.
pub mod accel {
    pub use crate::ops::{Accel, AccelBuilder, AccelCall, AccelOp};
}

/// Operations as values: what a method such as [`Dma::copy`] returns, and the results of
/// operations.
pub mod op {
    pub use crate::ops::{Answer, Op, Operation, Output, Refused, Started, StartedAll};
}

/// Work queues: where jobs go in and completions come out.
pub mod workq {
    pub use crate::reactor::{Mode, PollThread, Shutdown, Stats, WorkQ, WorkQBuilder};
}

/// Compiles the examples of the documents, and runs those with a `main`.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../README.md")]
    struct Readme;
}
