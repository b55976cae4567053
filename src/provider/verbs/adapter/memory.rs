//! Memory regions: for copies, for remote operations, and one for each export.
//!
//! A region for remote operations has no remote permission. An export is a separate region, with
//! only the permissions of the Mmap. When the export is taken back, its rkey becomes useless.
#![expect(unsafe_code, reason = "registers memory with libibverbs")]

use std::any::Any;
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, Weak};

use super::super::ffi::*;
use super::blob::{self, MemoryBlob};
use super::context::Context;
use super::traits::not_had;
use crate::device::{
    Access, Audience, ExportRequest, Exported, ImportOrigin, Imported, LeakFlag, Region,
    Registration, RegistrationUse,
};
use crate::error::{Error, ErrorKind, JobError, Result};
use crate::sync::lock;

/// A memory region of an adapter.
pub(in super::super) struct Mr {
    context: Arc<Context>,
    raw: NonNull<ibv_mr>,
    /// A flag that is set if the region cannot be deregistered. Only regions that peers reach have
    /// a flag; other regions are used by no request when they are dropped.
    leak_flag: Option<LeakFlag>,
}

// SAFETY: libibverbs may be called from any thread, and the region is this handle's alone.
unsafe impl Send for Mr {}
// SAFETY: as above.
unsafe impl Sync for Mr {}

impl Mr {
    /// # Safety
    ///
    /// The domain belongs to the context, and the range stays valid until this is dropped.
    pub(in super::super) unsafe fn register(
        context: &Arc<Context>,
        pd: *mut ibv_pd,
        addr: NonNull<u8>,
        len: usize,
        flags: ibv_access_flags,
    ) -> Result<Mr> {
        let reg_mr = context.table.reg_mr;
        // SAFETY: as the caller promises.
        let raw = unsafe { reg_mr(pd, addr.as_ptr().cast(), len, flags.0 as i32) };
        let Some(raw) = NonNull::new(raw) else {
            return Err(not_registered(&context.name, len));
        };
        Ok(Mr {
            context: Arc::clone(context),
            raw,
            leak_flag: None,
        })
    }

    /// Registers words of this crate, which are not moved, and live longer than the region.
    pub(in super::super) fn of_words(
        context: &Arc<Context>,
        words: &[AtomicU64],
        flags: ibv_access_flags,
    ) -> Result<Mr> {
        let addr = NonNull::from(words).cast();
        // SAFETY: the domain belongs to the context. The callers, `Answers` and the chunks of an
        // `Srq`, drop the words after the region. What the adapter writes there is read as atomics.
        unsafe { Mr::register(context, context.pd(), addr, size_of_val(words), flags) }
    }

    /// Returns the flag that is set if the region cannot be deregistered.
    pub(in super::super) fn log_if_it_stays(&mut self) -> LeakFlag {
        self.leak_flag.get_or_insert_default().clone()
    }

    pub(in super::super) fn lkey(&self) -> u32 {
        // SAFETY: the region is alive as long as `self`.
        unsafe { (*self.raw.as_ptr()).lkey }
    }

    pub(in super::super) fn rkey(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.raw.as_ptr()).rkey }
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        let dereg_mr = self.context.table.dereg_mr;
        // SAFETY: only this handle has the region, and no operation that could use it is in flight
        // (`Registration`, `Exported`).
        let dereg = || unsafe { dereg_mr(self.raw.as_ptr()) };
        if !self.context.destroy("ibv_dereg_mr", dereg) {
            self.leak_flag.iter().for_each(LeakFlag::set);
        }
    }
}

fn not_registered(device: &str, len: usize) -> Error {
    let source = std::io::Error::last_os_error();
    let what = format!("ibv_reg_mr of {len} bytes on {device}");
    let way_out = ", or register for one use (MmapBuilder::only_for)";
    not_had(what, way_out, source)
}

/// Registers a range for a use. Returns the registration, with the key that Segments carry.
pub(in super::super) fn register(
    context: &Arc<Context>,
    region: &Region,
    purpose: RegistrationUse,
) -> Result<Registration> {
    let writable = region.access().local_writable();
    let local = match writable {
        true => ibv_access_flags::IBV_ACCESS_LOCAL_WRITE,
        false => ibv_access_flags(0),
    };
    let (pd, flags) = match purpose {
        RegistrationUse::Dma => {
            let Some(pd) = context.copies_pd() else {
                // Hashes need no key.
                return Ok(Registration::new(0, None));
            };
            let remote = match writable {
                true => ibv_access_flags::IBV_ACCESS_REMOTE_WRITE,
                false => ibv_access_flags(0),
            };
            (pd, local | remote)
        }
        RegistrationUse::Rdma => (context.pd(), local),
    };
    // SAFETY: the domain belongs to the context. The range is valid until the Registration is
    // dropped (`Region::new`).
    let mr = unsafe { Mr::register(context, pd, region.addr(), region.len(), flags) }?;
    let key = u64::from(mr.rkey()) << 32 | u64::from(mr.lkey());
    Ok(Registration::new(key, Some(Box::new(mr))))
}

