//! A graph that was built: nodes, edges and where it begins. It never changes.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::super::super::rdma::Rdma;
use super::super::super::sync_event::SyncEvent;
use super::super::node::{MakesFutures, NodeId, Template, UserFn, WithData};
use crate::reactor::Attachment;

/// Work that is described once and run many times (Core guide 3.4.7; `doca_graph`).
///
/// Clones are the same graph. It keeps the contexts of its nodes.
///
/// Here some bytes are copied and hashed at the same time, and a function compares once both is
/// done:
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
/// // What there is to do, and what waits for what.
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
/// // What it is done with, in one run at a time.
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
    /// Which graph, of all that were begun in this process.
    pub(crate) number: u64,
    pub(crate) nodes: Box<[PlanNode]>,
    /// The successors of all nodes, one after the other.
    pub(crate) successors: Box<[u32]>,
    /// How many predecessors each node has.
    pub(crate) open: Box<[u32]>,
    pub(crate) roots: Box<[u32]>,
    /// The nodes that are sub-graphs.
    pub(crate) subs: Box<[u32]>,
    /// Levels of graphs, this one included.
    pub(crate) levels: u32,
}

pub(crate) struct PlanNode {
    pub(crate) work: NodeWork,
    /// What the user calls it; else its kind and number.
    pub(crate) label: Option<Box<str>>,
    pub(crate) successors: Range<u32>,
}

/// What a node does.
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

    /// Returns where its context is attached, if it has one.
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
    /// `edges` are sorted, without doubles, and have no cycle.
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

    /// Returns what a node is called in texts.
    pub(crate) fn label(&self, index: u32) -> String {
        match &self.nodes[index as usize].label {
            Some(label) => label.to_string(),
            None => self.id(index).to_string(),
        }
    }

    /// Returns where its first context node is attached, those of sub-graphs included.
    pub(crate) fn attachment(&self) -> Option<&Attachment> {
        self.nodes.iter().find_map(|node| match &node.work {
            NodeWork::Sub(graph) => graph.0.attachment(),
            work => work.attachment(),
        })
    }
}

impl Graph {
    /// Returns how many nodes it has, those of sub-graphs not counted.
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
