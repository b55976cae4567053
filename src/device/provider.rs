//! Providers of devices, open devices, and the handle that users hold.
#![expect(
    unsafe_code,
    reason = "an implementor of Adapter decides which queue reaches which memory"
)]

use std::ffi::c_void;
use std::fmt;
use std::net::SocketAddr;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::device::info::{DevInfo, RepInfo};
use crate::device::memory::Registrar;
use crate::device::queue::{
    CmArrivals, CmListening, EventConfig, EventCounter, Queue, QueueConfig, no_manager,
};
use crate::error::{Error, ErrorKind, Result};

/// A source of devices of one family, such as adapters.
pub trait Provider: Send + Sync {
    /// Returns the provider's name, the same as [`DevInfo::provider`].
    fn name(&self) -> &'static str;

    /// Returns the devices that can be opened now.
    ///
    /// # Errors
    ///
    /// If the provider cannot list its devices. An empty list is not an error.
    fn devices(&self) -> Result<Vec<DevInfo>>;

    /// Returns the device of `devices()` that `name` names, if there is one. Override this if
    /// devices have names besides those that [`DevInfo::is_named`] knows.
    ///
    /// # Errors
    ///
    /// As for `devices()`.
    fn find(&self, name: &str) -> Result<Option<DevInfo>> {
        let mut devices = self.devices()?.into_iter();
        Ok(devices.find(|info| info.is_named(name)))
    }

    /// Opens a device of `devices()`. Opening an open device yields the same one.
    ///
    /// # Errors
    ///
    /// `NotFound` if it has gone, `Initialization` if it cannot be opened.
    fn open(&self, info: &DevInfo) -> Result<Device>;

    /// Returns why no device of `devices()` is named `name`, and how to get such a device, if that
    /// is known. The `NotFound` error quotes this text.
    fn why_not(&self, _name: &str) -> Option<String> {
        None
    }
}

/// Says whether a device can still be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Liveness {
    /// The device works.
    Alive,
    /// The device is gone: Jobs in flight fail, and new ones are refused.
    Dead,
}

/// An open device, as its provider implements it.
///
/// The crate trusts what an Adapter reports of its device, and lends memory to its queues. So the
/// crate's soundness rests on these duties, which the contract's test suite calls *adapter duties*:
///
/// 1. Each `open_queue` returns a new queue, built with the given config, which only the caller
///    drives.
/// 2. The Registrar, queues, endpoints and sync events belong to one device: each accepts the keys
///    that the Registrar returned, and `registrar` returns that device's Registrar each time.
/// 3. `info` returns the same [`DevInfo`] each time. The queues, endpoints and sync events accept
///    whatever lies within its [`Caps`](super::Caps).
/// 4. A sync event with a [backing](super::EventConfig::backing) keeps its counter in the backing's
///    eight bytes, and accesses them as [`EventBacking::new`](super::EventBacking::new) says. It
///    accesses no other bytes of the Region, and none at all after the backing's `keep` was
///    dropped.
/// 5. The protection domain that `pd` returns stays allocated as long as the Adapter.
///
/// # Safety
///
/// Implementors keep these duties.
pub unsafe trait Adapter: Send + Sync {
    /// Returns the name, address and capabilities of the device.
    fn info(&self) -> &DevInfo;

    /// Returns the Registrar, which registers memory with the device.
    fn registrar(&self) -> &dyn Registrar;

    /// Makes a queue for a WorkQ.
    ///
    /// # Errors
    ///
    /// `NoMemory` or `Initialization`; the message names the resource that could not be obtained.
    fn open_queue(&self, config: QueueConfig) -> Result<Arc<dyn Queue>>;

    /// Returns the representors behind the device, as they are now. The crate calls this if
    /// [`Caps::representors`](super::Caps::representors) has a list.
    ///
    /// # Errors
    ///
    /// `NotSupported` if the device has none.
    fn representors(&self) -> Result<Vec<RepInfo>> {
        let text = format!("device {} has no representors", self.info().name());
        let kind = ErrorKind::NotSupported;
        Err(Error::new(kind, None, text))
    }

    /// Returns the name by which the Channels of a function and of its representor meet on this
    /// machine. The name has at most 48 bytes, and belongs to this function and its representor
    /// alone. If `representor` is `None`, the function is the device itself.
    ///
    /// # Errors
    ///
    /// `NotSupported` if there is no such name: Channels must then connect by TCP.
    fn channel_domain(&self, representor: Option<&RepInfo>) -> Result<String> {
        let of = representor.map_or(self.info().name(), RepInfo::name);
        let text = format!(
            "{of} has no other side on this machine: use a TCP address (ChannelBuilder::listen_tcp, connect_tcp)"
        );
        Err(Error::new(ErrorKind::NotSupported, None, text))
    }

    /// Listens at an address for connections by the network's connection manager (rdma_cm). The
    /// system keeps at most `_backlog` requests that the provider has not read yet. By default this
    /// is not supported.
    ///
    /// # Errors
    ///
    /// `NotSupported` without a connection manager, or if no adapter has the address;
    /// `InvalidValue` if another adapter has the address; `AlreadyExist` if a listener has it.
    fn listen_at(
        &self,
        _addr: SocketAddr,
        _backlog: u32,
        _arrivals: CmArrivals,
    ) -> Result<Box<dyn CmListening>> {
        Err(no_manager())
    }

    /// Checks, as far as the blob shows, whether an endpoint of this device can connect to the
    /// endpoint that exported the blob. Does not block, and contacts no peer. Streams that can fall
    /// back to TCP call this. By default there is no error.
    ///
    /// # Errors
    ///
    /// The reason why it cannot connect.
    fn check_peer(&self, _blob: &[u8]) -> Result<()> {
        Ok(())
    }

