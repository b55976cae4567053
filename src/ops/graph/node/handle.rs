//! Handles of nodes as a user has them: typed handles, lists of handles, and the states of nodes.

#![allow(
    unreachable_pub,
    reason = "the sealed traits are public in a private module"
)]

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;

use crate::error::{Error, ErrorKind, Result};

/// A handle of a graph's node. `K` is the kind of the node, which decides what the node *is set
/// to*: what [`Instance::set`](crate::graph::Instance::set) accepts for it.
///
/// ```
/// use tokio_doca::graph::{CopyNode, Graph, HashNode, Node};
/// use tokio_doca::sha::{Algorithm, Sha};
/// # use tokio_doca::{Device, Dma, WorkQ};
///
/// /// A graph, and the nodes that each of its instances sets.
/// struct Ingest {
///     graph: Graph,
///     copy: Node<CopyNode>,
///     hash: Node<HashNode>,
/// }
///
/// impl Ingest {
///     fn new(dma: &Dma, sha: &Sha) -> tokio_doca::Result<Ingest> {
///         let mut g = Graph::builder();
///         let (copy, hash) = (g.dma_copy(dma), g.sha(sha, Algorithm::Sha256));
///         g.build().map(|graph| Ingest { graph, copy, hash })
///     }
/// }
/// # let (device, workq) = (Device::open_default()?, WorkQ::builder().build()?);
/// # let (dma, sha) = (Dma::builder(&device), Sha::builder(&device));
/// # let ingest = Ingest::new(&dma.attach(&workq)?, &sha.attach(&workq)?)?;
/// # assert_eq!((ingest.graph.nodes(), ingest.copy.id() == ingest.hash.id()), (2, false));
/// # Ok::<(), tokio_doca::Error>(())
/// ```
pub struct Node<K> {
    id: NodeId,
    kind: PhantomData<fn() -> K>,
}

/// A node without the type of its kind, as [`Node::id`] returns it.
///
/// ```
/// use tokio_doca::graph::{Graph, NodeId};
/// # use tokio_doca::{Device, Dma, WorkQ};
///
/// # let dma = Dma::builder(&Device::open_default()?).attach(&WorkQ::builder().build()?)?;
/// let mut g = Graph::builder();
/// let (copy, check) = (g.dma_copy(&dma), g.user(|_| Ok(())));
/// let ids: [NodeId; 2] = [copy.id(), check.id()];     // of several kinds in one list
/// for (id, name) in ids.into_iter().zip(["copy", "check"]) {
///     g.label(id, name);
/// }
/// let graph = g.build()?;
/// assert_eq!(graph.label(ids[1]).as_deref(), Some("check"));
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct NodeId {
    /// The number of the node's graph, unique in this process.
    pub(crate) graph: u64,
    pub(crate) index: u32,
    pub(crate) name: &'static str,
}

/// The state of a node in the last run.
///
/// ```
/// use tokio_doca::graph::{Graph, NodeState};
/// # use tokio_doca::{Device, Dma, ErrorKind, WorkQ};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tokio_doca::Result<()> {
/// # let device = Device::open_default()?;
/// # let dma = Dma::builder(&device).attach(&WorkQ::builder().build()?)?;
/// let mut g = Graph::builder();
/// let copy = g.dma_copy(&dma);
/// let check = g.user(|_| Ok(()));
/// g.depends(check, copy);
/// let mut instance = g.build()?.instance()?;
/// let error = instance.run().await.unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::BadState);      // the copy has no operands
/// assert_eq!(instance.state(copy), NodeState::Failed);
/// assert_eq!(instance.state(check), NodeState::NotStarted);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[doc(alias = "doca_graph_node_state")]
pub enum NodeState {
    /// The node has not begun: it waits for other nodes or for a slot, or the run ended before the
    /// node could start.
    NotStarted,
    /// The node's job, receive or wait is in flight, or its function, future or sub-graph runs.
    Started,
    /// The node has completed without an error.
    Completed,
    /// The node has failed.
    Failed,
    /// The node was a sub-graph, a receive or a wait, and ended early because another node failed.
    Stopped,
}

