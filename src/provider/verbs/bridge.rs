//! Devices over the protection domains of programs that already use rdma-core.
#![expect(unsafe_code, reason = "takes a protection domain on the caller's word")]

use std::ffi::c_void;
use std::ptr::NonNull;

use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};

impl Device {
    /// Makes a device over a protection domain of the application (`struct ibv_pd *`), so that the
    /// application's own verbs and this crate's contexts reach the same memory. Each call makes a
    /// new device.
    ///
    /// The application reads the events of the adapter (ibv_get_async_event(3)). It must
    /// acknowledge each event before it calls this crate, since libibverbs destroys the object of
    /// an event only once the event was acknowledged. This crate learns of errors of its queue
    /// pairs from their completions. It does not learn that the adapter was removed: in that case,
    /// jobs in flight do not end. The device has no shared receive queues: a thread of this crate
    /// refills such queues, and might destroy one after the application has closed its device. So
    /// its [`max_pooled_len`](crate::device::RdmaCaps::max_pooled_len) is 0, and a
    /// [`RecvPool`](crate::rdma::RecvPool) is refused.
    ///
    /// # Errors
    ///
    /// `InvalidValue` for null; `NotFound` if libibverbs cannot be opened; `NotSupported` with
    /// `RDMAV_ALLOW_DISASSOC_DESTROY` in the environment, or if the driver lacks functions of the
    /// data path; `BadState` in a child of `fork` whose parent had adapters open; `NoMemory` if no
    /// thread can be started; the system's error if another call fails.
    ///
    /// # Safety
    ///
    /// The domain belongs to the system's libibverbs. It is deallocated only once the last handle
    /// of the device, and everything that was made with the device, are gone. A
    /// [`connect`](crate::Rdma::connect) or an import that was polled must be awaited: if its
    /// future is dropped early, its thread keeps a handle of the device until the thread is done.
    #[doc(alias = "doca_dev_open_from_pd")]
    #[doc(alias = "doca_rdma_bridge_open_dev_from_pd")]
    pub unsafe fn from_pd(pd: *mut c_void) -> Result<Device> {
        const OP: &str = "Device::from_pd";
        let Some(pd) = NonNull::new(pd) else {
            let text = "no protection domain: it is null";
            return Err(Error::new(ErrorKind::InvalidValue, OP, text));
        };
        // SAFETY: as the caller promises.
        let device = unsafe { crate::provider::verbs().device_from_pd(pd.cast()) };
        device.map_err(|error| error.with_call(OP))
    }

    /// Makes a device as [`Device::from_pd`] does, over a domain of the crate `ibverbs-sys`.
    ///
    /// # Errors
    ///
    /// As for [`Device::from_pd`].
    ///
    /// # Safety
    ///
    /// As for [`Device::from_pd`].
    #[cfg(feature = "ibverbs")]
    #[cfg_attr(docsrs, doc(cfg(feature = "ibverbs")))]
    pub unsafe fn from_ibv_pd(pd: *mut ibverbs_sys::ibv_pd) -> Result<Device> {
        // SAFETY: as the caller promises.
        unsafe { Device::from_pd(pd.cast()) }
    }

    /// Returns the protection domain as [`Device::pd`] does, with the type of `ibverbs-sys`.
    ///
    /// # Errors
    ///
    /// As for [`Device::pd`].
    #[cfg(feature = "ibverbs")]
    #[cfg_attr(docsrs, doc(cfg(feature = "ibverbs")))]
    pub fn ibv_pd(&self) -> Result<NonNull<ibverbs_sys::ibv_pd>> {
        self.pd().map(NonNull::cast)
    }
}