    /// Opens a sync event. Its counter starts at 0 or, in memory of the application, at the value
    /// found there.
    ///
    /// # Errors
    ///
    /// `NotSupported` if the device has no sync events, or none for the processors of the config;
    /// other kinds name the resource that could not be obtained.
    fn open_event(&self, _config: EventConfig) -> Result<Arc<dyn EventCounter>> {
        let text = "this device has no sync events";
        Err(Error::new(ErrorKind::NotSupported, None, text))
    }

    /// Imports a sync event that another process, or this one, has exported. It may block until the
    /// deadline.
    ///
    /// # Errors
    ///
    /// As for [`Registrar::import`]; `InUse` if the event is imported already.
    fn import_event(&self, _blob: &[u8], _deadline: Instant) -> Result<Arc<dyn EventCounter>> {
        let text = "this device imports no sync events";
        Err(Error::new(ErrorKind::NotSupported, None, text))
    }

    /// Returns whether the device can still be used.
    fn liveness(&self) -> Liveness {
        Liveness::Alive
    }

    /// Returns how many Jobs the device has finished, or `None` if it does not count them.
    fn jobs(&self) -> Option<u64> {
        None
    }

    /// Returns how long the device's engines (the threads of this process that do its Jobs) have
    /// worked, or `None` if the provider does not measure this.
    fn engine_time(&self) -> Option<Duration> {
        None
    }

    /// Returns the `ibv_pd` in which memory is registered for
    /// [`RegistrationUse::Rdma`](super::RegistrationUse::Rdma), or `None` if there is none. The
    /// lower 32 bits of a registration's key are the memory's key in that domain.
    fn pd(&self) -> Option<NonNull<c_void>> {
        None
    }
}

/// The identity of an open device, for comparing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceId(u64);

impl DeviceId {
    /// Returns the identity as a number, which no other device of this process has. The number is
    /// even, and never 0.
    pub fn as_raw(self) -> u64 {
        self.0
    }
}

/// An open device. Clones refer to the same device. The device closes when its last clone, Mmap and
/// context are dropped.
///
/// ```
/// use tokio_doca::Device;
///
/// let device = Device::open_default()?;               // the first device that copies
/// assert_eq!(device, Device::open("pf0")?);           // by name: the same device
///
/// let info = device.info();
/// println!("{} of provider {}", info.name(), info.provider());
/// assert!(info.caps().dma.is_some());
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone)]
#[doc(alias = "doca_dev")]
pub struct Device {
    id: DeviceId,
    adapter: Arc<dyn Adapter>,
}

impl Device {
    /// Returns the handle of a device that a provider has opened.
    pub fn from_adapter(adapter: Arc<dyn Adapter>) -> Device {
        static NEXT: AtomicU64 = AtomicU64::new(2);
        Device {
            id: DeviceId(NEXT.fetch_add(2, Ordering::Relaxed)),
            adapter,
        }
    }

    /// Returns the identity of the device.
    pub fn id(&self) -> DeviceId {
        self.id
    }

    /// Returns the name, address and capabilities of the device.
    #[doc(alias = "doca_dev_as_devinfo")]
    pub fn info(&self) -> &DevInfo {
        self.adapter.info()
    }

    /// Returns whether the device can still be used.
    pub fn liveness(&self) -> Liveness {
        self.adapter.liveness()
    }

    /// Returns how many jobs the device has finished since it was opened, or `None` if it does not
    /// count them.
    pub fn jobs(&self) -> Option<u64> {
        self.adapter.jobs()
    }

    /// Returns how long the device's engines (the threads of this process that do its jobs) have
    /// worked since it was opened, or `None` if its provider does not measure this. The time of an
    /// engine is added when the engine pauses.
    pub fn engine_time(&self) -> Option<Duration> {
        self.adapter.engine_time()
    }

    /// Returns the adapter's protection domain (`ibv_pd`), which holds this process's memory and
    /// endpoints. Applications that also use libibverbs may use it. It belongs to the device, and
    /// lives as long as the device: do not deallocate it. [`Buf::mkey`](crate::Buf::mkey) returns
    /// the keys of memory in it.
    ///
    /// # Errors
    ///
    /// `NotSupported` on a device that is no adapter.
    #[doc(alias = "doca_rdma_bridge_get_dev_pd")]
    #[doc(alias = "doca_dev_get_pd")]
    pub fn pd(&self) -> Result<NonNull<c_void>> {
        self.adapter.pd().ok_or_else(|| {
            let text = format!(
                "device {} is no adapter: it has no protection domain",
                self.info().name()
            );
            Error::new(ErrorKind::NotSupported, "Device::pd", text)
        })
    }

    /// Returns the provider's implementation of the device.
    pub fn adapter(&self) -> &Arc<dyn Adapter> {
        &self.adapter
    }
}

/// A reference to a [`Device`] that does not keep it open, for a provider that returns the same
/// Device while that is open.
pub struct WeakDevice {
    id: DeviceId,
    adapter: Weak<dyn Adapter>,
}

impl WeakDevice {
    /// Returns the device, if it is still open.
    pub fn upgrade(&self) -> Option<Device> {
        Some(Device {
            id: self.id,
            adapter: self.adapter.upgrade()?,
        })
    }
}

impl Device {
    /// Returns a handle that does not keep the device open.
    pub fn downgrade(&self) -> WeakDevice {
        WeakDevice {
            id: self.id,
            adapter: Arc::downgrade(&self.adapter),
        }
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Device) -> bool {
        self.id == other.id
    }
}

impl Eq for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("name", &self.info().name())
            .field("id", &self.id.0)
            .finish()
    }
}