/// The kind of a node that is a function
/// ([`GraphBuilder::user`](crate::graph::GraphBuilder::user)).
///
/// ```
/// use tokio_doca::graph::{Graph, Node, UserNode};
/// # use tokio_doca::{BufPool, Device, Dma, Mmap, WorkQ};
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tokio_doca::Result<()> {
/// # let device = Device::open_default()?;
/// # let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(1 << 16)?).build()?;
/// # let dma = Dma::builder(&device).attach(&WorkQ::builder().build()?)?;
/// # let (src, dst) = (pool.alloc().await, pool.alloc().await);
/// # src.extend_from_slice(b"hello")?;
/// let runs = Arc::new(AtomicU32::new(0));
/// let mut g = Graph::builder();
/// let copy = g.dma_copy(&dma);
/// let counter = Arc::clone(&runs);
/// let count: Node<UserNode> = g.user(move |_| {
///     counter.fetch_add(1, Relaxed);
///     Ok(())
/// });
/// g.depends(count, copy);
/// # let mut instance = g.build()?.instance()?;
/// # instance.set(copy, (&src, &dst))?;
/// # instance.run().await?;
/// # instance.run().await?;
/// # assert_eq!(runs.load(Relaxed), 2);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub enum UserNode {}

/// The kind of a node that is a function with data
/// ([`GraphBuilder::user_with`](crate::graph::GraphBuilder::user_with)). Such a node is set to its
/// data, in each instance separately.
///
/// ```
/// use tokio_doca::graph::{DataNode, Graph, Node};
/// # use tokio_doca::{BufPool, Device, Dma, Mmap, WorkQ};
/// use std::sync::mpsc::{Sender, channel};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tokio_doca::Result<()> {
/// # let device = Device::open_default()?;
/// # let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(1 << 16)?).build()?;
/// # let dma = Dma::builder(&device).attach(&WorkQ::builder().build()?)?;
/// # let (src, dst) = (pool.alloc().await, pool.alloc().await);
/// # src.extend_from_slice(b"hello")?;
/// let mut g = Graph::builder();
/// let copy = g.dma_copy(&dma);
/// let report: Node<DataNode<Sender<u64>>> = g.user_with(move |run, sender: &mut Sender<u64>| {
///     let copied = run.result(copy).expect("the copy has completed")?;
///     Ok(sender.send(copied).expect("the receiver exists"))
/// });
/// g.depends(report, copy);
/// let mut instance = g.build()?.instance()?;
/// let (sender, receiver) = channel();
/// instance.set(report, sender)?;                      // another instance has another sender
/// instance.set(copy, (&src, &dst))?;
/// instance.run().await?;
/// assert_eq!(receiver.recv(), Ok(5));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct DataNode<T>(PhantomData<fn(T)>);

/// The kind of a node that is a future
/// ([`GraphBuilder::user_async`](crate::graph::GraphBuilder::user_async)).
///
/// ```
/// use tokio_doca::graph::{AsyncNode, Graph, Node};
/// # use tokio_doca::{BufPool, Device, Dma, Mmap, WorkQ};
/// use std::sync::Arc;
/// use tokio::sync::Notify;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tokio_doca::Result<()> {
/// # let device = Device::open_default()?;
/// # let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(1 << 16)?).build()?;
/// # let dma = Dma::builder(&device).attach(&WorkQ::builder().build()?)?;
/// # let (src, dst) = (pool.alloc().await, pool.alloc().await);
/// # src.extend_from_slice(b"hello")?;
/// let (go, mut g) = (Arc::new(Notify::new()), Graph::builder());
/// let waits = Arc::clone(&go);
/// let gate: Node<AsyncNode> = g.user_async(move |_| {
///     let waits = Arc::clone(&waits);
///     async move { Ok(waits.notified().await) }
/// });
/// let copy = g.dma_copy(&dma);
/// g.depends(copy, gate);                              // copies after the task has notified it
/// let mut instance = g.build()?.instance()?;
/// instance.set(copy, (&src, &dst))?;
/// let (ran, ()) = tokio::join!(instance.run(), async { go.notify_one() });
/// # ran?;
/// assert_eq!(dst.data_len(), 5);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub enum AsyncNode {}

/// The kind of a node that is another graph
/// ([`GraphBuilder::subgraph`](crate::graph::GraphBuilder::subgraph)). Such a node is set to an
/// [`Instance`](crate::graph::Instance) of that graph.
///
/// ```
/// use tokio_doca::graph::{Graph, Node, SubGraphNode};
/// # use tokio_doca::{BufPool, Device, Dma, Mmap, WorkQ};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tokio_doca::Result<()> {
/// # let device = Device::open_default()?;
/// # let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(1 << 16)?).build()?;
/// # let workq = WorkQ::builder().build()?;
/// # let dma = Dma::builder(&device).attach(&workq)?;
/// # let (src, dst) = (pool.alloc().await, pool.alloc().await);
/// # src.extend_from_slice(b"hello")?;
/// let mut g = Graph::builder();
/// let copy = g.dma_copy(&dma);
/// let inner = g.build()?;
///
/// let mut g = Graph::builder();
/// let part: Node<SubGraphNode> = g.subgraph(&inner);
/// let mut outer = g.build()?.instance_on(&workq)?;
///
/// let mut instance = inner.instance()?;
/// instance.set(copy, (&src, &dst))?;
/// outer.set(part, instance)?;
/// outer.run().await?;
/// assert_eq!(outer.result_in(part, copy), Some(Ok(5)));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub enum SubGraphNode {}

/// The kind of a node that receives a message
/// ([`GraphBuilder::rdma_recv`](crate::graph::GraphBuilder::rdma_recv)). Such a node is set to a
/// destination, or to `()`.
///
/// ```
/// use tokio_doca::graph::{Graph, Node, RecvNode};
/// # use tokio_doca::{BufPool, Device, Dma, Mmap, Rdma, WorkQ};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tokio_doca::Result<()> {
/// # let device = Device::open_default()?;
/// # let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(1 << 16)?).build()?;
/// # let workq = WorkQ::builder().build()?;
/// # let (a, b) = (Rdma::builder(&device).attach(&workq)?, Rdma::builder(&device).attach(&workq)?);
/// # let (of_a, of_b) = (a.export()?, b.export()?);
/// # tokio::try_join!(a.connect(&of_b), b.connect(&of_a))?;
/// // `a` and `b` are connected.
/// # let dma = Dma::builder(&device).attach(&workq)?;
/// # let (message, inbox, archive) = (pool.alloc().await, pool.alloc().await, pool.alloc().await);
/// # message.extend_from_slice(b"hello")?;
/// let mut g = Graph::builder();
/// let recv: Node<RecvNode> = g.rdma_recv(&b);
/// let store = g.dma_copy(&dma);
/// g.depends(store, recv);
/// let mut instance = g.build()?.instance()?;
/// instance.set(recv, &inbox)?;
/// instance.set(store, (&inbox, &archive))?;
/// let (ran, sent) = tokio::join!(instance.run(), a.send(&message));
/// # (ran?, sent?);
/// assert_eq!(instance.received(recv).map(|received| received.len), Some(5));
/// assert_eq!(&archive.data()?[..], b"hello");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub enum RecvNode {}

impl<K> Node<K> {
    pub(crate) fn new(id: NodeId) -> Node<K> {
        let kind = PhantomData;
        Node { id, kind }
    }

    /// Returns the node without the type of its kind.
    pub fn id(&self) -> NodeId {
        self.id
    }
}

impl<K> Clone for Node<K> {
    fn clone(&self) -> Node<K> {
        *self
    }
}

impl<K> Copy for Node<K> {}

impl<K> fmt::Debug for Node<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.id.fmt(f)
    }
}

