//! How memory of one process comes to be used by another: exported here, imported there.
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

/// Whom an export is for.
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

    /// Returns true if they let it write.
    pub const fn may_write(self, access: Access) -> bool {
        access.intersects(match self {
            Audience::Rdma => Access::RDMA_WRITE,
            Audience::Dpu => Access::DPU_READ_WRITE,
        })
    }

    /// Returns true if they let it do atomic operations.
    pub const fn may_do_atomics(self, access: Access) -> bool {
        matches!(self, Audience::Rdma) && access.intersects(Access::RDMA_ATOMIC)
    }

    /// Returns the flags that concern it.
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
    /// It.
    pub memfd: Arc<OwnedFd>,
    /// Where the memory begins in it: at a page.
    pub offset: u64,
}

/// Memory that is to be exported.
///
/// An import of the export reaches the memory, and makes use of its owner, so safe code cannot make
/// an Offer:
///
/// ```compile_fail,E0133
/// use std::sync::Weak;
/// use tokio_doca::device::Audience;
/// use tokio_doca::device::contract::{ExportRequest, LeakFlag, Region};
///
/// fn forge(region: Region, owner: Weak<Vec<u8>>) -> Offer {
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

/// Says whether peers may reach exported memory after its exports were taken back.
#[derive(Clone, Debug, Default)]
pub struct LeakFlag(Arc<AtomicBool>);

impl LeakFlag {
    /// Records that the device could not take an export back: the crate keeps the memory for ever,
    /// and gives it to no other user. The provider calls this before the [`Exported`] is gone.
    pub fn set(&self) {
        self.0.store(true, SeqCst);
    }

    /// Returns true if the flag was set.
    pub fn is_set(&self) -> bool {
        self.0.load(SeqCst)
    }
}

impl ExportRequest {
    /// Describes an export. The crate makes one for each export of an Mmap; tests of a provider
    /// make their own.
    ///
    /// # Safety
    ///
    /// The memory of the Region is that of `owner`, and begins at `backing.offset` in `backing` if
    /// there is one. It stays valid until the [`Exported`] was dropped, and for ever if `leak_flag`
    /// was set by then.
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

    /// Returns the memfd of the memory; `None` if the memory is in none.
    pub fn backing(&self) -> Option<&Backing> {
        self.backing.as_ref()
    }

    /// Returns whom the export is for. The access flags have a permission for that audience.
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

/// An export. Dropping it takes the memory back: what importers begin later fails. If that fails,
/// the provider sets [`ExportRequest::leak_flag`].
pub struct Exported {
    blob: Vec<u8>,
    _guard: Box<dyn Any + Send + Sync>,
}

impl Exported {
    /// Returns an export whose guard, when dropped, takes it back.
    pub fn new(blob: Vec<u8>, guard: Box<dyn Any + Send + Sync>) -> Exported {
        Exported {
            blob,
            _guard: guard,
        }
    }

    /// Returns what an importer needs: at most 1,024 bytes.
    pub fn blob(&self) -> &[u8] {
        &self.blob
    }
}

/// Memory of an exporter's, as the importing device knows it.
///
/// It is believed only as the answer of [`Registrar::import`](crate::device::Registrar::import),
/// whose duties say what it promises.
#[non_exhaustive]
pub struct Imported {
    /// Where Segments of it point. It means something to the device alone, and is not touched
    /// otherwise.
    pub addr: NonNull<u8>,
    /// How many bytes.
    pub len: usize,
    /// What the exporter's Mmap was built with, as far as the audience is concerned.
    pub access: Access,
    /// Whom it was exported for.
    pub audience: Audience,
    /// The key that Segments carry.
    pub key: u64,
    /// [`ExportRequest::owner`], if this process exported it.
    pub owner: Option<Arc<dyn Any + Send + Sync>>,
    /// Keeps it until it is dropped.
    pub origin: Arc<dyn ImportOrigin>,
    /// Jobs need not keep the origin ([`Imported::lasting`]).
    pub lasting: bool,
}

impl Imported {
    /// Memory of another process.
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

    /// Memory that the device reaches without the origin, such as what the adapter of a peer
    /// resolves. A job on it keeps nothing of the import, which costs less.
    pub fn lasting(self) -> Imported {
        Imported {
            lasting: true,
            ..self
        }
    }

    /// Memory of this process, whose owner is still there.
    pub fn with_owner(self, owner: Arc<dyn Any + Send + Sync>) -> Imported {
        Imported {
            owner: Some(owner),
            ..self
        }
    }
}

// SAFETY: the address is not touched through it.
unsafe impl Send for Imported {}

/// Where imported memory is from.
pub trait ImportOrigin: Send + Sync {
    /// Checks whether the memory is still exported.
    ///
    /// # Errors
    ///
    /// [`JobError::export_revoked`] if its owner took it back, [`JobError::exporter_gone`] if that
    /// process has ended.
    fn check(&self) -> Result<(), JobError>;
}
