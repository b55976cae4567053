//! Devices that can be opened: their identity and capabilities.

use std::sync::Arc;

use super::caps::Caps;
use super::pci::{PciAddr, PciFunction};

/// A device that can be opened: a snapshot of its identity and capabilities.
///
/// ```
/// use tokio_doca::Device;
/// use tokio_doca::device::{DevInfo, PciAddr};
///
/// let infos: Vec<DevInfo> = Device::list()?;
/// let address: PciAddr = "0b:00.0".parse()?;
/// let found = infos.iter().find(|info| **info == address);
/// let info = found.expect("the software device has it");
/// assert_eq!((info.name(), info.provider()), ("pf0", "soft"));
/// let device = Device::open(info.name())?;
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "doca_devinfo")]
pub struct DevInfo(Arc<DevInfoInner>);

#[derive(Debug, PartialEq, Eq)]
struct DevInfoInner {
    provider: &'static str,
    name: String,
    pci_addr: Option<PciAddr>,
    function: PciFunction,
    caps: Caps,
}

impl DevInfo {
    /// Describes a device. Providers call this.
    pub fn new(
        provider: &'static str,
        name: impl Into<String>,
        pci_addr: impl Into<Option<PciAddr>>,
        function: PciFunction,
        caps: Caps,
    ) -> DevInfo {
        DevInfo(Arc::new(DevInfoInner {
            provider,
            name: name.into(),
            pci_addr: pci_addr.into(),
            function,
            caps,
        }))
    }

    /// Returns the name of the device's provider.
    pub fn provider(&self) -> &'static str {
        self.0.provider
    }

    /// Returns the name by which the device is opened.
    #[doc(alias = "doca_devinfo_get_ibdev_name")]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the device's PCI address, or `None` if the device is not a PCI function (Soft-RoCE).
    #[doc(alias = "doca_devinfo_get_pci_addr_str")]
    pub fn pci_addr(&self) -> Option<PciAddr> {
        self.0.pci_addr
    }

    /// Returns the kind of the PCI function. An adapter that is not a PCI function (Soft-RoCE) has
    /// [`PciFunction::Pf`].
    pub fn function(&self) -> PciFunction {
        self.0.function
    }

    /// Returns the device's capabilities.
    pub fn caps(&self) -> &Caps {
        &self.0.caps
    }

    /// Returns true if `name` is the device's name, or its PCI address in full (`0000:0b:00.0`) or
    /// in short (`0b:00.0`).
    #[doc(alias = "doca_devinfo_get_is_pci_addr_equal")]
    #[doc(alias = "doca_devinfo_is_equal_pci_addr")]
    pub fn is_named(&self, name: &str) -> bool {
        self.name() == name || name.parse::<PciAddr>().is_ok_and(|addr| *self == addr)
    }
}

impl PartialEq<PciAddr> for DevInfo {
    /// Returns true if the device has this PCI address (`doca_devinfo_get_is_pci_addr_equal`).
    fn eq(&self, addr: &PciAddr) -> bool {
        self.pci_addr() == Some(*addr)
    }
}
