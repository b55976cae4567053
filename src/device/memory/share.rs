//! Shared memory: one process exports it, and another process imports it.
#![expect(unsafe_code, reason = "an import carries an address")]

use std::any::Any;
use std::fmt;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Weak};

use super::access::Access;
use super::memory::Region;
use crate::error::JobError;

/// The kind of importer that an export is for.
///
/// ```
/// use tokio_doca::{Device, Mmap, device::Audience, mem::{Access, RemoteMmap}};
///
/// # let device = Device::open_default()?;
/// let access = Access::LOCAL_READ_WRITE | Access::RDMA_READ;
/// let mmap = Mmap::builder().device(&device).access(access).alloc(4096)?;
/// let remote = RemoteMmap::from_export(&device, &mmap.export_rdma(&device)?).wait()?;
/// assert_eq!(remote.audience(), Audience::Rdma);      // for an Rdma, and not for a Dma
/// assert!(remote.audience().may_read(remote.access()));
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Audience {
    /// Peers of an Rdma (`doca_mmap_export_rdma`).
    Rdma,
    /// The DPU, or a process that acts as one (`doca_mmap_export_dpu`).
    Dpu,
}

impl Audience {
    /// Returns true if the access flags of an Mmap let this audience read.
    pub const fn may_read(self, access: Access) -> bool {
        access.intersects(match self {
            Audience::Rdma => Access::RDMA_READ,
            Audience::Dpu => Access::DPU_READ_ONLY.union(Access::DPU_READ_WRITE),
        })
    }

    /// Returns true if the access flags of an Mmap let this audience write.
    pub const fn may_write(self, access: Access) -> bool {
        access.intersects(match self {
            Audience::Rdma => Access::RDMA_WRITE,
            Audience::Dpu => Access::DPU_READ_WRITE,
        })
    }

    /// Returns true if the access flags of an Mmap let this audience do atomic operations.
    pub const fn may_do_atomics(self, access: Access) -> bool {
        matches!(self, Audience::Rdma) && access.intersects(Access::RDMA_ATOMIC)
    }

    /// Returns the flags of `access` that concern this audience.
    pub const fn part_of(self, access: Access) -> Access {
        access.intersection(match self {
            Audience::Rdma => Access::RDMA_READ
                .union(Access::RDMA_WRITE)
                .union(Access::RDMA_ATOMIC),
            Audience::Dpu => Access::DPU_READ_ONLY.union(Access::DPU_READ_WRITE),
        })
    }
}

impl fmt::Display for Audience {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Audience::Rdma => "RDMA",
            Audience::Dpu => "DPU",
        })
    }
}

/// The memfd that an Mmap's memory is a part of.
#[derive(Clone, Debug)]
pub struct Backing {
    /// The memfd.
    pub memfd: Arc<OwnedFd>,
    /// The offset of the memory in the memfd, a multiple of the page size.
    pub offset: u64,
}

/// A request to export memory.
///
/// An import reaches the memory and uses its owner, so safe code cannot make an `ExportRequest`:
///
/// ```compile_fail,E0133
/// use std::sync::Weak;
/// use tokio_doca::device::Audience;
/// use tokio_doca::device::contract::{ExportRequest, LeakFlag, Region};
///
/// fn forge(region: Region, owner: Weak<Vec<u8>>) -> ExportRequest {
///     ExportRequest::new(region, None, Audience::Rdma, owner, LeakFlag::default())
/// }
/// ```
#[derive(Clone)]
pub struct ExportRequest {
    region: Region,
    backing: Option<Backing>,
    audience: Audience,
    owner: Weak<dyn Any + Send + Sync>,
    leak_flag: LeakFlag,
}

/// A flag that is set if peers may still reach exported memory after the export was dropped.
#[derive(Clone, Debug, Default)]
pub struct LeakFlag(Arc<AtomicBool>);

impl LeakFlag {
    /// Sets the flag: the device could not take an export back. The crate then keeps the memory for
    /// ever, and does not reuse it. The provider calls this before the [`Exported`] has been
    /// dropped.
    pub fn set(&self) {
        self.0.store(true, SeqCst);
    }

    /// Returns true if the flag was set.
    pub fn is_set(&self) -> bool {
        self.0.load(SeqCst)
    }
}

