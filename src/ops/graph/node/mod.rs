//! What a node is, whatever graph it is in: its handle, what its handle sets, and what its function
//! or its context does.
//!
//! `action` says how a context joins graphs, `user` has functions and futures, and `scope` is what
//! these see of their run. This folder imports no other folder of `graph`.

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
