//! [`RecvBatch`], receives that are posted together and have no futures.

use arrayvec::ArrayVec;

use super::endpoint_port::EndpointPort;
use super::recv::Receiver;
use crate::error::JobError;
use crate::reactor::tables::{Receipt, RecvBuf};

/// The maximum number of jobs or receives that are submitted to a device in one call.
pub(crate) const SUBMIT_BATCH: usize = 32;

/// Leased destinations, for which receives shall be posted.
pub(crate) struct RecvBatch(ArrayVec<RecvBuf, SUBMIT_BATCH>);

impl RecvBatch {
    pub(crate) fn new() -> RecvBatch {
        RecvBatch(ArrayVec::new())
    }

    /// Leases one more destination. A batch has at most [`SUBMIT_BATCH`] of them.
    pub(crate) fn add(&mut self, receiver: &impl Receiver) -> Result<(), JobError> {
        self.0.push(receiver.begin()?);
        Ok(())
    }

    /// Posts the receives in order, and adds their receipts to `receipts`, which must be empty.
    /// Stops when no entry is free, or when the device refuses a receive. The caller drops the rest
    /// of the batch.
    pub(crate) fn post(
        &mut self,
        port: &EndpointPort,
        receipts: &mut ArrayVec<Receipt, SUBMIT_BATCH>,
    ) -> Result<(), JobError> {
        port.check_open()?;
        let shared = port.shared();
        if !shared.policy().is_busy() {
            // This runtime must receive the events of the receives' completions.
            shared.events.register(shared)?;
        }
        port.post(&mut self.0, receipts)
    }
}
