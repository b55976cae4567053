//! Graphs: work that is described once and run many times. Their nodes are operations, functions
//! and futures of the application, and sub-graphs. An edge makes a node start after another node
//! has completed.
//!
//! A [`Graph`] is a plan: nodes, and edges between them. An [`Instance`] is the memory for one run
//! at a time: operands, states and results. Many instances can run at once. A [`Run`] is one future
//! for all nodes: a node needs no task, no waker and no allocation of its own.
//!
//! A *context node* does an operation of a context, such as a copy or a receive. A *user node*
//! calls a function, or polls a future, of the application.
//!
//! ```
//! use tokio_doca::{graph::Graph, BufPool, Device, Dma, Error, ErrorKind, Mmap, WorkQ};
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
//!   open edges: 0 --> ready --> in flight (a slot) ------> done: edges to its successors closed, in the same poll
//!                       |  ^                                |
//!                       v  |                                +--> failed: nothing new starts, what runs drains
//!                     in line for a slot, as an Op is
//! ```
//!
//! User functions run in the task that awaits the run, or in
//! [`WorkQ::progress`](crate::WorkQ::progress) if the run was posted. If a node fails, no further
//! nodes start, and the run ends once its jobs in flight and the futures that have begun have
//! completed. [`RunError`] has the first cause, and all nodes that failed.
//!
//! # Remote operations
//!
//! All operations of an [`Rdma`](crate::Rdma) can be nodes. This graph sends a request, and hashes
//! the answer once that has arrived:
//!
//! ```
//! use tokio_doca::{graph::{Graph, Instance}, sha::{Algorithm, Sha}, BufPool, Error, Rdma};
//!
//! fn ask(rdma: &Rdma, sha: &Sha, pool: &BufPool) -> Result<Instance, Error> {
//!     let mut g = Graph::builder();
//!     // Both at once, so that the receive is posted before the answer comes.
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

// A context joins graphs by an `Action`, which says what its node is set to, and makes a `Request`
// of that (`node/action.rs`). The `Action` and the builder's method lie in the context's own folder
// (`sha/node.rs`), and the engine knows nothing else of the context. A receive is not a job with a
// slot: its node is polled, as the node of a future is (`kinds/receive.rs`). So is a wait for a
// SyncEvent (`kinds/sync_event.rs`).

mod kinds;
mod node;
mod plan;
mod run;

pub use super::accel::{CallData, CallNode};
pub use super::dma::CopyNode;
pub use super::rdma::{
    CompareSwapData, CompareSwapNode, FetchAddData, FetchAddNode, ReadData, ReadNode, SendData,
    SendImmData, SendImmNode, SendNode, WriteData, WriteImmData, WriteImmNode, WriteNode,
};
pub use super::sha::HashNode;
pub use kinds::{EventAddNode, EventGetNode, EventSetNode, EventWaitData, EventWaitNode};
pub(in crate::ops) use node::{Action, Attach};
pub use node::{
    AsyncNode, DataNode, Node, NodeId, NodeState, Nodes, Operands, RecvNode, Scope, Settable,
    SubGraphNode, UserNode,
};
pub use plan::{Graph, GraphBuilder};
pub use run::{Instance, OwnedRun, Run, RunError};
