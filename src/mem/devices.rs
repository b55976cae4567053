//! The devices that hold an Mmap, and the keys that they know it by.
//!
//! The keys stand in a table of fixed size, which jobs read without a lock. It changes only while nothing of the Mmap is
//! used: the Mmap's lock (`Ranges`) orders a change before the next claim or Buf.

use super::mmap::Mmap;
use crate::device::{Device, DeviceId, Region, Registration, Use};
use crate::error::{Error, ErrorKind, JobError, Reason, Result};
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What one device holds of the range.
pub(super) struct Held {
    dma: Registration,
    pub(super) device: Device,
}

/// Checks who shall hold it.
pub(super) fn check(op: &'static str, devices: &[Device]) -> Result<()> {
    let refuse = |kind, text: String| Err(Error::new(kind, op, text));
    if devices.is_empty() {
        let text = "no device: name at least one";
        return refuse(ErrorKind::InvalidValue, text.to_owned());
    }
    if devices.len() > Mmap::MAX_DEVICES {
        let (many, max) = (devices.len(), Mmap::MAX_DEVICES);
        let text = format!("{many} devices, and an Mmap has room for {max}: use several Mmaps");
        return refuse(ErrorKind::NoMemory, text);
    }
    for (i, device) in devices.iter().enumerate() {
        if devices[..i].contains(device) {
            let text = format!("device {} was named twice", device.info().name());
            return refuse(ErrorKind::InUse, text);
        }
    }
    Ok(())
}

/// Registers with each device, or with none: if one refuses, those before it let go of the memory before this returns.
pub(super) fn register(devices: Vec<Device>, region: &Region) -> Result<Vec<Held>> {
    let mut held = Vec::with_capacity(devices.len());
    for device in devices {
        let dma = device.adapter().registrar().register(region, Use::Dma)?;
        held.push(Held { dma, device });
    }
    Ok(held)
}

/// Device and key, as many as there are; 0 is no device.
pub(super) struct Keys([(AtomicU64, AtomicU64); Mmap::MAX_DEVICES]);

impl Keys {
    pub(super) fn new() -> Keys {
        Keys(std::array::from_fn(|_| {
            (AtomicU64::new(0), AtomicU64::new(0))
        }))
    }

    /// Writes the table anew, while nothing of the Mmap is used.
    pub(super) fn set(&self, held: &[Held]) {
        for (i, (device, key)) in self.0.iter().enumerate() {
            let held = held.get(i);
            device.store(held.map_or(0, |held| held.device.id().as_raw()), Relaxed);
            key.store(held.map_or(0, |held| held.dma.key()), Relaxed);
        }
    }

    /// The first device, and its key.
    pub(super) fn first(&self) -> (u64, u64) {
        let (device, key) = &self.0[0];
        (device.load(Relaxed), key.load(Relaxed))
    }

    /// The key that a device knows the memory by.
    #[cold]
    pub(super) fn key(&self, id: DeviceId) -> Result<u64, JobError> {
        let found = self
            .0
            .iter()
            .find(|(device, _)| device.load(Relaxed) == id.as_raw());
        match found {
            Some((_, key)) => Ok(key.load(Relaxed)),
            None => Err(JobError::of(Reason::ForeignDevice)),
        }
    }
}
