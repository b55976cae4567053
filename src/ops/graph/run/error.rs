//! [`RunError`], the error of a run.

use std::fmt;

use super::super::node::NodeId;
use super::super::plan::Plan;
use super::progress::Progress;
use crate::error::{Error, ErrorKind};

/// The error of a run: the first cause, its node, and all nodes that failed.
///
/// Its text begins with the node that failed first, with its path through sub-graphs, as in `node
/// inner > call: the source holds no data: ...`.
///
/// ```
/// use tokio_doca::graph::{Graph, RunError};
/// use tokio_doca::{Error, ErrorKind};
/// # use tokio_doca::{BufPool, Device, Dma, Mmap, WorkQ};
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
/// let check = g.user(|_| Err(Error::new(ErrorKind::InvalidValue, None, "the checksum differs")));
/// g.label(check, "check");
/// g.depends(check, copy);
/// let mut instance = g.build()?.instance()?;
/// instance.set(copy, (&src, &dst))?;
/// let error: RunError = instance.run().await.unwrap_err();
/// assert_eq!((error.node(), error.failed()), (check.id(), &[check.id()][..]));
/// assert_eq!(error.cause().kind(), ErrorKind::InvalidValue);
/// assert!(error.to_string().contains("check"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RunError {
    node: NodeId,
    cause: Error,
    failed: Box<[NodeId]>,
    text: Box<str>,
}

impl RunError {
    #[cold]
    pub(super) fn new(
        plan: &Plan,
        progress: &mut Progress,
        node: u32,
        cause: Option<Error>,
    ) -> RunError {
        let (path, cause) = origin(plan, progress, node, cause);
        let failed: Vec<u32> = progress.failed().collect();
        let others = failed.iter().filter(|&&other| other != node);
        let others: Vec<String> = others.map(|&other| plan.label(other)).collect();
        let text = match others.is_empty() {
            true => format!("node {path}: {cause}"),
            false => format!("node {path}: {cause}; then failed: {}", others.join(", ")),
        };
        RunError {
            node: plan.id(node),
            cause,
            failed: failed.into_iter().map(|node| plan.id(node)).collect(),
            text: text.into(),
        }
    }

    /// Returns the kind of the first failure.
    pub fn kind(&self) -> ErrorKind {
        self.cause.kind()
    }

    /// Returns the node that failed first. If the failure was in a sub-graph, returns the node that
    /// runs the sub-graph.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Returns the first failure: the error of a job, or of a function or future of the
    /// application.
    pub fn cause(&self) -> &Error {
        &self.cause
    }

    /// Returns all nodes that failed, in the order in which they were added to the graph. Nodes of
    /// a sub-graph are not listed: [`Instance::state`](crate::graph::Instance::state) of the
    /// sub-graph's instance returns their states.
    #[doc(alias = "doca_graph_instance_get_failed_nodes")]
    #[doc(alias = "doca_graph_instance_get_num_failed_nodes")]
    pub fn failed(&self) -> &[NodeId] {
        &self.failed
    }
}

/// Returns the path of the node that failed, from sub-graph to sub-graph, and the cause of the
/// failure.
fn origin(
    plan: &Plan,
    progress: &mut Progress,
    node: u32,
    cause: Option<Error>,
) -> (String, Error) {
    let label = plan.label(node);
    if let Some(cause) = cause {
        return (label, cause);
    }
    if let Some(sub) = progress.bodies[node as usize].level_mut()
        && let Some((inner, cause)) = sub.progress.failure.take()
    {
        let (path, cause) = origin(&sub.graph.0, &mut sub.progress, inner, cause);
        return (format!("{label} > {path}"), cause);
    }
    let unknown = || Error::new(ErrorKind::Unexpected, None, "it failed for no known cause");
    let cause = progress
        .outcome(node)
        .err()
        .map_or_else(unknown, Error::from);
    (label, cause)
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for RunError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.cause)
    }
}

impl From<RunError> for Error {
    fn from(error: RunError) -> Error {
        Error::new(error.kind(), "Instance::run", error.text.into_string())
    }
}
