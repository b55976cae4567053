//! [`Instance`], a graph with operands: the memory for one run at a time, allocated beforehand.

use std::fmt;
use std::sync::Arc;

use super::super::kinds::{Receive, Waiting};
use super::super::node::{
    Node, NodeId, NodeState, Put, RecvNode, Refusal, Settable, SubGraphNode, set,
};
use super::super::plan::{Graph, NodeWork, Plan};
use super::body::{Body, Sub};
use super::level::Level;
use super::progress::Progress;
use crate::error::{Error, ErrorKind, JobError, Result};
use crate::reactor::{Received, WorkQ};

/// A [`Graph`] with operands, on a WorkQ. It can run any number of times, one run at a time. Many
/// instances can run at once, beside other operations.
///
/// An instance keeps the operands of its nodes, and so their Bufs, until other operands are set or
/// the instance is dropped. Jobs in flight keep what they need, so an instance can be dropped or
/// forgotten at any time.
///
/// [`Graph`] shows how an instance is made. An instance can run again after a success and after a
/// failure:
///
/// ```
/// use tokio_doca::graph::NodeState;
/// use tokio_doca::{graph::Graph, BufPool, Device, Dma, Error, ErrorKind, Mmap, WorkQ};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Error> {
/// # let device = Device::open_default()?;
/// # let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(1 << 16)?).build()?;
/// # let dma = Dma::builder(&device).attach(&WorkQ::builder().build()?)?;
/// let mut g = Graph::builder();
/// let (there, back) = (g.dma_copy(&dma), g.dma_copy(&dma));
/// g.depends(back, there);
/// let mut instance = g.build()?.instance()?;
///
/// let (a, b, c) = (pool.try_alloc()?, pool.try_alloc()?, pool.try_alloc()?);
/// a.extend_from_slice(b"hello")?;
/// instance.set(there, (&a, &b))?;
/// let error = instance.run().await.unwrap_err();
/// assert_eq!((error.node(), error.kind()), (back.id(), ErrorKind::BadState));
/// assert_eq!(instance.state(there), NodeState::Completed);
///
/// // `back` was not set. Another copy is appended to what the first run has left.
/// instance.set(back, (&b, &c))?;
/// instance.run().await?;
/// assert_eq!(instance.result(back), Some(Ok(10)));
/// assert_eq!(&c.data()?[..], b"hellohello");
/// # Ok(())
/// # }
/// ```
#[doc(alias = "doca_graph_instance")]
pub struct Instance {
    workq: WorkQ,
    pub(super) level: Level,
}

impl Graph {
    /// Returns an instance on the WorkQ of the graph's first [context node](crate::graph).
    ///
    /// # Errors
    ///
    /// `InvalidValue` if the context nodes are on several WorkQs (the text names a node on another
    /// WorkQ); otherwise as [`Graph::instance_on`].
    #[doc(alias = "doca_graph_instance_create")]
    pub fn instance(&self) -> Result<Instance> {
        const OP: &str = "Graph::instance";
        let first = self.0.attachment();
        let workq = first.expect("a graph has a context node").workq();
        // Refuses contexts on other WorkQs, since they may be there on purpose.
        for (node, index) in self.0.nodes.iter().zip(0..) {
            if node.work.attachment().is_some_and(|it| !it.is_on(&workq)) {
                let text = format!(
                    "node {} is on another WorkQ than the first context node: Graph::instance_on takes all of them to one",
                    self.0.label(index)
                );
                return Err(Error::new(ErrorKind::InvalidValue, OP, text));
            }
        }
        self.instance_on(&workq)
            .map_err(|error| error.with_call(OP))
    }

    /// Returns an instance whose runs are on `workq`, even if the contexts of its nodes are on
    /// other WorkQs. All memory is allocated here: runs allocate nothing.
    ///
    /// # Errors
    ///
    /// `InvalidValue`, with the name of a node in the text, if no context of the node's device is
    /// attached to `workq` (`Dma::attach`), or if the node's [`Rdma`](crate::Rdma) or SyncEvent is
    /// on another WorkQ, since these cannot move. Otherwise as
    /// [`DmaBuilder::attach`](crate::dma::DmaBuilder::attach).
    #[doc(alias = "doca_graph_workq_add")]
    pub fn instance_on(&self, workq: &WorkQ) -> Result<Instance> {
        Instance::new(self.clone(), workq)
    }
}

impl Instance {
    fn new(graph: Graph, workq: &WorkQ) -> Result<Instance> {
        let plan: &Plan = &graph.0;
        let body = |index: u32| {
            let named = |(kind, text): Refusal| {
                let text = format!("node {}: {text}", plan.label(index));
                Error::new(kind, "Graph::instance_on", text)
            };
            Ok(match &plan.nodes[index as usize].work {
                NodeWork::Context(template) => Body::Context(template.seat(workq).map_err(named)?),
                NodeWork::Recv(rdma) => Body::Recv(Receive::seat(rdma, workq).map_err(named)?),
                NodeWork::Wait(event) => Body::Wait(Waiting::seat(event, workq).map_err(named)?),
                NodeWork::User(_) => Body::User,
                NodeWork::With(function) => Body::Data(function.new_data()),
                NodeWork::Async(make) => Body::Async(Arc::clone(make).new_body()),
                NodeWork::Sub(graph) => Body::Sub(Sub {
                    graph: graph.clone(),
                    workq: workq.clone(),
                    level: None,
                }),
            })
        };
        let bodies: Result<Vec<Body>> = (0..plan.nodes.len() as u32).map(body).collect();
        let progress = Progress::new(plan, bodies?.into());
        Ok(Instance {
            workq: workq.clone(),
            level: Level { graph, progress },
        })
    }

