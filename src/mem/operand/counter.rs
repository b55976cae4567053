//! Eight bytes of an Mmap as the counter of a sync event.
#![expect(unsafe_code, reason = "promises where a counter lies")]

use std::sync::Arc;

use crate::device::{Access, Device, EventBacking};
use crate::error::{Error, ErrorKind, Result};
use crate::mem::mmap::Mmap;
use crate::mem::pool::BufInventory;

impl Mmap {
    /// Lends the eight bytes from `offset` on, as the counter of a sync event. They are in use
    /// until the returned value is dropped.
    ///
    /// # Errors
    ///
    /// `InvalidValue` unless the bytes lie in the Mmap, at a multiple of 8, and the device holds
    /// the Mmap; `NotPermitted` unless the DPU may write it; `NotSupported` if it is in no memfd;
    /// `InUse` if a pool or an array has the bytes; `BadState` while the Mmap is stopped.
    #[doc(hidden)] // the contract suite takes one as well
    pub fn counter(
        &self,
        op: &'static str,
        device: &Device,
        offset: usize,
    ) -> Result<EventBacking> {
        let refuse = |kind, text: String| Err(Error::new(kind, op, text));
        let len = self.len();
        let within = offset.checked_add(8).is_some_and(|end| end <= len);
        if !offset.is_multiple_of(8) || !within {
            let text = format!(
                "byte {offset} of an Mmap of {len} bytes: the counter is 8 bytes of it, at a multiple of 8"
            );
            return refuse(ErrorKind::InvalidValue, text);
        }
        if !self.devices().contains(device) && self.is_started() {
            let name = device.info().name();
            let text = format!("device {name} does not hold the Mmap");
            return refuse(ErrorKind::InvalidValue, text);
        }
        // Memory that the DPU may write lends no slices, so that its bytes may change at any time.
        if !self.access().contains(Access::DPU_READ_WRITE) {
            let text = "the counter may be set by the DPU: build its Mmap with DPU_READ_WRITE";
            return refuse(ErrorKind::NotPermitted, text.to_owned());
        }
        let Some(memfd) = self.0.backing() else {
            let text = "the counter is shared with another process: take memory with MmapBuilder::alloc, or from_memfd";
            return refuse(ErrorKind::NotSupported, text.to_owned());
        };
        let keep = BufInventory::with_capacity(1)
            .buf(self, offset..offset + 8)
            .map_err(|error| error.with_call(op))?;
        let (region, keep) = (self.0.region(), Arc::new(keep));
        // SAFETY: the eight bytes lie in the region, which begins at a page, at a multiple of 8,
        // both as checked above; the Buf keeps them, and memory that the DPU may write is reached
        // by atomics and the opaque routine alone.
        Ok(unsafe { EventBacking::new(region, offset, Some(memfd), keep) })
    }
}
