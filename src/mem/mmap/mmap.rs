//! A memory range that is registered with devices.
#![expect(unsafe_code, reason = "hands out addresses within its memory")]

use std::any::Any;
use std::fmt;
use std::ops::{Bound, Range, RangeBounds};
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use super::devices::{self, Holder, KeyEntry, Keys, Registrations};
use super::exports::Export;
use super::memory::Memory;
use crate::device::{
    Access, Audience, Backing, Device, ExportRequest, LeakFlag, Region, RegistrationUse,
};
use crate::error::{JobError, Reason, Result};
use crate::mem::ranges::{Ranges, Stage};
use crate::sync::{Mutex, MutexGuard, lock, log};

/// A memory range that is registered with devices (DOCA Core guide 3.3.1). Clones refer to the same
/// range.
///
/// Memory that [`MmapBuilder::alloc`](crate::mem::MmapBuilder::alloc) makes is zeroed, populated (a
/// page fault costs as much as copying 20 to 40 pages), and not inherited by a child of `fork`. The
/// application's own memory can be used as well:
///
/// | memory | may be exported | slices | inherited by a child of `fork` |
/// |---|---|---|---|
/// | `alloc` | yes | yes | no |
/// | `from_memfd` | yes; by the software device only if it is the whole memfd | if the memfd is sealed with `F_SEAL_WRITE` | no |
/// | `from_owner`, `from_bytes`, `from_raw` | by adapters only | yes | as without the Mmap |
///
/// An Mmap that a peer may write lends no slices, whatever its memory is ([`Mmap::lends_slices`]).
/// The memory is given back when the last handle, Buf and lease are gone.
///
/// ```
/// use tokio_doca::{mem::Access, Device, Mmap};
///
/// let device = Device::open_default()?;
/// let mmap = Mmap::builder().device(&device).access(Access::LOCAL_READ_WRITE).alloc(1 << 20)?;
/// assert_eq!(mmap.len(), 1 << 20);
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone)]
#[doc(alias = "doca_mmap")]
pub struct Mmap(pub(in crate::mem) Arc<MmapInner>);

pub(in crate::mem) struct MmapInner {
    /// The registrations; none while the Mmap is stopped. `drop` takes them back before the memory
    /// goes.
    held: Mutex<Vec<Registrations>>,
    /// The exports, which `drop` takes back before anything else.
    exports: Mutex<Vec<Export>>,
    keys: Keys,
    access: Access,
    /// The only use that the memory is registered for, or `None` for all that the devices have.
    only_for: Option<RegistrationUse>,
    ranges: Mutex<Ranges>,
    leak_flag: LeakFlag,
    memory: Memory,
}

impl Mmap {
    /// The maximum number of devices that an Mmap is registered with. The Mmap has a table of their
    /// keys, so that a job finds its key without a lock.
    #[doc(alias = "doca_mmap_set_max_num_devices")]
    #[doc(alias = "doca_mmap_get_max_num_devices")]
    pub const MAX_DEVICES: usize = devices::MAX;

    /// Returns the length in bytes.
    #[allow(clippy::len_without_is_empty)] // it never is
    pub fn len(&self) -> usize {
        self.0.memory.len()
    }

    /// Returns the access that the Mmap was built with.
    pub fn access(&self) -> Access {
        self.0.access
    }

    /// Returns the devices with which the memory is registered, in the order in which they were
    /// added; none while the Mmap is stopped.
    pub fn devices(&self) -> Vec<Device> {
        let held = lock(&self.0.held);
        held.iter().map(|held| held.device.clone()).collect()
    }

    /// Returns true if the memory is registered with devices, so that Bufs can be made on it. A new
    /// Mmap is started; [`Mmap::stop`] stops it.
    pub fn is_started(&self) -> bool {
        self.0.ranges().stage() == Stage::Started
    }

    /// Returns true if a pool, an array, a Buf of an inventory, the counter of a SyncEvent, or a
    /// [`RemoteBuf`](crate::mem::RemoteBuf) of an import by this process uses the Mmap. The Mmap
    /// then cannot be stopped.
    #[doc(alias = "doca_mmap_get_num_bufs")]
    pub fn is_in_use(&self) -> bool {
        self.0.ranges().is_used()
    }