    /// Returns the graph of this instance.
    pub fn graph(&self) -> &Graph {
        &self.level.graph
    }

    /// Returns the WorkQ that the instance runs on.
    pub fn workq(&self) -> &WorkQ {
        &self.workq
    }

    /// Sets the operands or data of a node, from the next run on: `(source, destination)` for a
    /// copy or a hash, an [`AccelCall`](crate::accel::AccelCall) for a call of an accelerator, an
    /// [`Instance`] for a sub-graph, the data for a function with data. For other nodes see the
    /// method of the builder that made the node, such as
    /// [`GraphBuilder::rdma_write`](crate::graph::GraphBuilder::rdma_write). Bufs are handles: the
    /// instance keeps clones.
    ///
    /// Jobs of a dropped run that are still in flight keep the operands that they began with.
    ///
    /// The compiler rejects operands for a function without data, and a second run while the first
    /// one exists:
    ///
    /// ```compile_fail,E0277
    /// # fn check(g: &mut tokio_doca::graph::GraphBuilder, instance: &mut tokio_doca::graph::Instance) {
    /// let check = g.user(|_| Ok(()));
    /// instance.set(check, ());
    /// # }
    /// ```
    ///
    /// ```compile_fail,E0499
    /// # fn again(instance: &mut tokio_doca::graph::Instance) {
    /// let (first, second) = (instance.run(), instance.run());
    /// # drop((first, second));
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `NotPermitted` for a node of another graph; `InvalidValue` if `data` is an instance that is
    /// on another WorkQ, or is not of the graph that `node` runs. On an error `data` is dropped.
    #[doc(alias = "doca_graph_instance_set_ctx_node_data")]
    #[doc(alias = "doca_graph_instance_set_sub_graph_node_data")]
    pub fn set<K: Settable>(&mut self, node: Node<K>, data: impl Into<K::Data>) -> Result<()> {
        let Level { graph, progress } = &mut self.level;
        set::<K>(progress.seat(&graph.0, node.id())?, data.into())
    }

    /// Returns the result of a node in the last run. The method of the builder that made the node
    /// documents this number; it is 0 for functions, futures and sub-graphs. `None` if the node has
    /// neither completed nor failed, or belongs to another graph.
    #[doc(alias = "doca_graph_instance_node_get_result")]
    pub fn result(&self, node: impl Into<NodeId>) -> Option<Result<u64, JobError>> {
        let Level { graph, progress } = &self.level;
        progress.result(&graph.0, node.into())
    }

    /// Returns the description of the message that a node received in the last run
    /// ([`result`](Instance::result) returns only its length). `None` if the node has received
    /// nothing, or belongs to another graph.
    pub fn received(&self, node: Node<RecvNode>) -> Option<Received> {
        let Level { graph, progress } = &self.level;
        progress.received(&graph.0, node.id())
    }

    /// Returns the state of a node in the last run; `NotStarted` if it belongs to another graph.
    /// After a run that was dropped, returns the last state that the run had noticed: jobs that
    /// completed later do not change it.
    #[doc(alias = "doca_graph_instance_node_get_state")]
    pub fn state(&self, node: impl Into<NodeId>) -> NodeState {
        let Level { graph, progress } = &self.level;
        progress.state(&graph.0, node.into())
    }

    /// Returns the result of `node`, a node of the sub-graph that `sub` runs, in the last run. It
    /// is what [`Instance::result`] of the sub-graph's instance returns, or `None` if the sub-graph
    /// has not started.
    pub fn result_in(
        &self,
        sub: Node<SubGraphNode>,
        node: impl Into<NodeId>,
    ) -> Option<Result<u64, JobError>> {
        let Level { graph, progress } = self.level.progress.sub(&self.level.graph.0, sub.id())?;
        progress.result(&graph.0, node.into())
    }

    /// Removes the instance that a sub-graph node was set to, and returns it; `None` if the node
    /// was not set, or belongs to another graph.
    pub fn take(&mut self, sub: Node<SubGraphNode>) -> Option<Instance> {
        let Level { graph, progress } = &mut self.level;
        if sub.id().graph != graph.0.number {
            return None;
        }
        match &mut progress.bodies[sub.id().index as usize] {
            Body::Sub(Sub { level, .. }) => level.take().map(|level| Instance {
                workq: self.workq.clone(),
                level: *level,
            }),
            _ => None,
        }
    }

    /// Returns true if jobs of a dropped run may still be in flight. The next run waits for them
    /// before it begins.
    pub fn is_draining(&mut self) -> bool {
        let Level { graph, progress } = &mut self.level;
        !progress.is_drained(&graph.0)
    }
}

impl Put for SubGraphNode {
    type Data = Instance;
    type Seat = Sub;

    fn put(sub: &mut Sub, data: Instance) -> Result<()> {
        let refuse = |text| Err(Error::new(ErrorKind::InvalidValue, "Instance::set", text));
        if !Arc::ptr_eq(&sub.graph.0, &data.level.graph.0) {
            return refuse("an instance of another graph than the node's");
        }
        if !data.workq.is(&sub.workq) {
            return refuse("an instance on another WorkQ: Graph::instance_on makes one on this");
        }
        sub.level = Some(Box::new(data.level));
        Ok(())
    }
}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Level { graph, progress } = &self.level;
        progress.debug("Instance", &graph.0, f)
    }
}
