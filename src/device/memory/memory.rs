//! Registration of memory with a device: one [`Registration`] per Mmap, device and use.
#![expect(
    unsafe_code,
    reason = "a Region is an address, and an implementor of Registrar decides which memory a key names"
)]

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::time::Instant;

use super::access::Access;
use super::share::{ExportRequest, Exported, Imported};
use crate::error::{Error, ErrorKind, Result};

/// A range of memory to be registered.
///
/// Devices read and write the range, so safe code cannot make a Region:
///
/// ```compile_fail,E0451
/// use std::ptr::NonNull;
/// use tokio_doca::{device::Region, mem::Access};
///
/// Region { addr: NonNull::<u8>::dangling(), len: 4096, access: Access::default() };
/// ```
///
/// ```compile_fail,E0133
/// # use std::ptr::NonNull;
/// # use tokio_doca::{device::Region, mem::Access};
/// Region::new(NonNull::<u8>::dangling(), 4096, Access::default());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Region {
    addr: NonNull<u8>,
    len: usize,
    access: Access,
}

impl Region {
    /// Describes a range of memory. The crate makes a Region for each Mmap; tests of a provider
    /// make their own.
    ///
    /// # Safety
    ///
    /// Once each [`Registration`] and each [`Exported`] made of the Region or of a copy of it has
    /// been dropped, no code uses the Region. Until then:
    ///
    /// - `len` bytes from `addr` on are readable, and writable if `access` contains
    ///   `LOCAL_READ_WRITE`;
    /// - this process accesses these bytes only as `access` and the Leases of the jobs that name
    ///   the bytes allow.
    pub const unsafe fn new(addr: NonNull<u8>, len: usize, access: Access) -> Region {
        Region { addr, len, access }
    }

    /// Returns the address of the first byte. Memory that the application owns may begin anywhere;
    /// other memory begins at a page.
    pub const fn addr(&self) -> NonNull<u8> {
        self.addr
    }

    /// Returns the length in bytes.
    #[allow(clippy::len_without_is_empty)] // it never is
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns the access flags that the Mmap was built with.
    pub const fn access(&self) -> Access {
        self.access
    }
}

/// The use that a [`Registration`] is made for.
///
/// The uses differ on an adapter. There, a Dma is a loopback queue pair in a separate protection
/// domain with separate registrations, so that a write permission for copies gives peers no access.
///
/// ```
/// use tokio_doca::{Device, Mmap, device::RegistrationUse};
///
/// # let device = Device::open_default()?;
/// // A pool for messages, for an Rdma and not for a Dma: an adapter pins its pages once.
/// let mmap = Mmap::builder()
///     .device(&device)
///     .only_for(RegistrationUse::Rdma)
///     .alloc(1 << 20)?;
/// # drop(mmap);
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegistrationUse {
    /// For copies by a Dma of this process.
    Dma,
    /// For memory that peers access, and for messages to them.
    Rdma,
}

/// Registers memory with a device, exports it, and imports memory that was exported.
///
/// The crate lends memory to a device under the keys that its Registrar returns, and reaches
/// imported memory at the addresses that the Registrar returns. So the crate's soundness rests on
/// these duties, which the contract's test suite calls *registrar duties*:
///
/// 1. A key from `register` names the bytes of the Region, and no others, on every queue of the
///    same device. Any two registrations are independent: when one is dropped the other stays.
/// 2. After a [`Registration`] was dropped, the device does not touch the memory.
/// 3. A blob from `export` gives its audience the bytes of the Region, with no more access than
///    the Region has for that audience. After the [`Exported`] was dropped, no later job of an
///    importer reaches the memory, unless [`LeakFlag::set`](crate::device::LeakFlag::set)
///    was called before.
/// 4. `import` describes the exported memory: the device reaches `len` bytes at `addr` by the key
///    until the [`ImportOrigin`](crate::device::ImportOrigin) is dropped. After that, if the import
///    is [`lasting`](crate::device::Imported::lasting), the key reaches no memory of this process.
///    `access` is no more than the exporter permits. If this process exported the memory, the owner
///    is that of its [`ExportRequest`], and `addr` and `len` are those of its Region. Otherwise no
///    other code of this process uses the bytes. A blob is untrusted input: everything in it is
///    checked.
///
/// Safe code cannot make a Registrar:
///
/// ```compile_fail,E0200
/// use tokio_doca::device::RegistrationUse;
/// use tokio_doca::device::contract::{Region, Registrar, Registration};
///
/// struct Mine;
///
/// impl Registrar for Mine {
///     fn register(&self, _: &Region, _: RegistrationUse) -> tokio_doca::Result<Registration> {
///         Ok(Registration::new(0x4141_4141_4140, None))
///     }
/// }
/// ```
///
/// # Safety
///
/// Implementors keep these duties, and pass a Region or an `ExportRequest` on only to code that
/// keeps them too.
pub unsafe trait Registrar {
    /// Registers a range for a use. The range is valid until the Registration is dropped.
    ///
    /// # Errors
    ///
    /// `NoMemory` beyond a limit (the message names it), `NotSupported` for a use that the device
    /// does not have.
    fn register(&self, region: &Region, purpose: RegistrationUse) -> Result<Registration>;

    /// Exports registered memory, so that a process that has the blob can use it.
    ///
    /// # Errors
    ///
    /// `NotSupported` if the device cannot export this memory to this audience; other kinds name
    /// the resource that could not be obtained.
    fn export(&self, offer: &ExportRequest) -> Result<Exported> {
        let text = format!(
            "this device exports no memory to {} peers",
            offer.audience()
        );
        Err(Error::new(ErrorKind::NotSupported, None, text))
    }

    /// Imports memory that another process, or this one, has exported. It may block until the
    /// deadline.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if the bytes are no blob, or were truncated or tampered with; `NotSupported`
    /// if this device cannot import the blob; `NotPermitted` if the exporter does not know it;
    /// `ConnectionReset` if the exporter has gone; `TimedOut` at the deadline; other kinds name the
    /// resource that could not be obtained.
    fn import(&self, _blob: &[u8], _deadline: Instant) -> Result<Imported> {
        let text = "this device imports no memory";
        Err(Error::new(ErrorKind::NotSupported, None, text))
    }
}

/// Memory that is registered with a device. Dropping it deregisters the memory; no job that uses
/// the memory may be in flight then.
pub struct Registration {
    key: u64,
    _guard: Option<Box<dyn Any + Send + Sync>>,
}

impl Registration {
    /// Returns a Registration whose guard, when dropped, deregisters the memory.
    pub fn new(key: u64, guard: Option<Box<dyn Any + Send + Sync>>) -> Registration {
        Registration { key, _guard: guard }
    }

    /// Returns the key that Segments carry: an adapter's `lkey`, or another number that the
    /// provider chooses.
    #[doc(alias = "lkey")]
    pub fn key(&self) -> u64 {
        self.key
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration")
            .field("key", &self.key)
            .finish()
    }
}
