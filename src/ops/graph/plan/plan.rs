//! [`Graph`], a graph that was built: its nodes and edges. It never changes.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::super::super::rdma::Rdma;
use super::super::super::sync_event::SyncEvent;
use super::super::node::{MakesFutures, NodeId, Template, UserFn, WithData};
use crate::reactor::Attachment;

/// A graph of work that is described once and run many times (DOCA Core guide 3.4.7; `doca_graph`).
///
/// Clones are handles of the same graph. A graph keeps the contexts of its nodes alive.
///
/// In this example some bytes are copied and hashed at the same time. Once both jobs have
/// completed, a function compares the copy with its source:
///
/// ```
/// use tokio_doca::graph::NodeState;
/// use tokio_doca::{
///     graph::Graph, sha::{Algorithm, Sha}, Buf, BufPool, Device, Dma, Error, ErrorKind, Mmap,
///     WorkQ,
/// };
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Error> {
/// let device = Device::open_default()?;
/// let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(1 << 16)?).build()?;
/// let workq = WorkQ::builder().build()?;
/// let dma = Dma::builder(&device).attach(&workq)?;
/// let sha = Sha::builder(&device).attach(&workq)?;
///
/// // The plan: three nodes and their order.
/// let mut g = Graph::builder();
/// let copy = g.dma_copy(&dma);
/// let hash = g.sha(&sha, Algorithm::Sha256);
/// let check = g.user_with(move |run, [src, dst]: &mut [Buf; 2]| {
///     let copied = run.result(copy) == Some(Ok(src.data_len() as u64));
///     match copied && src.data()?[..] == dst.data()?[..] {
///         true => Ok(()),
///         false => Err(Error::new(ErrorKind::Unexpected, "check", "the copy differs")),
///     }
/// });
/// g.depends(check, (copy, hash));
/// let graph = g.build()?;
///
/// // An instance: the buffers of one run at a time.
/// let (src, dst, digest) = (pool.try_alloc()?, pool.try_alloc()?, pool.try_alloc()?);
/// src.extend_from_slice(b"abc")?;
/// let mut instance = graph.instance()?;
/// instance.set(copy, (&src, &dst))?;
/// instance.set(hash, (&src, &digest))?;
/// instance.set(check, [src.clone(), dst.clone()])?;
/// instance.run().await?;
///
/// assert_eq!(instance.result(copy), Some(Ok(3)));
/// assert_eq!(instance.result(hash), Some(Ok(32)));
/// assert_eq!(instance.state(check), NodeState::Completed);
/// assert_eq!(&dst.data()?[..], b"abc");
/// assert_eq!(digest.data()?[..4], [0xba, 0x78, 0x16, 0xbf]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[doc(alias = "doca_graph")]
pub struct Graph(pub(crate) Arc<Plan>);

pub(crate) struct Plan {
    /// The number of the graph, unique in this process.
    pub(crate) number: u64,
    pub(crate) nodes: Box<[PlanNode]>,
    /// The successors of all nodes, grouped by node; [`PlanNode::successors`] is the range of a
    /// node's own.
    pub(crate) successors: Box<[u32]>,
    /// The number of predecessors of each node.
    pub(crate) open: Box<[u32]>,
    pub(crate) roots: Box<[u32]>,
    /// The nodes that are sub-graphs.
    pub(crate) subs: Box<[u32]>,
    /// The number of levels of nested graphs, including this one.
    pub(crate) levels: u32,
}

pub(crate) struct PlanNode {
    pub(crate) work: NodeWork,
    /// The label that the user gave the node. Defaults to its kind and number in texts.
    pub(crate) label: Option<Box<str>>,
    pub(crate) successors: Range<u32>,
}

/// The work of a node.
pub(crate) enum NodeWork {
    Context(Box<dyn Template>),
    User(UserFn),
    With(Box<dyn WithData>),
    Async(Arc<dyn MakesFutures>),
    Recv(Rdma),
    Wait(SyncEvent),
    Sub(Graph),
}

impl NodeWork {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            NodeWork::Context(template) => template.name(),
            NodeWork::User(_) | NodeWork::With(_) => "user",
            NodeWork::Async(_) => "user_async",
            NodeWork::Recv(_) => "rdma_recv",
            NodeWork::Wait(_) => "sync_event_wait_gt",
            NodeWork::Sub(_) => "subgraph",
        }
    }

    /// Returns the attachment of the node's context, if it has one.
    pub(crate) fn attachment(&self) -> Option<&Attachment> {
        match self {
            NodeWork::Context(template) => Some(template.attachment()),
            NodeWork::Recv(rdma) => Some(rdma.attachment()),
            NodeWork::Wait(event) => Some(event.attachment()),
            _ => None,
        }
    }
}

impl Plan {
    /// Returns a plan of these nodes and edges. `edges` must be sorted and without duplicates.
    pub(crate) fn new(
        number: u64,
        nodes: Vec<(NodeWork, Option<Box<str>>)>,
        edges: &[(u32, u32)],
    ) -> Plan {
        let count = nodes.len() as u32;
        let mut open = vec![0; nodes.len()];
        edges.iter().for_each(|&(_, to)| open[to as usize] += 1);
        let of = |node: u32| {
            let start = edges.partition_point(|&(from, _)| from < node);
            let end = edges.partition_point(|&(from, _)| from <= node);
            start as u32..end as u32
        };
        let nodes: Box<[PlanNode]> = nodes
            .into_iter()
            .zip(0..)
            .map(|((work, label), index)| PlanNode {
                work,
                label,
                successors: of(index),
            })
            .collect();
        let subs = |index: &u32| matches!(nodes[*index as usize].work, NodeWork::Sub(_));
        let levels = nodes.iter().map(|node| match &node.work {
            NodeWork::Sub(graph) => graph.0.levels + 1,
            _ => 1,
        });
        Plan {
            number,
            successors: edges.iter().map(|&(_, to)| to).collect(),
            roots: (0..count).filter(|&at| open[at as usize] == 0).collect(),
            subs: (0..count).filter(subs).collect(),
            levels: levels.max().unwrap_or(1),
            open: open.into(),
            nodes,
        }
    }

    pub(crate) fn successors(&self, node: u32) -> &[u32] {
        let range = &self.nodes[node as usize].successors;
        &self.successors[range.start as usize..range.end as usize]
    }

    pub(crate) fn id(&self, index: u32) -> NodeId {
        NodeId {
            graph: self.number,
            index,
            name: self.nodes[index as usize].work.name(),
        }
    }

    /// Returns the name of a node in errors and drawings.
    pub(crate) fn label(&self, index: u32) -> String {
        match &self.nodes[index as usize].label {
            Some(label) => label.to_string(),
            None => self.id(index).to_string(),
        }
    }

    /// Returns the attachment of the graph's first context node, also in sub-graphs.
    pub(crate) fn attachment(&self) -> Option<&Attachment> {
        self.nodes.iter().find_map(|node| match &node.work {
            NodeWork::Sub(graph) => graph.0.attachment(),
            work => work.attachment(),
        })
    }
}

impl Graph {
    /// Returns the number of nodes of the graph, not counting those of sub-graphs.
    pub fn nodes(&self) -> usize {
        self.0.nodes.len()
    }

    /// Returns the name of a node in errors and drawings: its label, or its kind and number. `None`
    /// if it belongs to another graph.
    pub fn label(&self, node: impl Into<NodeId>) -> Option<String> {
        let node = node.into();
        (node.graph == self.0.number).then(|| self.0.label(node.index))
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph")
            .field("nodes", &self.0.nodes.len())
            .field("edges", &self.0.successors.len())
            .finish()
    }
}
