//! The devices that an Mmap is registered with, and the keys by which they address it.
//!
//! The keys are stored in a table of fixed size, which jobs read without a lock. The table changes
//! only while nothing of the Mmap is used: the Mmap's lock (`Ranges`) orders a change before the
//! next claim or Buf.

use crate::device::{Audience, Device, DeviceId, Region, Registration, RegistrationUse};
use crate::error::{Error, ErrorKind, JobError, Reason, Result};
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The maximum number of devices that one Mmap is registered with.
pub(super) const MAX: usize = 16;

/// A device that the memory is registered with, and the use that it is registered for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(unreachable_pub, reason = "sealed traits mention it")]
pub struct Holder(u64);

impl Holder {
    #[inline(always)]
    pub(crate) fn new(device: DeviceId, purpose: RegistrationUse) -> Holder {
        // The numbers of devices are even.
        Holder(device.as_raw() | u64::from(purpose == RegistrationUse::Rdma))
    }

    /// Returns which exports a job of this holder may reach.
    #[inline(always)]
    pub(in crate::mem) fn audience(self) -> Audience {
        match self.0 & 1 {
            0 => Audience::Dpu,
            _ => Audience::Rdma,
        }
    }

    pub(crate) fn is(self, device: DeviceId) -> bool {
        self.0 & !1 == device.as_raw()
    }
}

/// The registrations of the range with one device: one for each use.
pub(in crate::mem) struct Registrations {
    by_use: Vec<(RegistrationUse, Registration)>,
    // Declared last, so that the device is closed after the registrations were taken back.
    pub(super) device: Device,
}

/// Checks the list of devices to register with: at least one, at most `MAX`, each once.
pub(super) fn check(op: &'static str, devices: &[Device]) -> Result<()> {
    let refuse = |kind, text: String| Err(Error::new(kind, op, text));
    if devices.is_empty() {
        let text = "no device: name at least one";
        return refuse(ErrorKind::InvalidValue, text.to_owned());
    }
    if devices.len() > MAX {
        let (many, max) = (devices.len(), MAX);
        let text = format!("{many} devices, and an Mmap takes at most {max}: use several Mmaps");
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

/// Registers the memory with each device, for one use or for all that the device has. If one device
/// refuses, the registrations made before are taken back, and the error is returned.
pub(in crate::mem) fn register(
    devices: Vec<Device>,
    region: &Region,
    only_for: Option<RegistrationUse>,
) -> Result<Vec<Registrations>> {
    let mut held = Vec::with_capacity(devices.len());
    for device in devices {
        let uses = [RegistrationUse::Dma, RegistrationUse::Rdma].into_iter();
        let has = |purpose: &RegistrationUse| {
            *purpose == RegistrationUse::Dma || device.info().caps().rdma.is_some()
        };
        let uses = uses.filter(|purpose| match only_for {
            Some(only) => *purpose == only,
            None => has(purpose),
        });
        let registrar = device.adapter().registrar();
        let register = |purpose| Ok((purpose, registrar.register(region, purpose)?));
        let by_use = uses.map(register).collect::<Result<_>>()?;
        held.push(Registrations { by_use, device });
    }
    Ok(held)
}

/// A Holder and its key. An unused entry has 0 as its Holder.
pub(in crate::mem) struct KeyEntry(AtomicU64, AtomicU64);

impl KeyEntry {
    pub(in crate::mem) fn new() -> KeyEntry {
        KeyEntry(AtomicU64::new(0), AtomicU64::new(0))
    }

    /// Returns the entry's key if the entry is for this Holder.
    #[inline(always)]
    pub(in crate::mem) fn key(&self, holder: Holder) -> Option<u64> {
        (self.0.load(Relaxed) == holder.0).then(|| self.1.load(Relaxed))
    }

    fn set(&self, (holder, key): (u64, u64)) {
        self.0.store(holder, Relaxed);
        self.1.store(key, Relaxed);
    }

    pub(in crate::mem) fn get(&self) -> (u64, u64) {
        (self.0.load(Relaxed), self.1.load(Relaxed))
    }

    pub(in crate::mem) fn copy(&self, other: &KeyEntry) {
        self.set(other.get());
    }
}

/// The keys of all Holders. Those of the first device come first.
pub(in crate::mem) struct Keys([KeyEntry; 2 * MAX]);

impl Keys {
    pub(in crate::mem) fn new() -> Keys {
        Keys(std::array::from_fn(|_| KeyEntry::new()))
    }

    /// Rewrites the table; called only while nothing of the Mmap is used.
    pub(in crate::mem) fn set(&self, held: &[Registrations]) {
        let of = |held: &Registrations| {
            let id = held.device.id();
            let each = held.by_use.iter();
            each.map(move |(purpose, it)| (Holder::new(id, *purpose).0, it.key()))
                .collect::<Vec<_>>()
        };
        let entries = held.iter().flat_map(of).chain(std::iter::repeat((0, 0)));
        self.0
            .iter()
            .zip(entries)
            .for_each(|(to, entry)| to.set(entry));
    }

    pub(in crate::mem) fn iter(&self) -> std::slice::Iter<'_, KeyEntry> {
        self.0.iter()
    }

    /// Returns the Holder's key for the memory.
    #[cold]
    pub(super) fn key(&self, holder: Holder) -> Result<u64, JobError> {
        if let Some(key) = self.iter().find_map(|entry| entry.key(holder)) {
            return Ok(key);
        }
        let other = Holder(holder.0 ^ 1);
        Err(JobError::of(
            match self.iter().find_map(|entry| entry.key(other)) {
                Some(_) => Reason::OtherUse,
                None => Reason::ForeignDevice,
            },
        ))
    }
}
