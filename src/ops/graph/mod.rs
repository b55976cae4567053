//! Work that is described once and run many times: jobs, user functions and sub-graphs, and what depends on what.
//!
//! A [`Graph`] is a plan: nodes, and edges between them. An [`Instance`] is the memory of one run at a time: operands, states
//! and results; many of them run at once. A [`Run`] is one future: no task, no waker and no allocation for each node.
//!
//! ```
//! use tokio_doca::{BufPool, Device, Dma, ErrorKind, Error, Graph, Mmap, WorkQ};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! # let device = Device::open_default()?;
//! # let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(1 << 20)?).build()?;
//! let workq = WorkQ::builder().build()?;
//! let dma = Dma::builder(&device).attach(&workq)?;
//!
//! let mut g = Graph::builder();
//! let (left, right) = (g.dma_copy(&dma), g.dma_copy(&dma));
//! let check = g.user(move |run| match (run.result(left), run.result(right)) {
//!     (Some(Ok(left)), Some(Ok(right))) if left == right => Ok(()),
//!     _ => Err(Error::new(ErrorKind::Unexpected, "check", "the replicas differ in length")),
//! });
//! g.depends(check, [left, right]);
//! let graph = g.build()?;
//!
//! let (src, a, b) = (pool.try_alloc()?, pool.try_alloc()?, pool.try_alloc()?);
//! src.extend_from_slice(b"hello")?;
//! let mut instance = graph.instance()?;
//! instance.set(left, (&src, &a))?;
//! instance.set(right, (&src, &b))?;
//! instance.run().await?;
//! assert_eq!((&a.data()?[..], &b.data()?[..]), (&b"hello"[..], &b"hello"[..]));
//! # Ok(())
//! # }
//! ```
//!
//! # The life of a run
//!
//! ```text
//!                       +--- inline, or a user function ----+
//!                       |                                   v
//!   open edges: 0 --> ready --> in flight (a Slot) ------> done: edges to its successors closed, in the same poll
//!                       |  ^                                |
//!                       v  |                                +--> failed: nothing new starts, what runs drains
//!                     in line for a Slot, as an Op is
//! ```
//!
//! User functions run in the task that awaits the run. A node that fails ends the run once what is in flight has
//! drained; [`RunError`] has the first cause, and all nodes that failed.
//!
//! # Remote operations
//!
//! All operations of an [`Rdma`](crate::Rdma) are nodes. A request that is sent, and an answer that is hashed when it came:
//!
//! ```
//! use tokio_doca::{Algorithm, BufPool, Error, Graph, Instance, Rdma, Sha};
//!
//! fn ask(rdma: &Rdma, sha: &Sha, pool: &BufPool) -> Result<Instance, Error> {
//!     let mut g = Graph::builder();
//!     // Beside one another, so that the receive is there before the answer.
//!     let (answer, question) = (g.rdma_recv(rdma), g.rdma_send(rdma));
//!     let hash = g.sha(sha, Algorithm::Sha256);
//!     let log = g.user(move |run| {
//!         println!("{:?}", run.received(answer));
//!         Ok(())
//!     });
//!     g.depends(hash, answer);
//!     g.depends(log, (question, answer));
//!
//!     let (src, dst, digest) = (pool.try_alloc()?, pool.try_alloc()?, pool.try_alloc()?);
//!     src.extend_from_slice(b"what is new?")?;
//!     let mut instance = g.build()?.instance()?;
//!     instance.set(question, &src)?;
//!     instance.set(answer, &dst)?;
//!     instance.set(hash, (&dst, &digest))?;
//!     Ok(instance)
//! }
//! ```
//!
//! # Nodes of other contexts
//!
//! A context joins graphs with an `Action`: what its node is set to, and which `Request` that makes (`action.rs`). The
//! engine knows nothing else of it. A receive is no job of a Slot's: its node is polled, as a future's is (`receive.rs`); so is a wait of a
//! SyncEvent (`sync_event.rs`).

mod action;
mod bits;
mod board;
mod builder;
mod contexts;
mod dot;
mod error;
mod instance;
#[cfg(all(test, tokio_doca_loom))]
mod loom;
mod node;
mod plan;
mod progress;
mod rdma;
mod receive;
mod run;
mod running;
mod scope;
mod sync_event;
mod trace;
mod user;

pub use super::super::mem::{
    Any, AnyCopyDestination, AnyCopySource, AnyDestination, AnySource, MaybeAnyDestination,
    MaybeAnyRemote, MaybeAnySource,
};
pub use builder::GraphBuilder;
pub use contexts::{CallData, CallNode, CopyNode, HashNode, Operands, RemoteCopyNode};
pub use error::RunError;
pub use instance::Instance;
pub use node::{
    AsyncNode, DataNode, Node, NodeId, NodeState, Nodes, Settable, SubGraphNode, UserNode,
};
pub use plan::Graph;
pub use rdma::{
    CompareSwapData, CompareSwapNode, FetchAddData, FetchAddNode, ReadData, ReadNode, SendData,
    SendImmData, SendImmNode, SendNode, WriteData, WriteImmData, WriteImmNode, WriteNode,
};
pub use receive::RecvNode;
pub use running::{OwnedRun, Run};
pub use scope::Scope;
pub use sync_event::{EventAddNode, EventGetNode, EventSetNode, EventWaitData, EventWaitNode};
