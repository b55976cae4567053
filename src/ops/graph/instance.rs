//! A graph with operands: what one run at a time needs, all of it made beforehand.

use std::fmt;

use super::super::operation::Op;
use super::action::Refusal;
use super::node::{Node, NodeId, NodeState, Settable, SubGraphNode, sealed};
use super::plan::{Graph, Plan, Work};
use super::progress::{Body, Phase, Place, Progress};
use super::receive::{Receive, RecvNode};
use super::running::{OwnedRun, Run, RunRequest};
use super::sync_event::Waiting;
use super::trace::{self, Trace};
use crate::error::{Error, ErrorKind, JobError, Result};
use crate::reactor::{Ends, Received, WorkQ};
use std::sync::Arc;
use std::task::Waker;

/// A [`Graph`] with operands, on a WorkQ: it runs once at a time, as often as one likes. Many instances run at once, beside
/// plain jobs.
///
/// It keeps the operands that it was set to, and so their Bufs, until they are set anew or it is dropped. What is in flight
/// keeps its own part: an instance can be dropped or forgotten at any time.
///
/// [`Graph`] shows how one is made. It is run again after success and failure alike:
///
/// ```
/// use tokio_doca::graph::NodeState;
/// use tokio_doca::{BufPool, Device, Dma, Error, ErrorKind, Graph, Mmap, WorkQ};
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
    pub(super) inner: Inner,
}

/// What a run works on; the instance of a sub-graph is nothing else.
pub(super) struct Inner {
    pub(super) graph: Graph,
    pub(super) progress: Progress,
}

impl Instance {
    pub(super) fn new(graph: Graph, workq: &WorkQ) -> Result<Instance> {
        let plan: &Plan = &graph.0;
        let body = |index: u32| {
            let named = |(kind, text): Refusal| {
                let text = format!("node {}: {text}", plan.label(index));
                Error::new(kind, "Graph::instance_on", text)
            };
            Ok(match &plan.nodes[index as usize].work {
                Work::Context(template) => Body::Context(template.seat(workq).map_err(named)?),
                Work::Recv(rdma) => Body::Recv(Receive::seat(rdma, workq).map_err(named)?),
                Work::Wait(event) => Body::Wait(Waiting::seat(event, workq).map_err(named)?),
                Work::User(_) => Body::User,
                Work::With(function) => Body::Data(function.place()),
                Work::Async(make) => Body::Async(Arc::clone(make).place()),
                Work::Sub(_) => Body::Sub(None),
            })
        };
        let bodies: Result<Vec<Body>> = (0..plan.nodes.len() as u32).map(body).collect();
        let progress = Progress::new(plan, workq, bodies?.into());
        Ok(Instance {
            workq: workq.clone(),
            inner: Inner { graph, progress },
        })
    }

    /// The graph.
    pub fn graph(&self) -> &Graph {
        &self.inner.graph
    }

    /// The WorkQ that it runs on.
    pub fn workq(&self) -> &WorkQ {
        &self.workq
    }

    /// Sets what a node works on, from the next run on: `(source, destination)` for a copy and for a hash, an
    /// [`AccelCall`](crate::AccelCall) for a call, an [`Instance`] for a sub-graph, its data for a function that has some; what
    /// an operation of an [`Rdma`](crate::Rdma) takes, the builder says ([`GraphBuilder::rdma_write`](super::GraphBuilder::rdma_write)).
    /// Bufs are handles: the instance keeps one.
    ///
    /// Jobs of a run that was dropped are not touched by it: they keep what they had.
    ///
    /// The handle says what the node takes. A function has nothing to be set, and a run has its instance to itself:
    ///
    /// ```compile_fail,E0277
    /// # fn check(g: &mut tokio_doca::graph::GraphBuilder, instance: &mut tokio_doca::Instance) {
    /// let check = g.user(|_| Ok(()));
    /// instance.set(check, ());
    /// # }
    /// ```
    ///
    /// ```compile_fail,E0499
    /// # fn again(instance: &mut tokio_doca::Instance) {
    /// let (first, second) = (instance.run(), instance.run());
    /// # drop((first, second));
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `NotPermitted` for a node of another graph; `InvalidValue` for an instance of another graph than the node's, or on another
    /// WorkQ. It is dropped then.
    #[doc(alias = "doca_graph_instance_set_ctx_node_data")]
    #[doc(alias = "doca_graph_instance_set_sub_graph_node_data")]
    pub fn set<K: Settable>(&mut self, node: Node<K>, data: impl Into<K::Data>) -> Result<()> {
        let Inner { graph, progress } = &mut self.inner;
        progress.set(&graph.0, node, data.into())
    }

