//! Builds an Mmap over memory of every kind.
#![expect(unsafe_code, reason = "takes memory on the caller's word")]

use std::num::NonZeroUsize;
use std::ops::RangeBounds;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use bytes::Bytes;

use super::huge::HugePages;
use super::memory::Memory;
use super::mmap::Mmap;
use super::{devices, memfd, owner};
use crate::device::{Access, Device, RegistrationUse};
use crate::error::{Error, ErrorKind, Result};

/// Builds an [`Mmap`]: set the options first, then choose where its memory comes from.
///
/// ```
/// use tokio_doca::{Device, Mmap, mem::Access};
///
/// # let device = Device::open_default()?;
/// let builder = Mmap::builder().device(&device).access(Access::LOCAL_READ_WRITE);
/// let mmap = builder.alloc(1 << 20)?;                 // memory of its own
///
/// let file = vec![7; 4096];                           // memory of the application
/// let lent = Mmap::builder().device(&device).from_owner(file)?;
/// assert!(mmap.is_exportable() && !lent.is_exportable());
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "nothing is built before alloc or from_..."]
pub struct MmapBuilder {
    devices: Vec<Device>,
    access: Access,
    huge: Option<HugePages>,
    only_for: Option<RegistrationUse>,
}

impl Mmap {
    /// Returns a builder for a new Mmap.
    #[doc(alias = "doca_mmap_create")]
    pub fn builder() -> MmapBuilder {
        MmapBuilder {
            devices: Vec::new(),
            access: Access::default(),
            huge: None,
            only_for: None,
        }
    }
}

impl MmapBuilder {
    /// Adds a device to register the memory with. At least one device is needed, and at most
    /// [`Mmap::MAX_DEVICES`]; each can be added once.
    #[doc(alias = "doca_mmap_dev_add")]
    #[doc(alias = "doca_mmap_add_dev")]
    pub fn device(mut self, device: &Device) -> MmapBuilder {
        self.devices.push(device.clone());
        self
    }

    /// Sets the access that the Mmap grants to this process, its devices and peers. Defaults to
    /// `LOCAL_READ_WRITE`.
    #[doc(alias = "doca_mmap_set_permissions")]
    pub fn access(mut self, access: Access) -> MmapBuilder {
        self.access = access;
        self
    }

    /// Registers the memory for one use only: for copies of this process (and hashes, and an
    /// accelerator's jobs), or for remote operations. Defaults to both.
    ///
    /// An adapter makes a registration for each use, and the pages of each count against the limit
    /// of `ulimit -l`. With one use they count only once. A context for the other use refuses the
    /// Bufs ([`Reason::OtherUse`](crate::error::Reason::OtherUse)).
    pub fn only_for(mut self, purpose: RegistrationUse) -> MmapBuilder {
        self.only_for = Some(purpose);
        self
    }

    /// Sets the kind of huge pages that [`alloc`](MmapBuilder::alloc) uses. Defaults to pages of
    /// the system's usual size. If a kind is set, the `from_..` methods fail with `InvalidValue`.
    pub fn huge_pages(mut self, pages: HugePages) -> MmapBuilder {
        self.huge = Some(pages);
        self
    }

    /// Allocates `len` bytes, zeroed and populated, and registers them with each device.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if no device was added, if `len` is 0, or if the access flags contradict each
    /// other; `InUse` if a device was added twice; `NoMemory` if there is not enough memory, if
    /// there are not enough huge pages (the message says how to get some), or if too many devices
    /// were added; `NotSupported` for huge pages that the machine does not have; the error of a
    /// device that refuses the registration. After an error no device holds the memory.
    #[doc(alias = "doca_mmap_start")]
    pub fn alloc(self, len: usize) -> Result<Mmap> {
        const OP: &str = "MmapBuilder::alloc";
        self.check(OP)?;
        let size = not_empty(OP, len)?;
        let memory = memfd::alloc(size, self.huge)?;
        self.begin(OP, memory)
    }

    /// Allocates memory that is registered with no device, for Bufs that are only copied.
    pub(crate) fn alloc_for_copies(self, len: usize) -> Result<Mmap> {
        const OP: &str = "MmapBuilder::alloc";
        let memory = memfd::alloc(not_empty(OP, len)?, self.huge)?;
        self.begin(OP, memory)
    }

