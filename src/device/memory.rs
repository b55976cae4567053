//! How a device comes to hold memory: one Registration per Mmap, device and use.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::time::Instant;

use super::{Access, Exported, Imported, Offer};
use crate::error::{Error, ErrorKind, Result};

/// A range of memory to be registered.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// Where it starts. Memory of the application's begins anywhere, other memory at a page.
    pub addr: NonNull<u8>,
    /// How many bytes.
    pub len: usize,
    /// What the Mmap was built with.
    pub access: Access,
}

/// What a Registration is made for.
///
/// They differ on an adapter: its Dma is a loopback queue pair in a protection domain of its own, with
/// registrations of its own, so that a write permission there opens nothing to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Use {
    /// For copies of this process.
    Dma,
    /// For what peers reach, and what is sent to them.
    Rdma,
}

/// Registers memory with a device.
pub trait Registrar {
    /// Registers a range for a use. The range is valid until the Registration is dropped.
    ///
    /// # Errors
    ///
    /// `NoMemory` beyond a limit (the message names it), `NotSupported` for a use that the device does not have.
    fn register(&self, region: &Region, purpose: Use) -> Result<Registration>;

    /// Exports registered memory, so that who has the blob can use it.
    ///
    /// # Errors
    ///
    /// `NotSupported` if the device exports nothing, not to this audience, or not this memory; what could not be had.
    fn export(&self, offer: &Offer) -> Result<Exported> {
        let text = format!("this device exports no memory to {} peers", offer.audience);
        Err(Error::new(ErrorKind::NotSupported, "export", text))
    }

    /// Imports what another process, or this one, has exported. It may block, until the deadline at most.
    ///
    /// # Errors
    ///
    /// `InvalidValue` for what is no blob, is truncated or was tampered with; `NotSupported` for one that this device cannot
    /// import; `NotPermitted` if the exporter does not know it; `ConnectionReset` if the exporter has gone; `TimedOut`; what could
    /// not be had.
    fn import(&self, _blob: &[u8], _deadline: Instant) -> Result<Imported> {
        let text = "this device imports no memory";
        Err(Error::new(ErrorKind::NotSupported, "import", text))
    }
}

/// Memory that a device holds. Dropping it takes the memory from the device; nothing may be in flight then.
pub struct Registration {
    key: u64,
    _guard: Option<Box<dyn Any + Send + Sync>>,
}

impl Registration {
    /// A Registration whose guard, when dropped, deregisters.
    pub fn new(key: u64, guard: Option<Box<dyn Any + Send + Sync>>) -> Registration {
        Registration { key, _guard: guard }
    }

    /// The key that Segments carry: an `lkey`, or whatever the provider wants back.
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