    /// Runs the graph: each node once its predecessors are over. The future ends when all are, or when one failed and what was
    /// in flight has drained.
    ///
    /// Nothing is allocated, and nothing happens before the first poll. A WorkQ that is full is waited for, in line with
    /// all others. A job that is over has its successors submitted in the same poll that sees it.
    ///
    /// # Errors
    ///
    /// [`RunError`](super::RunError): the first failure, and all nodes that failed. A context node fails as its job does
    /// ([`Dma::copy`](crate::Dma::copy), [`Sha::hash`](crate::Sha::hash), [`Accel::call`](crate::Accel::call),
    /// [`Rdma::send`](crate::Rdma::send)), a user node with its error or panic, a node that was not set with `BadState`. Receives
    /// are not waited for then: see [`GraphBuilder::rdma_recv`](super::GraphBuilder::rdma_recv).
    ///
    /// # Cancel safety
    ///
    /// Dropping it is ordinary. Nothing new starts, futures of async nodes and receives are dropped, jobs in flight go on, keep
    /// their Bufs leased (`InUse`) until they are over, and are then forgotten. The instance can be set and run again at once: the
    /// next run begins when those jobs are over, and waits for them. Forgetting it is sound too.
    #[doc(alias = "doca_workq_graph_submit")]
    pub fn run(&mut self) -> Run<'_> {
        Op::new(RunRequest::new(self))
    }

    /// The same run, which owns the instance: it is `'static`, can be spawned, and can be posted to a loop of the caller's
    /// own. It answers the instance, and how the run ended.
    ///
    /// A run that is posted begins inside the next [`WorkQ::progress`], as do its functions, and keeps its WorkQ until it is
    /// handed out.
    ///
    /// # Errors
    ///
    /// As [`Instance::run`]. [`start`](Op::start) and [`post`](Op::post) refuse it with `Again` while
    /// [jobs of a run before](Instance::is_draining) are in flight, and `post` with `NotSupported` if a node, also one of a
    /// sub-graph, is an async function, or waits on a device that cannot wait.
    ///
    /// # Cancel safety
    ///
    /// As [`Instance::run`]. The instance is dropped with it.
    pub fn into_run(self) -> OwnedRun {
        Op::new(RunRequest::new(self))
    }

    /// How a node ended in the last run: bytes, or what the opcode says, or what an atomic operation found, and 0 for what is no
    /// job. `None` if it has not, or is another graph's.
    #[doc(alias = "doca_graph_instance_node_get_result")]
    pub fn result(&self, node: impl Into<NodeId>) -> Option<Result<u64, JobError>> {
        let Inner { graph, progress } = &self.inner;
        progress.result(&graph.0, node.into())
    }

    /// What a node received in the last run; its [`result`](Instance::result) is the length alone. `None` if it has not received
    /// anything, or is another graph's.
    pub fn received(&self, node: Node<RecvNode>) -> Option<Received> {
        let Inner { graph, progress } = &self.inner;
        progress.received(&graph.0, node)
    }

    /// Where a node is in the last run; `NotStarted` for one of another graph. After a run that was dropped it says what that run
    /// saw last.
    #[doc(alias = "doca_graph_instance_node_get_state")]
    pub fn state(&self, node: impl Into<NodeId>) -> NodeState {
        let Inner { graph, progress } = &self.inner;
        progress.state(&graph.0, node.into())
    }

    /// How a node of a sub-graph ended in the last run: as [`Instance::result`], of the instance that the sub-graph node was set
    /// to. `None` as well if the sub-graph's turn has not come.
    pub fn result_in(
        &self,
        sub: Node<SubGraphNode>,
        node: impl Into<NodeId>,
    ) -> Option<Result<u64, JobError>> {
        let Inner { graph, progress } = self.inner.progress.sub(&self.inner.graph.0, sub.id())?;
        progress.result(&graph.0, node.into())
    }

    /// Takes the instance of a sub-graph node back. `None` if it was not set.
    pub fn take(&mut self, sub: Node<SubGraphNode>) -> Option<Instance> {
        let Inner { graph, progress } = &mut self.inner;
        if sub.id().graph != graph.0.number {
            return None;
        }
        match &mut progress.bodies[sub.id().index as usize] {
            Body::Sub(place) => place.take().map(|inner| Instance {
                workq: self.workq.clone(),
                inner: *inner,
            }),
            _ => None,
        }
    }

    /// Whether jobs of a run that was dropped are not known to be over: the next run waits for them first.
    pub fn is_draining(&mut self) -> bool {
        let Inner { graph, progress } = &mut self.inner;
        !progress.is_drained(&graph.0)
    }

    /// Notes when each node starts and ends, in the runs to come: two readings of the clock for each. Off if not said.
    /// Memory for it is taken here. Instances of sub-graphs have switches of their own.
    pub fn set_tracing(&mut self, on: bool) {
        let nodes = self.inner.graph.nodes();
        let trace = &mut self.inner.progress.trace;
        match on {
            true if trace.is_none() => *trace = Some(Trace::new(nodes)),
            true => {}
            false => *trace = None,
        }
    }

    /// When each node of the last run started and ended, as JSON in Chrome's trace format (`chrome://tracing`, Perfetto), those
    /// of sub-graphs included; without events if it was not switched on. A job starts when it is submitted, and ends when
    /// the run sees its end.
    pub fn trace(&self) -> String {
        trace::json(&self.inner)
    }
}

