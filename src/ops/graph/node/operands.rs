//! [`Operands`], the source and the destination of a node.

use crate::mem::{AnyDestination, AnySource};

/// The operands of a node that copies or hashes. `(source, destination)` converts to them.
#[derive(Clone, Debug)]
pub struct Operands<S = AnySource, D = AnyDestination> {
    pub(in crate::ops) src: S,
    pub(in crate::ops) dst: D,
}

impl<A: Into<S>, B: Into<D>, S, D> From<(A, B)> for Operands<S, D> {
    fn from((src, dst): (A, B)) -> Operands<S, D> {
        Operands {
            src: src.into(),
            dst: dst.into(),
        }
    }
}
