//! Receives that are posted together, and waited for without a future each.

use arrayvec::ArrayVec;

use super::endpoint_port::EndpointPort;
use super::recv::Receiver;
use crate::error::JobError;
use crate::reactor::tables::{Receipt, RecvBuf};

/// The most receives that are posted in one call.
pub(crate) const BATCH: usize = 16;

/// Destinations that are leased, and for which receives are to be posted.
pub(crate) struct RecvBatch(ArrayVec<RecvBuf, BATCH>);

impl RecvBatch {
    /// Begins one. Somebody must hear of the end of its receives.
    pub(crate) fn begin(port: &EndpointPort) -> Result<RecvBatch, JobError> {
        port.check_open()?;
        let shared = port.shared();
        if !shared.policy().is_busy() {
            shared.events.register(shared)?;
        }
        Ok(RecvBatch(ArrayVec::new()))
    }

    /// Leases one more destination, of [`BATCH`] at most.
    pub(crate) fn add(&mut self, receiver: &impl Receiver) -> Result<(), JobError> {
        self.0.push(receiver.begin()?);
        Ok(())
    }

    /// Posts them in order. Those that found no place, or were refused, are not leased any more.
    pub(crate) fn post(
        mut self,
        port: &EndpointPort,
    ) -> (ArrayVec<Receipt, BATCH>, Option<JobError>) {
        port.post(&mut self.0)
    }
}
