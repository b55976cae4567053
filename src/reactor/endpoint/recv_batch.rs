//! Receives that are posted together, and waited for without a future each.

use arrayvec::ArrayVec;

use super::endpoint_port::EndpointPort;
use super::recv::Receiver;
use crate::error::JobError;
use crate::reactor::tables::{Receipt, RecvBuf};

/// The most jobs, or receives, that a device is given in one call.
pub(crate) const SUBMIT_BATCH: usize = 32;

/// Destinations that are leased, and for which receives are to be posted.
pub(crate) struct RecvBatch(ArrayVec<RecvBuf, SUBMIT_BATCH>);

impl RecvBatch {
    pub(crate) fn new() -> RecvBatch {
        RecvBatch(ArrayVec::new())
    }

    /// Leases one more destination, of [`SUBMIT_BATCH`] at most.
    pub(crate) fn add(&mut self, receiver: &impl Receiver) -> Result<(), JobError> {
        self.0.push(receiver.begin()?);
        Ok(())
    }

    /// Posts them in order, and adds their receipts to an empty list: fewer, if there are fewer
    /// places, or the device refuses one. The rest of the batch is for the caller to drop.
    pub(crate) fn post(
        &mut self,
        port: &EndpointPort,
        receipts: &mut ArrayVec<Receipt, SUBMIT_BATCH>,
    ) -> Result<(), JobError> {
        port.check_open()?;
        let shared = port.shared();
        if !shared.policy().is_busy() {
            // Somebody must hear of their end.
            shared.events.register(shared)?;
        }
        port.post(&mut self.0, receipts)
    }
}
