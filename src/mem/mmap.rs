//! A registered memory range: a populated memfd mapping that devices hold.
#![expect(unsafe_code, reason = "maps memory, and hands out its address")]

use std::fmt;
use std::num::NonZeroUsize;
use std::ops::{Bound, Range, RangeBounds};
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags};

use super::ranges::Ranges;
use crate::device::{Access, Device, DeviceId, Region, Registration, Use};
use crate::error::{Error, ErrorKind, JobError, Reason, Result};
use crate::sync::{Mutex, MutexGuard, lock};

/// A memory range that devices hold (Core guide 3.3.1). Clones are the same range.
///
/// The memory is zeroed, populated when it is made (a page fault costs as much as copying 20 to 40 pages), and not
/// inherited by a child of `fork`. It goes when the last handle, Buf and Lease has gone.
///
/// ```
/// use tokio_doca::{Access, Device, Mmap};
///
/// let device = Device::open_default()?;
/// let mmap = Mmap::builder().device(&device).access(Access::LOCAL_READ_WRITE).alloc(1 << 20)?;
/// assert_eq!(mmap.len(), 1 << 20);
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone)]
#[doc(alias = "doca_mmap")]
pub struct Mmap(pub(super) Arc<Inner>);

pub(super) struct Inner {
    /// Dropped by hand, before the memory is unmapped.
    held: Vec<Held>,
    access: Access,
    ranges: Mutex<Ranges>,
    memory: Mapping,
}

/// What one device holds of the range.
struct Held {
    id: DeviceId,
    dma: Registration,
    _device: Device,
}

/// The mapping; unmapped on drop.
struct Mapping {
    base: NonNull<u8>,
    len: usize,
    _file: OwnedFd,
}

// SAFETY: it is a range of memory, and who may touch which bytes is decided by Leases.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mmap {
    /// Begins a new Mmap.
    #[doc(alias = "doca_mmap_create")]
    pub fn builder() -> MmapBuilder {
        MmapBuilder {
            devices: Vec::new(),
            access: Access::default(),
        }
    }

    /// How many bytes.
    #[allow(clippy::len_without_is_empty)] // it never is
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// What it was built with.
    pub fn access(&self) -> Access {
        self.0.access
    }

    /// Whether its Bufs lend slices ([`Buf::data`](super::Buf::data)): not where a peer may write at any time.
    pub fn lends_slices(&self) -> bool {
        !self.0.is_shared()
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

impl Inner {
    pub(super) fn len(&self) -> usize {
        self.memory.len
    }

    pub(super) fn access(&self) -> Access {
        self.access
    }

    /// Whether somebody else may write the memory at any time.
    pub(super) fn is_shared(&self) -> bool {
        self.access.peer_writable()
    }

    /// Where the byte at `offset` is; one past the end is allowed.
    pub(super) fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(offset <= self.memory.len);
        // SAFETY: the offset was checked to lie within the mapping, or one past its end.
        unsafe { self.memory.base.add(offset) }
    }

    pub(super) fn ranges(&self) -> MutexGuard<'_, Ranges> {
        lock(&self.ranges)
    }

    /// The first device, and the key that it knows this memory by.
    pub(super) fn first(&self) -> (DeviceId, u64) {
        let first = &self.held[0];
        (first.id, first.dma.key())
    }

    /// The key that a device knows this memory by.
    #[cold]
    pub(super) fn key(&self, device: DeviceId) -> Result<u64, JobError> {
        match self.held.iter().find(|held| held.id == device) {
            Some(held) => Ok(held.dma.key()),
            None => Err(JobError::of(Reason::ForeignDevice)),
        }
    }

    /// A range in numbers; `Err` has its end if it does not lie in `0..len` or is empty.
    pub(super) fn resolve(
        range: impl RangeBounds<usize>,
        len: usize,
    ) -> Result<Range<usize>, usize> {
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
        if start >= end || end > len {
            Err(end)
        } else {
            Ok(start..end)
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The devices let go of the memory before it is unmapped.
        self.held.clear();
    }
}