    /// Registers a range of the application's memfd, and populates it. The software device can
    /// export the memory only if the range is the whole memfd, since an importer gets the whole
    /// memfd.
    ///
    /// This call seals the memfd with `F_SEAL_SHRINK` (memfd_create(2), fcntl(2)): no process can
    /// shorten it from now on, since touching a page that was cut off would kill this process with
    /// SIGBUS. The memfd may still grow. Every other process that has the memfd, or a mapping of
    /// it, may write the memory at any time, and so may a peer. So Bufs of the Mmap lend no slices,
    /// and are reached by [`Buf::copy_out`](crate::Buf::copy_out),
    /// [`Buf::copy_in`](crate::Buf::copy_in), atomics and jobs. A memfd that is sealed with
    /// `F_SEAL_WRITE` cannot change any more: an Mmap of it must be `LOCAL_READ_ONLY`, and does
    /// lend slices.
    ///
    /// If the memfd has huge pages, another process that holds it can punch out pages. If the
    /// kernel has no huge pages to replace them, touching them kills this process with SIGBUS as
    /// well. Share such a memfd only with processes that you trust.
    ///
    /// ```
    /// # use tokio_doca::{mem::BufInventory, Device, Mmap};
    /// use std::os::fd::OwnedFd;
    /// use nix::sys::memfd::{MFdFlags, memfd_create};
    ///
    /// # let device = Device::open_default()?;
    /// let memfd: OwnedFd = memfd_create("shared", MFdFlags::MFD_ALLOW_SEALING)?;
    /// nix::unistd::ftruncate(&memfd, 65536)?;
    /// let mmap = Mmap::builder().device(&device).from_memfd(memfd.try_clone()?, 4096..)?;
    /// assert_eq!(mmap.len(), 61440);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `InvalidValue` if the descriptor is not a memfd, or if the range is empty, reaches past the
    /// end of the memfd, or does not begin at a multiple of the page size; `NotPermitted` if the
    /// memfd cannot be sealed, or is sealed against writing and the access is not
    /// `LOCAL_READ_ONLY`; `NoMemory` if missing pages cannot be allocated; and the errors of
    /// [`alloc`](MmapBuilder::alloc) for devices and access.
    pub fn from_memfd(
        self,
        memfd: impl Into<OwnedFd>,
        range: impl RangeBounds<usize>,
    ) -> Result<Mmap> {
        const OP: &str = "MmapBuilder::from_memfd";
        self.check_given(OP)?;
        let range = (range.start_bound().cloned(), range.end_bound().cloned());
        let memory = memfd::adopt(memfd.into(), range, self.access.local_writable())?;
        self.begin(OP, memory)
    }

    /// Registers the bytes of an owner: a `Vec<u8>`, a `BytesMut`, or another crate's mapping.
    ///
    /// The owner is moved to the heap, and asked once where its bytes are. It is dropped with the
    /// last handle or job that uses the Mmap, on any thread, possibly one that handles completions:
    /// so its `Drop` should not block. A panic in its `Drop` is contained. The software device
    /// cannot export such memory ([`Mmap::is_exportable`]). A child of `fork` inherits it, with
    /// what jobs have written by then.
    ///
    /// ```
    /// # use tokio_doca::{mem::BufInventory, Device, Mmap};
    /// # let device = Device::open_default()?;
    /// let mmap = Mmap::builder().device(&device).from_owner(b"as it was".to_vec())?;
    /// let buf = BufInventory::with_capacity(1).buf_filled(&mmap, 6..)?;
    /// assert_eq!(&buf.data()?[..], b"was");
    /// # Ok::<(), tokio_doca::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `InvalidValue` if the owner has no bytes, and the errors of [`alloc`](MmapBuilder::alloc)
    /// for devices and access. The owner is dropped on failure.
    #[doc(alias = "doca_mmap_set_memrange")]
    #[doc(alias = "doca_mmap_populate")]
    #[doc(alias = "doca_mmap_set_memory_range")]
    pub fn from_owner<O>(self, owner: O) -> Result<Mmap>
    where
        O: AsMut<[u8]> + Send + 'static,
    {
        const OP: &str = "MmapBuilder::from_owner";
        self.check_given(OP)?;
        let memory = owner::lend(owner);
        not_empty(OP, memory.len())?;
        self.begin(OP, memory)
    }

