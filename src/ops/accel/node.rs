//! Graph nodes that call an accelerator.

use super::{Accel, AccelCall, CallRequest};
use crate::mem::{MaybeAnyDestination, MaybeAnySource};
use crate::ops::graph::{Action, Attach, GraphBuilder, Node};
use crate::reactor::Attachment;

/// The kind of a node that calls an accelerator ([`GraphBuilder::accel`]). Such a node is set to an
/// [`AccelCall`].
#[derive(Debug)]
pub enum CallNode {}

/// The operands of a node that calls an accelerator. An [`AccelCall`] converts to them.
#[derive(Clone, Debug)]
pub struct CallData(AccelCall<MaybeAnySource, MaybeAnyDestination>);

impl<S, D> From<AccelCall<S, D>> for CallData
where
    S: Into<MaybeAnySource>,
    D: Into<MaybeAnyDestination>,
{
    fn from(call: AccelCall<S, D>) -> CallData {
        CallData(call.map(S::into, D::into))
    }
}

impl Action for CallNode {
    type Context = Accel;
    type Data = CallData;
    type Request = CallRequest<Accel, MaybeAnySource, MaybeAnyDestination>;
    const NAME: &'static str = "accel";
    const ATTACH: Option<Attach<Accel>> = Some(Accel::attach);

    fn attachment(accel: &Accel) -> &Attachment {
        accel.attachment()
    }

    fn request(accel: &Accel, CallData(call): CallData) -> Self::Request {
        let accel = accel.clone();
        CallRequest { accel, call }
    }
}

impl GraphBuilder {
    /// Returns a node that calls an accelerator, as [`Accel::call`] does. Its result is the result
    /// of the call.
    #[doc(alias = "doca_graph_ctx_node_create")]
    pub fn accel(&mut self, accel: &Accel) -> Node<CallNode> {
        self.context(accel.clone())
    }
}
