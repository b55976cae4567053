//! Nodes, independent of a graph: their handles, what they are set to, and what their functions and
//! contexts do.
//!
//! `action` says how a context joins graphs, `user` has functions and futures, and `scope` has the
//! view of a run that functions and futures get. This folder imports no other folder of `graph`.

mod action;
mod handle;
mod operands;
mod scope;
mod user;

pub(in crate::ops) use action::{Action, Attach};
pub(super) use action::{Planned, Refusal, Step, Template, stays};
pub(super) use handle::sealed::Put;
pub(super) use handle::set;
pub use handle::{
    AsyncNode, DataNode, Node, NodeId, NodeState, Nodes, RecvNode, Settable, SubGraphNode, UserNode,
};
pub use operands::Operands;
pub(super) use scope::RunView;
pub use scope::Scope;
pub(super) use user::{
    AsyncBody, Data, Function, MakesFutures, UserError, UserFn, WithData, contained, own, stop,
};
