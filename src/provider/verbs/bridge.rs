//! For programs that are on rdma-core already: devices over their protection domains.
#![expect(unsafe_code, reason = "takes a protection domain on the caller's word")]

use std::ptr::NonNull;

use super::ffi::ibv_pd;
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};

impl Device {
    /// A device over a protection domain of the application's, so that its own verbs and this
    /// crate's contexts reach the same memory. Each call makes another device. Events of the device
    /// itself (ibv_get_async_event(3)) are the application's to read; what of them is about this
    /// crate's queue pairs is noticed by their completions. Events are to be acknowledged before
    /// any call of this crate: what an unacknowledged one is about cannot be destroyed, and who
    /// tries waits. That the adapter was removed nobody tells this crate: what is in flight then
    /// does not end.
    ///
    /// # Errors
    ///
    /// `InvalidValue` for null; `NotFound` if libibverbs cannot be opened; `NotSupported` with
    /// `RDMAV_ALLOW_DISASSOC_DESTROY` in the environment; `BadState` in a fork of a process that
    /// had adapters open; what could not be had.
    ///
    /// # Safety
    ///
    /// The domain is one of the libibverbs that the system has, and is not deallocated before the
    /// last handle of the device, and all that was made with it, has gone. A
    /// [`connect`](crate::Rdma::connect) or an import that was polled is to be awaited: if it is
    /// dropped before, its thread has a handle of the device until it is done.
    pub unsafe fn from_pd(pd: *mut ibv_pd) -> Result<Device> {
        const OP: &str = "Device::from_pd";
        let Some(pd) = NonNull::new(pd) else {
            let text = "no protection domain: it is null";
            return Err(Error::new(ErrorKind::InvalidValue, OP, text));
        };
        // SAFETY: as the caller promises.
        let device = unsafe { crate::provider::verbs().device_from_pd(pd) };
        device.map_err(|error| error.with_call(OP))
    }
}
