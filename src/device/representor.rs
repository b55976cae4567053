//! Representors: the DPU's proxies of the functions behind one of its devices.

use std::fmt;

use super::provider::Device;
use crate::device::info::{RepFilter, RepInfo};
use crate::error::{Error, ErrorKind, Result};

impl Device {
    /// Returns the representors behind this device, as they are now.
    ///
    /// # Errors
    ///
    /// `NotSupported` if the device has no such list
    /// ([`Caps::representors`](super::Caps::representors)): only ports of a DPU have any.
    #[doc(alias = "doca_devinfo_rep_list_create")]
    #[doc(alias = "doca_devinfo_rep_create_list")]
    pub fn representors(&self, filter: RepFilter) -> Result<Vec<RepInfo>> {
        const OP: &str = "Device::representors";
        let info = self.info();
        if !info.caps().representors.supports(filter) {
            let text = format!(
                "device {} lists no representors ({filter:?}): a port of the DPU does",
                info.name()
            );
            let kind = ErrorKind::NotSupported;
            return Err(Error::new(kind, OP, text));
        }
        let list = self.adapter().representors();
        let mut list = list.map_err(|error| error.with_call(OP))?;
        list.retain(|info| filter.takes(info.kind()));
        Ok(list)
    }
}

/// An open representor: the DPU's proxy of one function.
///
/// Clones refer to the same representor. A representor keeps its device open.
///
/// ```
/// use tokio_doca::soft::{Soft, View};
/// use tokio_doca::device::{RepFilter, Representor};
///
/// let dpu = Soft::builder().view(View::Dpu).build().open("p0")?;
/// for info in dpu.representors(RepFilter::Net)? {
///     println!("{} {} {:?}", info.name(), info.vuid(), info.pci_addr());
/// }
/// let representor = Representor::open(&dpu, "0b:00.2")?;         // by the address that the host sees
/// assert_eq!(representor.info().name(), "hpf0vf0");
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone)]
#[doc(alias = "doca_dev_rep")]
pub struct Representor {
    device: Device,
    info: RepInfo,
}

impl Representor {
    /// Opens a representor by its name (`hpf0`), or by the [`vuid`](RepInfo::vuid) or the PCI
    /// address (`0b:00.0`) of its function.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is no such representor (the message lists the names that exist);
    /// `NotSupported` if the device has no representors.
    pub fn open(device: &Device, name: &str) -> Result<Representor> {
        let find = |info: &RepInfo| info.is_named(name);
        Representor::find(device, &format!("\"{name}\""), find)
            .map_err(|error| error.with_call("Representor::open"))
    }

    /// Opens the function that `info` describes, in its present state. The function is found by its
    /// [`vuid`](RepInfo::vuid).
    ///
    /// # Errors
    ///
    /// `NotFound` if the function has gone since; `NotSupported` if the device has no representors.
    #[doc(alias = "doca_dev_rep_open")]
    pub fn open_info(device: &Device, info: &RepInfo) -> Result<Representor> {
        let find = |now: &RepInfo| now.vuid() == info.vuid();
        Representor::find(device, info.name(), find)
            .map_err(|error| error.with_call("Representor::open_info"))
    }

    fn find(
        device: &Device,
        what: &str,
        is_it: impl FnMut(&RepInfo) -> bool,
    ) -> Result<Representor> {
        let mut list = device.representors(RepFilter::All)?;
        if let Some(at) = list.iter().position(is_it) {
            return Ok(Representor {
                device: device.clone(),
                info: list.swap_remove(at),
            });
        }
        let names: Vec<&str> = list.iter().map(RepInfo::name).collect();
        let text = format!(
            "device {} has no representor {what}; there are: {}",
            device.info().name(),
            names.join(", ")
        );
        Err(Error::new(ErrorKind::NotFound, None, text))
    }

    /// Returns the device that the representor belongs to: a port of the DPU.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the function's names and address at the time of opening.
    #[doc(alias = "doca_dev_rep_as_devinfo")]
    pub fn info(&self) -> &RepInfo {
        &self.info
    }

    /// Checks that the represented function is still there.
    ///
    /// # Errors
    ///
    /// `NotFound` if the function has gone.
    pub fn check(&self) -> Result<()> {
        Representor::open_info(&self.device, &self.info)
            .map(drop)
            .map_err(|error| error.with_call("Representor::check"))
    }
}

impl PartialEq for Representor {
    fn eq(&self, other: &Representor) -> bool {
        self.device == other.device && self.info.vuid() == other.info.vuid()
    }
}

impl Eq for Representor {}

impl fmt::Debug for Representor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Representor")
            .field("name", &self.info.name())
            .field("device", &self.device.info().name())
            .finish()
    }
}
