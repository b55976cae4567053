//! Keys and addresses of Bufs, for an application that also posts verbs of its own to an adapter.

use std::ptr::NonNull;

use super::buf::Buf;
use crate::device::{Device, RegistrationUse};
use crate::error::{Error, Result};
use crate::mem::mmap::Holder;

impl Buf {
    /// Returns the adapter's local key (`lkey`) for this memory, in the protection domain
    /// [`Device::pd`].
    ///
    /// Requests that the application posts itself take no leases. The application must ensure that
    /// nothing else touches the bytes meanwhile, and that the Buf outlives the requests.
    ///
    /// # Errors
    ///
    /// `NotSupported` if the device is not an adapter; `InvalidValue` if the Mmap is not registered
    /// with the device; `NotPermitted` if it is registered for copies alone
    /// ([`MmapBuilder::only_for`](crate::mem::MmapBuilder::only_for)).
    #[doc(alias = "doca_buf_get_mkey")]
    #[doc(alias = "doca_rdma_bridge_get_buf_mkey")]
    pub fn mkey(&self, device: &Device) -> Result<u32> {
        device.pd()?;
        let key = self.0.key(Holder::new(device.id(), RegistrationUse::Rdma));
        // The lower half of the key is the `lkey`, as `Adapter::pd` demands.
        key.map(|key| key as u32).map_err(Error::from)
    }

    /// Returns the address of the Buf's first byte. The data begin [`Buf::headroom`] bytes later.
    #[doc(alias = "doca_buf_get_head")]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.0.head()
    }
}
