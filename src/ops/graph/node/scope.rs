//! [`Scope`], the view of a run that the function of a user node gets.

use std::any::Any;
use std::fmt;

use super::handle::{Node, NodeId, NodeState, RecvNode, Settable, SubGraphNode, set};
use crate::error::{Error, ErrorKind, JobError, Result};
use crate::reactor::{Outcome, Received};

/// What a [`Scope`] calls to read the state of its run, and to set operands of the run's nodes.
pub(crate) trait RunView: Send + Sync {
    fn result(&self, node: NodeId) -> Option<Outcome>;
    /// Returns the result of a node of the sub-graph that the node `sub` runs.
    fn result_in(&self, sub: NodeId, node: NodeId) -> Option<Outcome>;
    fn received(&self, node: NodeId) -> Option<Received>;
    fn state(&self, node: NodeId) -> NodeState;
    /// Returns the name of a node in errors and drawings.
    fn label(&self, node: NodeId) -> String;
    /// Returns the state of a node of this run's graph that `Scope::set` writes; `None` if nodes of
    /// its kind cannot be set.
    fn seat(&mut self, node: NodeId) -> Result<Option<&mut dyn Any>>;
    fn debug(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result;
}

/// The view of a run that the function of a user node gets. Through it the function can read the
/// results of nodes that have completed, and set the operands of nodes that have not started.
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
    /// Returns the result of a node; `None` if the node has neither completed nor failed, or
    /// belongs to another graph.
    pub fn result(&self, node: impl Into<NodeId>) -> Option<Result<u64, JobError>> {
        self.0.result(node.into())
    }

    /// Returns the description of the message that a node received; `None` if the node has received
    /// nothing, or belongs to another graph.
    pub fn received(&self, node: Node<RecvNode>) -> Option<Received> {
        self.0.received(node.id())
    }

    /// Returns the state of a node; [`NodeState::NotStarted`] if it belongs to another graph.
    pub fn state(&self, node: impl Into<NodeId>) -> NodeState {
        self.0.state(node.into())
    }

    /// Sets the operands or data of a node that has not started. This allocates nothing itself;
    /// converting `data` may.
    ///
    /// # Errors
    ///
    /// `BadState` if the node has started; otherwise as
    /// [`Instance::set`](crate::graph::Instance::set).
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

    /// Returns the result of `node`, a node of the sub-graph that `sub` runs; `None` if `node` has
    /// neither completed nor failed.
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
