//! Describing a graph: nodes are added, edges noted, and all of it checked at once.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::node::{
    Action, AsyncNode, DataNode, Function, Node, NodeId, Nodes, Planned, Scope, SubGraphNode,
    UserNode,
};
use super::plan::{Graph, NodeWork, Plan};
use crate::error::{Error, ErrorKind, Result};

/// The most graphs within one another: runs of sub-graphs nest as calls do.
const LEVELS: u32 = 32;
/// The most nodes of one graph.
const NODES: usize = 1 << 24;

/// Builds a [`Graph`], whose documentation shows all of it.
///
/// ```
/// use tokio_doca::{graph::Graph, Device, Dma, Error, ErrorKind, WorkQ};
///
/// # fn main() -> Result<(), Error> {
/// let workq = WorkQ::builder().build()?;
/// let dma = Dma::builder(&Device::open_default()?).attach(&workq)?;
///
/// let mut g = Graph::builder();
/// let (first, second) = (g.dma_copy(&dma), g.dma_copy(&dma));
/// let log = g.user(move |run| {
///     println!("the second copy: {:?}", run.result(second));
///     Ok(())
/// });
/// let pause = g.user_async(|_| async {
///     tokio::task::yield_now().await;
///     Ok(())
/// });
/// g.label(first, "first");
/// g.depends(second, first);
/// g.depends(pause, [first, second]);
/// g.depends(log, (second, pause));
/// let inner = g.build()?;
///
/// // A graph is a node of another one.
/// let mut g = Graph::builder();
/// let (copy, part) = (g.dma_copy(&dma), g.subgraph(&inner));
/// g.label(copy, "copy");
/// g.label(part, "part");
/// g.depends(part, copy);
/// g.depends(copy, part);
/// let refused = g.build().unwrap_err();
/// assert_eq!(refused.kind(), ErrorKind::NotPermitted);
/// assert!(refused.to_string().contains("copy -> part"));
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is built before build"]
pub struct GraphBuilder {
    number: u64,
    nodes: Vec<(NodeWork, Option<Box<str>>)>,
    /// From and to, as they were noted.
    edges: Vec<(NodeId, NodeId)>,
    labels: Vec<(NodeId, Box<str>)>,
}

fn refuse<T>(kind: ErrorKind, text: String) -> Result<T> {
    Err(Error::new(kind, "GraphBuilder::build", text))
}

impl Graph {
    /// Begins a graph.
    #[doc(alias = "doca_graph_create")]
    pub fn builder() -> GraphBuilder {
        GraphBuilder::new()
    }
}

impl GraphBuilder {
    fn new() -> GraphBuilder {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        GraphBuilder {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            nodes: Vec::new(),
            edges: Vec::new(),
            labels: Vec::new(),
        }
    }

    pub(crate) fn add<K>(&mut self, work: NodeWork) -> Node<K> {
        let id = NodeId {
            graph: self.number,
            // More of them are refused by `build`.
            index: self.nodes.len() as u32,
            name: work.name(),
        };
        self.nodes.push((work, None));
        Node::new(id)
    }

    /// Returns a context node of whatever kind.
    pub(crate) fn context<A: Action>(&mut self, context: A::Context) -> Node<A> {
        self.add(NodeWork::Context(Box::new(Planned::<A>(context))))
    }