impl<K> From<Node<K>> for NodeId {
    fn from(node: Node<K>) -> NodeId {
        node.id
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Writes the kind and the number: `dma_copy#3`.
impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.name, self.index)
    }
}

/// A set of nodes: one node, a list of nodes of one kind, or a tuple of up to eight such sets.
pub trait Nodes: sealed::Each {}

/// A kind of node that takes operands or data. [`Instance::set`](crate::graph::Instance::set)
/// accepts only nodes of such kinds.
pub trait Settable: sealed::Put {}

pub mod sealed {
    use std::any::Any;

    use super::NodeId;
    use crate::error::Result;

    pub trait Each {
        fn each(&self, f: &mut dyn FnMut(NodeId));
    }

    pub trait Put {
        /// The type that a node of this kind is set to.
        type Data;
        /// The state of such a node in an instance.
        type Seat: Any;
        fn put(seat: &mut Self::Seat, data: Self::Data) -> Result<()>;
    }
}

use sealed::{Each, Put};

impl<T: Put> Settable for T {}

/// Sets the node whose state `seat` is.
///
/// # Errors
///
/// `Unexpected` if `seat` is the state of a node of another kind. This should not happen, since
/// handles are typed and know their graph.
pub(crate) fn set<K: Settable>(seat: Option<&mut dyn Any>, data: K::Data) -> Result<()> {
    match seat.and_then(|seat| seat.downcast_mut::<K::Seat>()) {
        Some(seat) => K::put(seat, data),
        None => {
            let text = "the node is of another kind than its handle says";
            Err(Error::new(ErrorKind::Unexpected, "Instance::set", text))
        }
    }
}

impl<T: Each + ?Sized> Nodes for T {}

impl Each for NodeId {
    fn each(&self, f: &mut dyn FnMut(NodeId)) {
        f(*self);
    }
}

impl<K> Each for Node<K> {
    fn each(&self, f: &mut dyn FnMut(NodeId)) {
        f(self.id);
    }
}

impl<T: Each> Each for [T] {
    fn each(&self, f: &mut dyn FnMut(NodeId)) {
        self.iter().for_each(|node| node.each(f));
    }
}

impl<T: Each, const N: usize> Each for [T; N] {
    fn each(&self, f: &mut dyn FnMut(NodeId)) {
        self.as_slice().each(f);
    }
}

impl<T: Each> Each for Vec<T> {
    fn each(&self, f: &mut dyn FnMut(NodeId)) {
        self.as_slice().each(f);
    }
}

impl<T: Each + ?Sized> Each for &T {
    fn each(&self, f: &mut dyn FnMut(NodeId)) {
        T::each(self, f);
    }
}

macro_rules! tuples {
    ($($name:ident)*) => {
        impl<$($name: Each),*> Each for ($($name,)*) {
            #[allow(non_snake_case, reason = "names of types, for values")]
            fn each(&self, f: &mut dyn FnMut(NodeId)) {
                let ($($name,)*) = self;
                $($name.each(f);)*
            }
        }
    };
}

tuples!(A B);
tuples!(A B C);
tuples!(A B C D);
tuples!(A B C D E);
tuples!(A B C D E F);
tuples!(A B C D E F G);
tuples!(A B C D E F G H);
