//! Nodes as a user names them: typed handles, lists of them, and their states.

#![allow(
    unreachable_pub,
    reason = "the sealed traits are public in a private module"
)]

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;

use crate::error::{Error, ErrorKind, Result};

/// A node of a graph. `K` says what kind, and so what
/// [`Instance::set`](crate::graph::Instance::set) takes for it.
pub struct Node<K> {
    id: NodeId,
    kind: PhantomData<fn() -> K>,
}

/// A node of whatever kind: [`Node::id`].
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct NodeId {
    /// Which graph, of all that were begun in this process.
    pub(crate) graph: u64,
    pub(crate) index: u32,
    pub(crate) name: &'static str,
}

/// Where a node is in the last run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[doc(alias = "doca_graph_node_state")]
pub enum NodeState {
    /// Its turn has not come, or it waits for a Slot; or the run ended before.
    NotStarted,
    /// Its Job is in flight, or its function, future or sub-graph runs.
    Started,
    /// It ended well.
    Completed,
    /// It failed.
    Failed,
    /// A sub-graph or a receive that ended early, because another node failed.
    Stopped,
}

/// The kind of a node that is a function: [`GraphBuilder::user`](crate::graph::GraphBuilder::user).
#[derive(Debug)]
pub enum UserNode {}

/// The kind of a node that is a function with data of each instance's own:
/// [`GraphBuilder::user_with`](crate::graph::GraphBuilder::user_with). It is set to that data.
#[derive(Debug)]
pub struct DataNode<T>(PhantomData<fn(T)>);

/// The kind of a node that is a future:
/// [`GraphBuilder::user_async`](crate::graph::GraphBuilder::user_async).
#[derive(Debug)]
pub enum AsyncNode {}

/// The kind of a node that is another graph:
/// [`GraphBuilder::subgraph`](crate::graph::GraphBuilder::subgraph). It is set to an
/// [`Instance`](crate::graph::Instance) of that graph.
#[derive(Debug)]
pub enum SubGraphNode {}

/// The kind of a node that receives:
/// [`GraphBuilder::rdma_recv`](crate::graph::GraphBuilder::rdma_recv). It is set to a destination,
/// or to `()`.
#[derive(Debug)]
pub enum RecvNode {}

impl<K> Node<K> {
    pub(crate) fn new(id: NodeId) -> Node<K> {
        let kind = PhantomData;
        Node { id, kind }
    }

    /// The same without its kind.
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

/// Kind and number: `dma_copy#3`.
impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.name, self.index)
    }
}

/// Some nodes: one, a list of one kind, or a tuple of up to eight kinds.
pub trait Nodes: sealed::Each {}

/// A kind of node that has something to be set.
pub trait Settable: sealed::Put {}

pub mod sealed {
    use std::any::Any;

    use super::NodeId;
    use crate::error::Result;

    pub trait Each {
        fn each(&self, f: &mut dyn FnMut(NodeId));
    }

    pub trait Put {
        /// What it is set to.
        type Data;
        /// What a node of this kind has in an instance.
        type Seat: Any;
        fn put(seat: &mut Self::Seat, data: Self::Data) -> Result<()>;
    }
}

use sealed::{Each, Put};

impl<T: Put> Settable for T {}

/// Sets the node that has this seat.
///
/// # Errors
///
/// Handles are typed, and know their graph: another kind's seat is `Unexpected`.
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
