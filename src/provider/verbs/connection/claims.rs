//! Claims of a queue pair by rdma_cm. While a queue pair is claimed, no other caller can connect
//! it. A reset or a failure ends the claim.

use std::sync::Arc;

use super::super::adapter::{BlobOrigin, EndpointBlob, wake};
use super::super::cm::Handler;
use super::super::transport::Qp;
use super::rc::{RcConnection, RcInner};
use super::timeouts::Timeouts;
use crate::device::{EndpointState, Path};
use crate::error::{Error, ErrorKind, JobError, Result};
use crate::sync::BriefGuard;

impl RcConnection {
    /// Returns the origin of the endpoint, which distinguishes it from other endpoints until the
    /// next reset.
    pub(in super::super) fn origin(&self) -> BlobOrigin {
        self.inner().origin
    }

    /// Returns the queue pair of the connection, if it can be connected.
    pub(super) fn unconnected(&self, inner: &RcInner) -> Result<Arc<Qp>> {
        let text = match &inner.qp {
            _ if inner.state != EndpointState::Init || inner.connecting => {
                "it is connected, or being connected, or has failed: reset it first"
            }
            Some(qp) => return Ok(Arc::clone(qp)),
            None => "it has no queue pair: reset it first",
        };
        Err(Error::new(ErrorKind::BadState, None, text))
    }

    /// Claims the queue pair so that `by` connects it by rdma_cm; no other caller can connect it
    /// meanwhile. `give_back` or `set_connected` ends the claim. A thread that ends the connection
    /// before then ends `by` too.
    pub(in super::super) fn claim(&self, by: &Arc<dyn Handler>) -> Result<Arc<Qp>> {
        let mut inner = self.inner();
        let qp = self.unconnected(&inner)?;
        inner.connecting = true;
        inner.link = Some(Arc::clone(by));
        Ok(qp)
    }

    /// Ends the claim of `qp`. Returns the locked connection, if `qp` is still its queue pair.
    fn claimed(&self, qp: &Arc<Qp>) -> Result<BriefGuard<'_, RcInner>> {
        let mut inner = self.inner();
        if inner.qp.as_ref().is_some_and(|it| Arc::ptr_eq(it, qp)) {
            inner.connecting = false;
            return Ok(inner);
        }
        Err(lost())
    }

    /// Ends the claim of a queue pair that could not be connected. A queue pair that is `half`
    /// connected takes messages already and cannot be connected to another peer, so the connection
    /// fails.
    pub(in super::super) fn give_back(
        self: &Arc<Self>,
        qp: &Arc<Qp>,
        half: bool,
        cause: JobError,
    ) -> Result<()> {
        let mut inner = self.claimed(qp)?;
        // The caller of this function has another handle of the link, so that the link is not
        // destroyed here.
        inner.link = None;
        let told = half && self.fail(&mut inner, cause);
        drop(inner);
        if told {
            self.notify();
        }
        Ok(())
    }

    /// Ends the claim of a queue pair that is connected. If `waits` is true, the connection sends
    /// nothing before it has received something. The caller notifies the application.
    pub(in super::super) fn set_connected(
        &self,
        qp: &Arc<Qp>,
        peer: EndpointBlob,
        path: Path,
        waits: bool,
    ) -> Result<()> {
        let mut inner = self.claimed(qp)?;
        if inner.state != EndpointState::Init {
            return Err(lost());
        }
        inner.waits = waits && !inner.got;
        (inner.peer, inner.path) = (Some(peer), Some(path));
        self.set_state(&mut inner, EndpointState::Connected);
        inner.timeouts = Timeouts::default();
        drop(inner);
        wake();
        Ok(())
    }
}

fn lost() -> Error {
    let text = "it was reset or dropped, or failed, while it was being connected";
    Error::new(ErrorKind::ConnectionAborted, None, text)
}