/// Returns the half of a key that names memory for this side's adapter.
pub(in super::super) fn lkey(key: u64) -> u32 {
    key as u32
}

/// Returns the half of a key that names memory for the peer's adapter.
pub(in super::super) fn rkey(key: u64) -> u32 {
    (key >> 32) as u32
}

/// The exports of this process that were not taken back: the number of each, and its owner.
type Exports = HashMap<u64, Weak<dyn Any + Send + Sync>>;

fn exports() -> MutexGuard<'static, Exports> {
    static ALL: LazyLock<Mutex<Exports>> = LazyLock::new(Mutex::default);
    lock(&*ALL)
}

/// An export that was not taken back.
struct Export {
    origin: blob::BlobOrigin,
    _mr: Mr,
}

impl Drop for Export {
    fn drop(&mut self) {
        // The region is dropped after this, so that the memory of every export in the table can be
        // reached.
        exports().remove(&self.origin.number);
    }
}

/// Returns the adapter's flags for these permissions of peers.
pub(in super::super) fn remote_flags(access: Access) -> ibv_access_flags {
    let mut flags = ibv_access_flags(0);
    for (permission, needs) in [
        (Access::RDMA_READ, ibv_access_flags::IBV_ACCESS_REMOTE_READ),
        (
            Access::RDMA_WRITE,
            ibv_access_flags::IBV_ACCESS_REMOTE_WRITE,
        ),
        (
            Access::RDMA_ATOMIC,
            ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC,
        ),
    ] {
        if access.contains(permission) {
            flags |= needs;
        }
    }
    flags
}

pub(in super::super) fn export(context: &Arc<Context>, offer: &ExportRequest) -> Result<Exported> {
    if offer.audience() != Audience::Rdma {
        let text = format!(
            "device {} is no DPU's: it exports to peers of an Rdma",
            context.name
        );
        return Err(Error::new(ErrorKind::NotSupported, None, text));
    }
    if !context.traits.caps().share_rdma {
        let text = format!("device {} has no Rdma", context.name);
        return Err(Error::new(ErrorKind::NotSupported, None, text));
    }
    let access = Audience::Rdma.part_of(offer.region().access());
    let mut flags = remote_flags(access);
    // If peers may write, the local side must be permitted to write, too (ibv_reg_mr(3)).
    if offer.region().access().local_writable() {
        flags |= ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
    }
    let (addr, len) = (offer.region().addr(), offer.region().len());
    // SAFETY: the domain belongs to the context. The range is valid until the Exported is dropped,
    // and for ever if the flag is set (`ExportRequest::new`).
    let mut mr = unsafe { Mr::register(context, context.pd(), addr, len, flags) }?;
    mr.leak_flag = Some(offer.leak_flag().clone());
    let origin = blob::BlobOrigin::new();
    let blob = MemoryBlob {
        origin,
        addr: addr.addr().get() as u64,
        len: len as u64,
        rkey: mr.rkey(),
        access,
    };
    exports().insert(origin.number, Weak::clone(offer.owner()));
    Ok(Exported::new(
        blob.format(),
        Box::new(Export { origin, _mr: mr }),
    ))
}

/// The origin of memory that another process exports. The check always succeeds: only an operation
/// shows whether the memory is still exported.
struct Far;

impl ImportOrigin for Far {
    fn check(&self) -> Result<(), JobError> {
        Ok(())
    }
}

/// The origin of memory that this process has exported, under this number.
struct Own(u64);

impl ImportOrigin for Own {
    fn check(&self) -> Result<(), JobError> {
        match exports().contains_key(&self.0) {
            true => Ok(()),
            false => Err(JobError::export_revoked()),
        }
    }
}

pub(in super::super) fn import(blob: &[u8]) -> Result<Imported> {
    let blob = MemoryBlob::parse(blob)?;
    let refuse = |kind, text: &'static str| Error::new(kind, None, text);
    let addr = usize::try_from(blob.addr).ok();
    let (Some(addr), Ok(len)) = (
        addr.and_then(std::num::NonZero::new),
        usize::try_from(blob.len),
    ) else {
        let text =
            "memory of a machine with longer addresses: an adapter of this one cannot name it";
        return Err(refuse(ErrorKind::NotSupported, text));
    };
    // Only the adapter uses the addresses of this memory.
    let addr = NonNull::new(std::ptr::without_provenance_mut(addr.get()))
        .ok_or_else(|| refuse(ErrorKind::InvalidValue, "memory at address 0"))?;
    let key = u64::from(blob.rkey) << 32;
    let imported = |origin| Imported::new(addr, len, blob.access, Audience::Rdma, key, origin);
    if !blob.origin.is_own() {
        // The peer's adapter resolves the key.
        return Ok(imported(Arc::new(Far)).lasting());
    }
    let number = blob.origin.number;
    let owner = exports().get(&number).and_then(Weak::upgrade);
    match owner {
        Some(owner) => Ok(imported(Arc::new(Own(number))).with_owner(owner)),
        None => Err(refuse(
            ErrorKind::NotPermitted,
            "this process has taken the memory back, or never exported it so",
        )),
    }
}
