//! What the function of a user node sees of its run.

use std::any::Any;
use std::fmt;

use super::handle::{Node, NodeId, NodeState, RecvNode, Settable, SubGraphNode, set};
use crate::error::{Error, ErrorKind, JobError, Result};
use crate::reactor::{Outcome, Received};

/// What a run shows of itself.
pub(crate) trait RunView: Send + Sync {
    fn result(&self, node: NodeId) -> Option<Outcome>;
    /// Returns the result of a node of the graph that `sub` runs.
    fn result_in(&self, sub: NodeId, node: NodeId) -> Option<Outcome>;
    fn received(&self, node: NodeId) -> Option<Received>;
    fn state(&self, node: NodeId) -> NodeState;
    /// Returns what a node is called in texts.
    fn label(&self, node: NodeId) -> String;
    /// Returns where a node of this run's graph is set, if it can be.
    fn seat(&mut self, node: NodeId) -> Result<Option<&mut dyn Any>>;
    fn debug(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result;
}

/// A run, as the function of a user node sees it: results of nodes that have completed, and
/// operands of those to come.
///
/// ```
/// use tokio_doca::graph::{Graph, Scope};
/// # use tokio_doca::{BufPool, Device, Dma, Mmap, WorkQ, Buf};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tokio_doca::Result<()> {
/// # let device = Device::open_default()?;
/// # let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(1 << 16)?).build()?;
/// # let dma = Dma::builder(&device).attach(&WorkQ::builder().build()?)?;
/// # let (src, dst, spare) = (pool.alloc().await, pool.alloc().await, pool.alloc().await);
/// # src.extend_from_slice(b"hello")?;
/// let mut g = Graph::builder();
/// let (first, second) = (g.dma_copy(&dma), g.dma_copy(&dma));
/// // Sets the operands of the second copy once the first one has completed.
/// let choose = g.user_with(move |run: &mut Scope<'_>, bufs: &mut [Buf; 2]| {
///     assert_eq!(run.result(first), Some(Ok(5)));
///     run.set(second, (&bufs[0], &bufs[1]))
/// });
/// g.depends(choose, first);
/// g.depends(second, choose);
/// let mut instance = g.build()?.instance()?;
/// instance.set(first, (&src, &dst))?;
/// instance.set(choose, [dst.clone(), spare.clone()])?;
/// instance.run().await?;
/// assert_eq!(&spare.data()?[..], b"hello");
/// # Ok(())
/// # }
/// ```
pub struct Scope<'a>(pub(crate) &'a mut dyn RunView);

impl Scope<'_> {
    /// Returns the result of a node; `None` if it has not ended, or belongs to another graph.
    pub fn result(&self, node: impl Into<NodeId>) -> Option<Result<u64, JobError>> {
        self.0.result(node.into())
    }

    /// Returns what a node received; `None` if it has received nothing, or belongs to another
    /// graph.
    pub fn received(&self, node: Node<RecvNode>) -> Option<Received> {
        self.0.received(node.id())
    }

    /// Returns where a node is. One of another graph has not started.
    pub fn state(&self, node: impl Into<NodeId>) -> NodeState {
        self.0.state(node.into())
    }

    /// Sets a node that has not started. Nothing is allocated, but by what it is set to.
    ///
    /// # Errors
    ///
    /// `BadState` if it has started, and what [`Instance::set`](crate::graph::Instance::set) is
    /// refused for.
    pub fn set<K: Settable>(&mut self, node: Node<K>, data: impl Into<K::Data>) -> Result<()> {
        const OP: &str = "Scope::set";
        if self.state(node) != NodeState::NotStarted {
            let text = format!("node {} has started", self.0.label(node.id()));
            return Err(Error::new(ErrorKind::BadState, OP, text));
        }
        let seat = self.0.seat(node.id());
        let set = seat.and_then(|seat| set::<K>(seat, data.into()));
        set.map_err(|error| error.with_call(OP))
    }

    /// Returns the result of a node of a node's sub-graph; `None` if it has not ended.
    pub fn result_in(
        &self,
        sub: Node<SubGraphNode>,
        node: impl Into<NodeId>,
    ) -> Option<Result<u64, JobError>> {
        self.0.result_in(sub.id(), node.into())
    }
}

impl fmt::Debug for Scope<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.debug("Scope", f)
    }
}