impl ExportRequest {
    /// Describes an export. The crate makes a request for each export of an Mmap; tests of a
    /// provider make their own.
    ///
    /// # Safety
    ///
    /// The memory of the Region belongs to `owner`. If there is a `backing`, the memory begins at
    /// `backing.offset` in its memfd. The memory stays valid until the [`Exported`] was dropped,
    /// and for ever if `leak_flag` was set by then.
    pub unsafe fn new(
        region: Region,
        backing: Option<Backing>,
        audience: Audience,
        owner: Weak<dyn Any + Send + Sync>,
        leak_flag: LeakFlag,
    ) -> ExportRequest {
        ExportRequest {
            region,
            backing,
            audience,
            owner,
            leak_flag,
        }
    }

    /// Returns the memory, with the access flags of its Mmap. It is registered with the device.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Returns the memfd that the memory lies in; `None` if it lies in no memfd.
    pub fn backing(&self) -> Option<&Backing> {
        self.backing.as_ref()
    }

    /// Returns the audience of the export. The Region's access flags permit this audience to use
    /// the memory.
    pub fn audience(&self) -> Audience {
        self.audience
    }

    /// Returns the owner of the memory, which an import by the same process hands back
    /// ([`Imported::with_owner`]).
    pub fn owner(&self) -> &Weak<dyn Any + Send + Sync> {
        &self.owner
    }

    /// Returns the flag that the provider sets if it cannot take the export back.
    pub fn leak_flag(&self) -> &LeakFlag {
        &self.leak_flag
    }
}

/// An export. Dropping it takes the memory back: jobs that importers begin later fail. If the
/// memory cannot be taken back, the provider sets [`ExportRequest::leak_flag`].
pub struct Exported {
    blob: Vec<u8>,
    _guard: Box<dyn Any + Send + Sync>,
}

impl Exported {
    /// Returns an export whose guard, when dropped, takes the memory back.
    pub fn new(blob: Vec<u8>, guard: Box<dyn Any + Send + Sync>) -> Exported {
        Exported {
            blob,
            _guard: guard,
        }
    }

    /// Returns the blob that an importer needs: at most 1,024 bytes.
    pub fn blob(&self) -> &[u8] {
        &self.blob
    }
}

/// Exported memory, as the importing device reaches it.
///
/// The crate trusts an `Imported` only if [`Registrar::import`](crate::device::Registrar::import)
/// returns it; the duties of that trait say what the fields promise.
#[non_exhaustive]
pub struct Imported {
    /// The address that Segments of the memory carry. It is meant for the device alone; no other
    /// code dereferences it.
    pub addr: NonNull<u8>,
    /// The length in bytes.
    pub len: usize,
    /// The access flags of the exporter's Mmap, as far as they concern the audience.
    pub access: Access,
    /// The audience that the memory was exported for.
    pub audience: Audience,
    /// The key that Segments carry.
    pub key: u64,
    /// [`ExportRequest::owner`], if this process exported the memory.
    pub owner: Option<Arc<dyn Any + Send + Sync>>,
    /// The origin, which keeps the import valid until it is dropped.
    pub origin: Arc<dyn ImportOrigin>,
    /// True if jobs need not keep the origin ([`Imported::lasting`]).
    pub lasting: bool,
}

impl Imported {
    /// Returns an import of another process's memory.
    pub fn new(
        addr: NonNull<u8>,
        len: usize,
        access: Access,
        audience: Audience,
        key: u64,
        origin: Arc<dyn ImportOrigin>,
    ) -> Imported {
        Imported {
            addr,
            len,
            access,
            audience,
            key,
            owner: None,
            origin,
            lasting: false,
        }
    }

    /// Marks memory that the device reaches without the origin, such as memory whose keys the
    /// peer's adapter resolves. Jobs then need not keep the import alive, which costs less.
    pub fn lasting(mut self) -> Imported {
        self.lasting = true;
        self
    }

    /// Sets the owner, for memory of this process whose owner still exists.
    pub fn with_owner(mut self, owner: Arc<dyn Any + Send + Sync>) -> Imported {
        self.owner = Some(owner);
        self
    }
}

// SAFETY: no code dereferences the address through an `Imported`.
unsafe impl Send for Imported {}

/// The origin of imported memory, which knows whether the memory is still exported.
pub trait ImportOrigin: Send + Sync {
    /// Checks whether the memory is still exported.
    ///
    /// # Errors
    ///
    /// [`JobError::export_revoked`] if the owner took the memory back, [`JobError::exporter_gone`]
    /// if the owner's process has ended.
    fn check(&self) -> Result<(), JobError>;
}