impl Mapping {
    fn new(len: NonZeroUsize) -> Result<Mapping> {
        const OP: &str = "MmapBuilder::alloc";
        let fail = |call: &str| {
            let what = format!("{call} for {len} bytes");
            move |errno: Errno| Error::os(OP, what, errno.into())
        };
        let size = i64::try_from(len.get()).map_err(|_| fail("ftruncate")(Errno::EFBIG))?;
        if let Some(available) = available().filter(|&available| len.get() as u64 > available) {
            let text = format!("{len} bytes, and {available} are available on this machine");
            return Err(Error::new(ErrorKind::NoMemory, OP, text));
        }
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = memfd_create(c"tokio-doca", flags).map_err(fail("memfd_create"))?;
        nix::unistd::ftruncate(&file, size).map_err(fail("ftruncate"))?;
        // Takes the pages now: too few are an error here, and not a signal at the first touch.
        fallocate(&file, FallocateFlags::empty(), 0, size).map_err(fail("fallocate"))?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe { nix::sys::mman::mmap(None, len, protection, flags, &file, 0) }
            .map_err(fail("mmap"))?;
        let mapping = Mapping {
            base: base.cast(),
            len: len.get(),
            _file: file,
        };
        // SAFETY: the range is the mapping just made; the advice changes only what a child inherits.
        unsafe { nix::sys::mman::madvise(base, len.get(), MmapAdvise::MADV_DONTFORK) }
            .map_err(fail("madvise"))?;
        Ok(mapping)
    }
}

/// Bytes that could be had without swapping, if the kernel says so. Pages of a memfd are not accounted for, and populating
/// too many of them would call the OOM killer instead of failing.
fn available() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new`, and nothing that could reach it is left: Bufs and Leases hold
        // the Mmap, and the devices let go of it before.
        let unmapped = unsafe { nix::sys::mman::munmap(self.base.cast(), self.len) };
        if let Err(errno) = unmapped {
            tracing::error!(%errno, len = self.len, "munmap failed; the range is leaked");
        }
    }
}

/// Builds an [`Mmap`].
#[derive(Debug)]
#[must_use = "nothing is built before alloc"]
pub struct MmapBuilder {
    devices: Vec<Device>,
    access: Access,
}

impl MmapBuilder {
    /// A device that shall hold the memory. At least one is needed; each can be named once.
    #[doc(alias = "doca_mmap_dev_add")]
    pub fn device(mut self, device: &Device) -> MmapBuilder {
        self.devices.push(device.clone());
        self
    }

    /// Who may do what; `LOCAL_READ_WRITE` if not said.
    #[doc(alias = "doca_mmap_set_permissions")]
    pub fn access(mut self, access: Access) -> MmapBuilder {
        self.access = access;
        self
    }

    /// Makes the memory: `len` bytes, zeroed and populated, registered with each device.
    ///
    /// # Errors
    ///
    /// `InvalidValue` without a device or for no bytes, or if the access flags contradict each other; `InUse` if a
    /// device was named twice; `NoMemory` if there is not enough; whatever the device says of the registration.
    #[doc(alias = "doca_mmap_start")]
    pub fn alloc(self, len: usize) -> Result<Mmap> {
        const OP: &str = "MmapBuilder::alloc";
        self.access.validate(OP)?;
        if self.devices.is_empty() {
            return Err(Error::new(
                ErrorKind::InvalidValue,
                OP,
                "no device: name one with device()",
            ));
        }
        for (i, device) in self.devices.iter().enumerate() {
            if self.devices[..i].contains(device) {
                let text = format!("device {} was named twice", device.info().name());
                return Err(Error::new(ErrorKind::InUse, OP, text));
            }
        }
        let Some(size) = NonZeroUsize::new(len) else {
            return Err(Error::new(
                ErrorKind::InvalidValue,
                OP,
                "0 bytes: an Mmap has at least one",
            ));
        };
        let memory = Mapping::new(size)?;
        let region = Region {
            addr: memory.base,
            len,
            access: self.access,
        };
        let mut held = Vec::with_capacity(self.devices.len());
        for device in self.devices {
            let dma = device.adapter().registrar().register(&region, Use::Dma)?;
            held.push(Held {
                id: device.id(),
                dma,
                _device: device,
            });
        }
        Ok(Mmap(Arc::new(Inner {
            held,
            access: self.access,
            ranges: Mutex::new(Ranges::new()),
            memory,
        })))
    }
}