    /// Returns true if the memory is in a memfd, as the software device requires of memory that it
    /// exports. Memory of `alloc` and `from_memfd` is in one; memory of `from_owner`, `from_bytes`
    /// and `from_raw` is not. An adapter exports any memory to the peers of an Rdma.
    /// [`Mmap::export_dpu`] lists the other conditions of an export.
    pub fn is_exportable(&self) -> bool {
        self.0.memory.memfd().is_some()
    }

    /// Returns true if Bufs of this Mmap lend slices ([`Buf::data`](crate::Buf::data)). They do not
    /// if a peer, or another process that has the memfd, may write the memory at any time.
    pub fn lends_slices(&self) -> bool {
        !self.0.is_shared()
    }

    /// Deregisters the memory from its devices, and revokes its exports. The bytes are not changed,
    /// and [`Mmap::start`] registers them again.
    ///
    /// # Errors
    ///
    /// `InUse` while the Mmap is in use ([`Mmap::is_in_use`]), or while a guard, a `Bytes` or a job
    /// uses a Buf of it; `BadState` if the Mmap is not started.
    #[doc(alias = "doca_mmap_stop")]
    pub fn stop(&self) -> Result<()> {
        self.0.ranges().begin_stop()?;
        let exports = std::mem::take(&mut *self.0.exports());
        let revoked = exports.len();
        drop(exports);
        if revoked > 0 {
            log(|| tracing::debug!(target: "tokio_doca::mem", exports = revoked, "revoked"));
        }
        let held = std::mem::take(&mut *lock(&self.0.held));
        // Dropped outside of the locks, since this runs code of the provider.
        drop(held);
        self.0.ranges().set_stage(Stage::Stopped);
        Ok(())
    }

    /// Registers the memory of a stopped Mmap with devices: with the same as before, or with
    /// others.
    ///
    /// ```
    /// # use tokio_doca::{Device, Mmap};
    /// let (one, other) = (Device::open("pf0")?, Device::open("pf1")?);
    /// let mmap = Mmap::builder().device(&one).alloc(4096)?;
    /// mmap.stop()?;
    /// mmap.start([&one, &other])?;
    /// assert_eq!(mmap.devices(), [one, other]);
    /// # Ok::<(), tokio_doca::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `BadState` if the Mmap is started; `InvalidValue` without a device; `InUse` if a device is
    /// named twice; `NoMemory` for more than [`Mmap::MAX_DEVICES`]; the error of a device that
    /// refuses the registration. If a device refuses, the Mmap stays stopped, and no device holds
    /// it.
    #[doc(alias = "doca_mmap_start")]
    #[doc(alias = "doca_mmap_dev_rm")]
    #[doc(alias = "doca_mmap_rm_dev")]
    pub fn start<'a>(&self, devices: impl IntoIterator<Item = &'a Device>) -> Result<()> {
        let devices: Vec<Device> = devices.into_iter().cloned().collect();
        const OP: &str = "Mmap::start";
        devices::check(OP, &devices)?;
        self.0.ranges().begin_start()?;
        let held = devices::register(devices, &self.0.region(), self.0.only_for)
            .inspect_err(|_| self.0.ranges().set_stage(Stage::Stopped))
            .map_err(|error| error.with_call(OP))?;
        self.0.keys.set(&held);
        *lock(&self.0.held) = held;
        self.0.ranges().set_stage(Stage::Started);
        Ok(())
    }

    /// Registers memory with devices that were checked, and makes an Mmap of it.
    pub(super) fn begin(
        memory: Memory,
        access: Access,
        devices: Vec<Device>,
        only_for: Option<RegistrationUse>,
    ) -> Result<Mmap> {
        let mut inner = MmapInner {
            held: Mutex::new(Vec::new()),
            exports: Mutex::new(Vec::new()),
            keys: Keys::new(),
            access,
            only_for,
            ranges: Mutex::new(Ranges::new()),
            leak_flag: LeakFlag::default(),
            memory,
        };
        match devices::register(devices, &inner.region(), only_for) {
            Ok(held) => {
                inner.keys.set(&held);
                *lock(&inner.held) = held;
                Ok(Mmap(Arc::new(inner)))
            }
            Err(error) => {
                inner.memory.give_up();
                Err(error)
            }
        }
    }
}

impl fmt::Debug for Mmap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mmap")
            .field("len", &self.len())
            .field("access", &self.access())
            .finish()
    }
}

