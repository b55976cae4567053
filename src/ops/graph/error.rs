//! Why a run failed.

use std::fmt;

use super::node::NodeId;
use super::plan::Plan;
use super::progress::Progress;
use crate::error::{Error, ErrorKind};

/// Why a run failed: the first cause, the node that it came from, and all nodes that failed.
#[derive(Debug)]
pub struct RunError {
    node: NodeId,
    cause: Error,
    failed: Box<[NodeId]>,
    text: Box<str>,
}

impl RunError {
    #[cold]
    pub(super) fn new(plan: &Plan, progress: &Progress, node: u32, cause: Error) -> RunError {
        let failed: Vec<u32> = progress.failed().collect();
        let names: Vec<String> = failed.iter().map(|&node| plan.label(node)).collect();
        let text = match names.len() {
            0 | 1 => format!("node {}: {cause}", plan.label(node)),
            _ => format!(
                "node {} first: {cause}; failed: {}",
                plan.label(node),
                names.join(", ")
            ),
        };
        RunError {
            node: plan.id(node),
            cause,
            failed: failed.into_iter().map(|node| plan.id(node)).collect(),
            text: text.into(),
        }
    }

    /// What kind of failure the first one was.
    pub fn kind(&self) -> ErrorKind {
        self.cause.kind()
    }

    /// The node that failed first.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// The first failure: the error of a user's function, or a job's.
    pub fn cause(&self) -> &Error {
        &self.cause
    }

    /// All nodes that failed, in their order. Those of a sub-graph are found in its instance.
    #[doc(alias = "doca_graph_instance_get_failed_nodes")]
    pub fn failed(&self) -> &[NodeId] {
        &self.failed
    }
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