impl sealed::Put for SubGraphNode {
    type Data = Instance;

    fn put(place: Place<'_>, data: Instance) -> Result<()> {
        let Work::Sub(graph) = place.work else {
            return Err(place.mismatch());
        };
        let refuse = |text| Err(Error::new(ErrorKind::InvalidValue, "Instance::set", text));
        if !Arc::ptr_eq(&graph.0, &data.inner.graph.0) {
            return refuse("an instance of another graph than the node's");
        }
        if !data.workq.is(place.workq) {
            return refuse("an instance on another WorkQ: Graph::instance_on makes one on this");
        }
        match place.body {
            Body::Sub(sub) => *sub = Some(Box::new(data.inner)),
            _ => return Err(place.mismatch()),
        }
        Ok(())
    }
}

impl Inner {
    /// How the node ended that failed first, if there is one.
    pub(super) fn failure(&self) -> Option<JobError> {
        let (node, _) = self.progress.failure.as_ref()?;
        self.progress.outcome(*node).err()
    }

    /// The sub-graphs whose ends are waited for now.
    fn awaited(&self, all: bool) -> impl Iterator<Item = (&Inner, bool)> {
        let progress = &self.progress;
        let all = all || progress.phase == Phase::Draining;
        let subs = self.graph.0.subs.iter();
        subs.filter(move |&&index| all || progress.active.contains(index))
            .filter_map(move |&index| Some((progress.sub_at(index)?, all)))
    }

    fn any_in(&self, all: bool) -> bool {
        let own = self.progress.flying > 0 && self.progress.board.any();
        own || self.awaited(all).any(|(sub, all)| sub.any_in(all))
    }

    fn register_in(&self, all: bool, waker: &Waker) {
        if self.progress.flying > 0 {
            self.progress.board.register(waker);
        }
        for (sub, all) in self.awaited(all) {
            sub.register_in(all, waker);
        }
    }

    /// Whether Jobs are in flight whose ends are waited for.
    pub(super) fn is_flying(&self, all: bool) -> bool {
        self.progress.flying > 0 || self.awaited(all).any(|(sub, all)| sub.is_flying(all))
    }

    /// Whether a future or a receive goes on: it has the waker.
    pub(super) fn has_futures(&self) -> bool {
        let own = self.progress.has_futures();
        own || self.awaited(false).any(|(sub, _)| sub.has_futures())
    }

    /// Whether a node waits for a Slot.
    pub(super) fn is_blocked(&self) -> bool {
        !self.progress.blocked.is_empty() || self.awaited(false).any(|(sub, _)| sub.is_blocked())
    }

    /// Nobody waits any more.
    pub(super) fn forget_wakers(&self) {
        self.progress.board.forget_waker();
        for &index in &self.graph.0.subs {
            if let Some(sub) = self.progress.sub_at(index) {
                sub.forget_wakers();
            }
        }
    }
}

impl Ends for Inner {
    fn any(&self) -> bool {
        self.any_in(false)
    }

    fn register(&self, waker: &Waker) {
        self.register_in(false, waker);
    }
}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { graph, progress } = &self.inner;
        progress.debug("Instance", &graph.0, f)
    }
}