impl MmapInner {
    pub(super) fn exports(&self) -> MutexGuard<'_, Vec<Export>> {
        lock(&self.exports)
    }

    pub(in crate::mem) fn backing(&self) -> Option<Backing> {
        self.memory.memfd()
    }

    pub(in crate::mem) fn region(&self) -> Region {
        let (addr, len) = (self.memory.base(), self.memory.len());
        // SAFETY: the memory stays until this is dropped, which takes exports and registrations
        // back first; a sync event in it keeps a Buf. Leases say who accesses it, and a writable
        // Mmap is of writable memory (`Memory`).
        unsafe { Region::new(addr, len, self.access) }
    }

    /// Returns the request to export this memory to an audience.
    pub(super) fn offer(self: &Arc<Self>, audience: Audience) -> ExportRequest {
        let owner: Weak<dyn Any + Send + Sync> = Arc::<MmapInner>::downgrade(self) as _;
        let leak_flag = self.leak_flag.clone();
        // SAFETY: region, memfd and owner are those of this memory. `drop` takes the exports back
        // before the memory goes, and keeps it if the flag was set.
        unsafe { ExportRequest::new(self.region(), self.backing(), audience, owner, leak_flag) }
    }

    pub(in crate::mem) fn access(&self) -> Access {
        self.access
    }

    /// Returns true if another process may write the memory at any time.
    pub(in crate::mem) fn is_shared(&self) -> bool {
        self.access.peer_writable() || self.memory.is_foreign()
    }

    /// Returns the address of the byte at `offset`; one past the end is allowed.
    pub(in crate::mem) fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(offset <= self.memory.len());
        // SAFETY: the offset was checked to lie within the memory, or one past its end.
        unsafe { self.memory.base().add(offset) }
    }

    pub(in crate::mem) fn ranges(&self) -> MutexGuard<'_, Ranges> {
        lock(&self.ranges)
    }

    /// Returns the devices' keys for this memory. Those of the first device come first.
    pub(in crate::mem) fn keys(&self) -> std::slice::Iter<'_, KeyEntry> {
        self.keys.iter()
    }

    /// Returns the holder's key for this memory.
    #[cold]
    pub(in crate::mem) fn key(&self, holder: Holder) -> Result<u64, JobError> {
        self.keys.key(holder)
    }

    /// Resolves the bounds of a range. Returns them as `Err` if the range is reversed or reaches
    /// past `len`.
    pub(in crate::mem) fn resolve(
        range: impl RangeBounds<usize>,
        len: usize,
    ) -> Result<Range<usize>, Range<usize>> {
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&start) => start.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&end) => end.saturating_add(1),
            Bound::Excluded(&end) => end,
            Bound::Unbounded => len,
        };
        if start > end || end > len {
            Err(start..end)
        } else {
            Ok(start..end)
        }
    }

    /// Resolves a range as `resolve` does, and refuses an empty one as well. `Err` says why.
    pub(in crate::mem) fn resolve_some(
        range: impl RangeBounds<usize>,
        len: usize,
        what: &str,
    ) -> Result<Range<usize>, String> {
        match MmapInner::resolve(range, len) {
            Ok(range) if range.is_empty() => Err(format!(
                "the range {range:?} is empty: take at least one byte"
            )),
            Ok(range) => Ok(range),
            Err(range) => Err(MmapInner::refusal(&range, len, what)),
        }
    }

    /// Returns the text that says why `resolve` refused this range of `what`, which has `len`
    /// bytes.
    #[cold]
    pub(in crate::mem) fn refusal(range: &Range<usize>, len: usize, what: &str) -> String {
        match MmapInner::not_within(range, len) {
            error if error.reason() == Reason::RangeReversed => error.to_string(),
            _ => format!("the range {range:?} reaches past the {len} bytes of {what}"),
        }
    }

    /// Returns the error that says why `resolve` refused this range.
    #[cold]
    pub(in crate::mem) fn not_within(range: &Range<usize>, len: usize) -> JobError {
        let reach = range.start.max(range.end);
        match reach > len {
            true => JobError::new(Reason::OutOfRange, len as u64, reach as u64),
            false => JobError::new(Reason::RangeReversed, range.start as u64, range.end as u64),
        }
    }
}

impl Drop for MmapInner {
    fn drop(&mut self) {
        drop(std::mem::take(&mut *lock(&self.exports)));
        // The devices let go of the memory before it is given back.
        drop(std::mem::take(&mut *lock(&self.held)));
        if self.leak_flag.is_set() {
            self.memory.leak();
        }
    }
}
