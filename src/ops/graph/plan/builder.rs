//! [`GraphBuilder`], which collects the nodes and edges of a graph and checks them all in `build`.

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

/// The maximum depth of nested graphs: polling a sub-graph is a nested call.
const LEVELS: u32 = 32;
/// The maximum number of nodes of one graph.
const NODES: usize = 1 << 24;

/// Builds a [`Graph`], whose documentation has a complete example. The methods that add nodes say
/// what a node *is set to*: the operands or data that
/// [`Instance::set`](crate::graph::Instance::set) takes for it.
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
    /// The edges, from a predecessor to its successor, in the order of the calls.
    edges: Vec<(NodeId, NodeId)>,
    labels: Vec<(NodeId, Box<str>)>,
}

fn refuse<T>(kind: ErrorKind, text: String) -> Result<T> {
    Err(Error::new(kind, "GraphBuilder::build", text))
}

impl Graph {
    /// Returns a builder of a graph, without nodes.
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
            // If the number of nodes does not fit, `build` refuses the graph.
            index: self.nodes.len() as u32,
            name: work.name(),
        };
        self.nodes.push((work, None));
        Node::new(id)
    }

    /// Returns a new context node of the kind `A`.
    pub(crate) fn context<A: Action>(&mut self, context: A::Context) -> Node<A> {
        self.add(NodeWork::Context(Box::new(Planned::<A>(context))))
    }

    /// Returns a node that calls a function: in the task that awaits the run or, if the run was
    /// posted, in [`WorkQ::progress`](crate::WorkQ::progress). The function can read the results of
    /// nodes that have completed, and may set the operands of nodes that have not started. An error
    /// or a panic fails the node.
    ///
    /// All instances share the function. While the function runs, it blocks its run and all other
    /// tasks of the thread.
    #[doc(alias = "doca_graph_user_node_create")]
    #[doc(alias = "doca_graph_node_create_from_user")]
    pub fn user(
        &mut self,
        function: impl Fn(&mut Scope<'_>) -> Result<()> + Send + Sync + 'static,
    ) -> Node<UserNode> {
        self.add(NodeWork::User(Box::new(function)))
    }

    /// Returns a node that calls a function, as [`GraphBuilder::user`] does, and passes data to it,
    /// such as Bufs to compare. The node is set to the data in each instance
    /// ([`Instance::set`](crate::graph::Instance::set)), which keeps the data from run to run.
    #[doc(alias = "doca_graph_instance_set_user_node_data")]
    pub fn user_with<T: Send + Sync + 'static>(
        &mut self,
        function: impl Fn(&mut Scope<'_>, &mut T) -> Result<()> + Send + Sync + 'static,
    ) -> Node<DataNode<T>> {
        self.add(NodeWork::With(Box::new(Function::new(function))))
    }

    /// Returns a node that polls a future. `function` makes one future for each run. The task that
    /// awaits the run calls the function and polls the future.
    ///
    /// The future is `'static`, so the function must copy what the future needs out of the
    /// [`Scope`] (a Buf is a handle, and can be cloned). Each instance has memory for one future,
    /// so that runs allocate none. The future is polled whenever the run is polled. An error or a
    /// panic, of the function or of the future, fails the node.
    ///
    /// # Cancel safety
    ///
    /// When another node fails, the future continues until it completes. When the run is dropped,
    /// the future is dropped. When the run is forgotten (`mem::forget`), the future is dropped at
    /// the instance's next run, or with the instance.
    pub fn user_async<T>(
        &mut self,
        function: impl Fn(&mut Scope<'_>) -> T + Send + Sync + 'static,
    ) -> Node<AsyncNode>
    where
        T: Future<Output = Result<()>> + Send + 'static,
    {
        self.add(NodeWork::Async(Arc::new(function)))
    }

    /// Returns a node that runs an instance of another graph. The node is set to that instance
    /// ([`Instance::set`](crate::graph::Instance::set)). Each time the node starts, a run of the
    /// instance begins. The node completes or fails when that run does.
    #[doc(alias = "doca_graph_sub_graph_node_create")]
    #[doc(alias = "doca_graph_node_create_from_graph")]
    pub fn subgraph(&mut self, graph: &Graph) -> Node<SubGraphNode> {
        self.add(NodeWork::Sub(graph.clone()))
    }

    /// Makes `node` start after all of `predecessors` have completed. These are one node, a list,
    /// or a tuple of nodes of different kinds. A node without predecessors starts with the run.
    /// [`GraphBuilder::build`] checks the edges.
    #[doc(alias = "doca_graph_add_dependency")]
    pub fn depends(&mut self, node: impl Into<NodeId>, predecessors: impl Nodes) {
        let node = node.into();
        predecessors.each(&mut |predecessor| self.edges.push((predecessor, node)));
    }

    /// Sets the name of a node in errors and drawings. Defaults to the node's kind and number
    /// (`dma_copy#3`).
    pub fn label(&mut self, node: impl Into<NodeId>, text: &str) {
        self.labels.push((node.into(), text.into()));
    }

    /// Checks the graph, and returns it.
    ///
    /// # Errors
    ///
    /// `NotPermitted` for a cycle (the text lists its nodes in order), and for nodes of another
    /// graph; `BadState` if neither the graph nor a sub-graph has a [context node](crate::graph);
    /// `InvalidValue` for more than 32 levels of nested graphs, or more than 16,777,216 nodes.
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

    /// Returns an error if an edge or a label names a node of another graph.
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

/// Returns the nodes of a cycle, in order, if there is one.
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
    // Each node that is left has a predecessor that is left. So following predecessors returns to a
    // node that was seen before.
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