    /// Registers `Bytes`, so that jobs can read them where they are. The access is
    /// `LOCAL_READ_ONLY`, whatever was set.
    ///
    /// The Mmap has a handle of the `Bytes`, which it drops as
    /// [`from_owner`](MmapBuilder::from_owner) drops an owner. The software device cannot export
    /// such memory.
    ///
    /// ```
    /// # use tokio_doca::{mem::BufInventory, Device, Mmap};
    /// # let device = Device::open_default()?;
    /// let text = bytes::Bytes::from_static(b"as it is");
    /// let mmap = Mmap::builder().device(&device).from_bytes(text)?;
    /// let buf = BufInventory::with_capacity(1).buf_filled(&mmap, ..)?;
    /// assert_eq!(&buf.data()?[..], b"as it is");
    /// # Ok::<(), tokio_doca::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `InvalidValue` if `bytes` is empty, or if the access that was set lets a peer write; and the
    /// errors of [`alloc`](MmapBuilder::alloc) for devices.
    pub fn from_bytes(mut self, bytes: Bytes) -> Result<Mmap> {
        const OP: &str = "MmapBuilder::from_bytes";
        if self.access.peer_writable() {
            let text = "Bytes never change: a peer cannot be permitted to write them";
            return Err(Error::new(ErrorKind::InvalidValue, OP, text));
        }
        self.access.remove(Access::LOCAL_READ_WRITE);
        self.access.insert(Access::LOCAL_READ_ONLY);
        self.check_given(OP)?;
        not_empty(OP, bytes.len())?;
        // SAFETY: no party writes an Mmap with this access.
        let memory = unsafe { owner::lend_bytes(bytes) };
        self.begin(OP, memory)
    }

    /// Makes an Mmap of the `len` bytes from `addr` on. `free` takes them back: it is called once,
    /// with `addr` and `len`, when the last user of the Mmap (a handle, Buf or job) is gone.
    ///
    /// `free` runs on the thread that drops the last user, possibly while the thread handles a
    /// completion: so `free` should not block. A panic in `free` is contained. The software device
    /// cannot export such memory ([`Mmap::is_exportable`]).
    ///
    /// # Safety
    ///
    /// Until `free` is called, or for ever if a user of the Mmap is forgotten:
    ///
    /// - the range is valid for reads, and for writes too unless the access is `LOCAL_READ_ONLY`,
    ///   and all its bytes are initialized (`std::ptr`, "Safety");
    /// - no other party writes the range, or reads it except through this Mmap, and no reference
    ///   into it is used. If the access lets peers write, other processes may write the range.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if `len` is 0 or the range wraps around, and the errors of
    /// [`alloc`](MmapBuilder::alloc) for devices and access. On failure `free` is dropped without
    /// being called: the memory is still the caller's.
    #[doc(alias = "doca_mmap_set_memrange")]
    #[doc(alias = "doca_mmap_set_free_cb")]
    pub unsafe fn from_raw<F>(self, addr: NonNull<u8>, len: usize, free: F) -> Result<Mmap>
    where
        F: FnOnce(NonNull<u8>, usize) + Send + 'static,
    {
        const OP: &str = "MmapBuilder::from_raw";
        self.check_given(OP)?;
        not_empty(OP, len)?;
        if addr.addr().get().saturating_add(len) > isize::MAX as usize {
            let text = format!("{len} bytes from {addr:?} on end behind the address space");
            return Err(Error::new(ErrorKind::InvalidValue, OP, text));
        }
        // SAFETY: as the caller promises.
        let memory = unsafe { Memory::lent(addr, len, Box::new(free)) };
        self.begin(OP, memory)
    }

    fn begin(self, op: &'static str, memory: Memory) -> Result<Mmap> {
        Mmap::begin(memory, self.access, self.devices, self.only_for)
            .map_err(|error| error.with_call(op))
    }

    fn check(&self, op: &'static str) -> Result<()> {
        self.access.validate(op)?;
        devices::check(op, &self.devices)
    }

    /// Checks the settings for memory that the caller gives.
    fn check_given(&self, op: &'static str) -> Result<()> {
        self.check(op)?;
        if self.huge.is_some() {
            let text = "huge_pages() is for alloc(): other memory has the pages that it has";
            return Err(Error::new(ErrorKind::InvalidValue, op, text));
        }
        Ok(())
    }
}

fn not_empty(op: &'static str, len: usize) -> Result<NonZeroUsize> {
    NonZeroUsize::new(len).ok_or_else(|| {
        let text = "0 bytes: an Mmap has at least one";
        Error::new(ErrorKind::InvalidValue, op, text)
    })
}
