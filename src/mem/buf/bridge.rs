//! What an application needs that uses an adapter by verbs of its own as well.

use std::ptr::NonNull;

use super::buf::Buf;
use crate::device::{Device, RegistrationUse};
use crate::error::{Error, Result};
use crate::mem::mmap::Holder;

impl Buf {
    /// Returns the key (`lkey`) that the adapter knows this memory by, in the protection domain
    /// [`Device::pd`].
    ///
    /// Requests of the application's own take no Leases: that nothing else touches the bytes
    /// meanwhile, and that the Buf outlives them, is for the application to see to.
    ///
    /// # Errors
    ///
    /// `NotSupported` on a device that is no adapter; `InvalidValue` if the device does not hold
    /// the Mmap; `NotPermitted` if it holds it for copies alone
    /// ([`MmapBuilder::only_for`](crate::mem::MmapBuilder::only_for)).
    #[doc(alias = "doca_buf_get_mkey")]
    #[doc(alias = "doca_rdma_bridge_get_buf_mkey")]
    pub fn mkey(&self, device: &Device) -> Result<u32> {
        device.pd()?;
        let key = self.0.key(Holder::new(device.id(), RegistrationUse::Rdma));
        // The lower half, as `Adapter::pd` has it.
        key.map(|key| key as u32).map_err(Error::from)
    }

    /// Returns where its dataroom begins; [`Buf::headroom`] bytes further the data do.
    #[doc(alias = "doca_buf_get_head")]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.0.head()
    }
}