    /// A node that calls a function, in the task that awaits the run. It sees the results of nodes
    /// that have completed, and may set the operands of those to come. An error or a panic fails
    /// the node.
    ///
    /// The function is shared by all instances. While it runs nothing else of its run does, and no
    /// other task of the thread.
    #[doc(alias = "doca_graph_user_node_create")]
    #[doc(alias = "doca_graph_node_create_from_user")]
    pub fn user(
        &mut self,
        function: impl Fn(&mut Scope<'_>) -> Result<()> + Send + Sync + 'static,
    ) -> Node<UserNode> {
        self.add(NodeWork::User(Box::new(function)))
    }

    /// The same with data that each instance is set to
    /// ([`Instance::set`](crate::graph::Instance::set)), and that stays from run to run: the Bufs
    /// that it shall compare, say.
    #[doc(alias = "doca_graph_instance_set_user_node_data")]
    pub fn user_with<T: Send + Sync + 'static>(
        &mut self,
        function: impl Fn(&mut Scope<'_>, &mut T) -> Result<()> + Send + Sync + 'static,
    ) -> Node<DataNode<T>> {
        self.add(NodeWork::With(Box::new(Function::new(function))))
    }

    /// Returns a node that is a future: the function makes one for each run, in the task that
    /// awaits it, and that task polls it.
    ///
    /// The future is `'static`: it takes what it needs of the [`Scope`] with it (a Buf is a
    /// handle). Each instance has memory for the future, so that runs allocate nothing for it. The
    /// future is polled whenever the run is. An error or a panic, of the function or of the future,
    /// fails the node.
    ///
    /// # Cancel safety
    ///
    /// When another node fails the future continues to its end. When the run is dropped it is
    /// dropped; when the run is forgotten, at the instance's next run or with the instance.
    pub fn user_async<T>(
        &mut self,
        function: impl Fn(&mut Scope<'_>) -> T + Send + Sync + 'static,
    ) -> Node<AsyncNode>
    where
        T: Future<Output = Result<()>> + Send + 'static,
    {
        self.add(NodeWork::Async(Arc::new(function)))
    }

    /// Returns a node that runs an instance of another graph, which
    /// [`Instance::set`](crate::graph::Instance::set) gives it. It starts with nothing done, ends
    /// when all of that is done, and fails with it.
    #[doc(alias = "doca_graph_sub_graph_node_create")]
    #[doc(alias = "doca_graph_node_create_from_graph")]
    pub fn subgraph(&mut self, graph: &Graph) -> Node<SubGraphNode> {
        self.add(NodeWork::Sub(graph.clone()))
    }

    /// Has `node` start after all of these: one, a list, or a tuple of different kinds. Nodes
    /// without such a call start with the run. Whether it makes sense, [`GraphBuilder::build`]
    /// says.
    #[doc(alias = "doca_graph_add_dependency")]
    pub fn depends(&mut self, node: impl Into<NodeId>, predecessors: impl Nodes) {
        let node = node.into();
        predecessors.each(&mut |predecessor| self.edges.push((predecessor, node)));
    }

    /// Sets the name of a node in errors and drawings. Defaults to its kind and number
    /// (`dma_copy#3`).
    pub fn label(&mut self, node: impl Into<NodeId>, text: &str) {
        self.labels.push((node.into(), text.into()));
    }

    /// Checks it.
    ///
    /// # Errors
    ///
    /// `NotPermitted` for a cycle, which the text gives in order, and for nodes of another graph;
    /// `BadState` without a context node, here or in a sub-graph; `InvalidValue` beyond 32 levels
    /// of graphs or 16,777,216 nodes.
    #[doc(alias = "doca_graph_start")]
    pub fn build(mut self) -> Result<Graph> {
        if self.nodes.len() > NODES {
            let text = format!(
                "{} nodes, and a graph has {NODES} at most",
                self.nodes.len()
            );
            return refuse(ErrorKind::InvalidValue, text);
        }
        self.check_own()?;
        for (node, text) in std::mem::take(&mut self.labels) {
            self.nodes[node.index as usize].1 = Some(text);
        }
        let edges = self.edges.iter();
        let mut edges: Vec<_> = edges.map(|(from, to)| (from.index, to.index)).collect();
        edges.sort_unstable();
        edges.dedup();
        let plan = Plan::new(self.number, self.nodes, &edges);
        if let Some(cycle) = cycle(&plan) {
            let names: Vec<String> = cycle.iter().map(|&node| plan.label(node)).collect();
            let text = format!(
                "nodes that wait for one another: {} -> {}",
                names.join(" -> "),
                names[0]
            );
            return refuse(ErrorKind::NotPermitted, text);
        }
        if plan.attachment().is_none() {
            let text = format!(
                "none of its {} nodes is a context's, nor is one of a sub-graph: add a dma_copy, say",
                plan.nodes.len()
            );
            return refuse(ErrorKind::BadState, text);
        }
        if plan.levels > LEVELS {
            let text = format!("{} levels of graphs, and {LEVELS} are taken", plan.levels);
            return refuse(ErrorKind::InvalidValue, text);
        }
        Ok(Graph(Arc::new(plan)))
    }

    /// All nodes that were named are its own.
    fn check_own(&self) -> Result<()> {
        let mut foreign: Vec<String> = Vec::new();
        let ends = self.edges.iter().flat_map(|&(from, to)| [from, to]);
        for node in ends.chain(self.labels.iter().map(|(node, _)| *node)) {
            let name = node.to_string();
            if node.graph != self.number && !foreign.contains(&name) {
                foreign.push(name);
            }
        }
        if foreign.is_empty() {
            return Ok(());
        }
        let text = format!(
            "nodes of another graph: {}; a sub-graph node takes all of it",
            foreign.join(", ")
        );
        refuse(ErrorKind::NotPermitted, text)
    }
}

/// A cycle, in order, if there is one.
fn cycle(plan: &Plan) -> Option<Vec<u32>> {
    let mut open = plan.open.to_vec();
    let mut ready = plan.roots.to_vec();
    while let Some(node) = ready.pop() {
        for &next in plan.successors(node) {
            open[next as usize] -= 1;
            if open[next as usize] == 0 {
                ready.push(next);
            }
        }
    }
    // Each node that is left waits for one that is left: going back from one to the next comes
    // round.
    let stuck = |node: u32| open[node as usize] > 0;
    let count = plan.nodes.len() as u32;
    let mut before = vec![None; plan.nodes.len()];
    for node in (0..count).filter(|&node| stuck(node)) {
        for &next in plan.successors(node) {
            before[next as usize] = Some(node);
        }
    }
    let mut seen = vec![false; plan.nodes.len()];
    let mut node = (0..count).find(|&node| stuck(node))?;
    while !std::mem::replace(&mut seen[node as usize], true) {
        node = before[node as usize]?;
    }
    let (start, mut cycle) = (node, vec![node]);
    loop {
        node = before[node as usize]?;
        if node == start {
            break;
        }
        cycle.push(node);
    }
    cycle.reverse();
    Some(cycle)
}

impl fmt::Debug for GraphBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GraphBuilder")
            .field("nodes", &self.nodes.len())
            .field("edges", &self.edges.len())
            .finish()
    }
}
