//! Representors (the DPU's proxies of functions) that can be opened, and which lists of them a
//! device has.

use std::sync::Arc;

use super::pci::{PciAddr, PciFunction};

/// The kind of function that a representor represents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RepKind {
    /// A network function.
    Net,
    /// A function that the DPU emulates, such as one of storage.
    Emulated,
}

/// Selects the representors that are listed (`doca_dev_rep_filter`).
///
/// ```
/// use tokio_doca::device::RepFilter;
/// use tokio_doca::soft::{Soft, View};
///
/// let dpu = Soft::builder().view(View::Dpu).build().open("p0")?;
/// let all = dpu.representors(RepFilter::All)?;
/// let net = dpu.representors(RepFilter::Net)?;
/// assert!(all.len() >= net.len());
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[doc(alias = "doca_dev_rep_filter")]
#[doc(alias = "doca_devinfo_rep_filter")]
pub enum RepFilter {
    /// All representors.
    #[doc(alias = "DOCA_DEV_REP_FILTER_ALL")]
    #[doc(alias = "DOCA_DEVINFO_REP_FILTER_ALL")]
    #[default]
    All,
    /// Representors of network functions.
    #[doc(alias = "DOCA_DEV_REP_FILTER_NET")]
    #[doc(alias = "DOCA_DEVINFO_REP_FILTER_NET")]
    Net,
    /// Representors of emulated functions.
    #[doc(alias = "DOCA_DEV_REP_FILTER_EMULATED")]
    #[doc(alias = "DOCA_DEVINFO_REP_FILTER_EMULATED")]
    Emulated,
}

impl RepFilter {
    /// Returns true if the filter selects representors of this kind.
    pub(in crate::device) fn takes(self, kind: RepKind) -> bool {
        match self {
            RepFilter::All => true,
            RepFilter::Net => kind == RepKind::Net,
            RepFilter::Emulated => kind == RepKind::Emulated,
        }
    }
}

/// The lists of representors that a device has. Defaults to none.
///
/// ```
/// use tokio_doca::Device;
/// use tokio_doca::device::RepFilter;
///
/// for info in Device::list()? {
///     if info.caps().representors.supports(RepFilter::Net) {
///         println!("{} is a port of a DPU", info.name());
///     }
/// }
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RepCaps {
    /// True if the device lists all representors.
    #[doc(alias = "doca_devinfo_rep_get_is_list_all_supported")]
    #[doc(alias = "doca_devinfo_rep_cap_is_filter_all_supported")]
    pub all: bool,
    /// True if the device lists the representors of network functions.
    #[doc(alias = "doca_devinfo_rep_get_is_list_net_supported")]
    #[doc(alias = "doca_devinfo_rep_cap_is_filter_net_supported")]
    pub net: bool,
    /// True if the device lists the representors of emulated functions.
    #[doc(alias = "doca_devinfo_rep_get_is_list_emulated_supported")]
    #[doc(alias = "doca_devinfo_rep_cap_is_filter_emulated_supported")]
    pub emulated: bool,
}

impl RepCaps {
    /// The device lists representors of all kinds.
    pub const ALL: RepCaps = RepCaps {
        all: true,
        net: true,
        emulated: true,
    };

    /// Returns true if the device can list the representors that `filter` selects.
    pub fn supports(&self, filter: RepFilter) -> bool {
        match filter {
            RepFilter::All => self.all,
            RepFilter::Net => self.net,
            RepFilter::Emulated => self.emulated,
        }
    }
}

/// A function that can be opened as a [`Representor`](crate::device::Representor): a snapshot,
/// taken when the function was listed (DOCA Core guide 3.2.2).
///
/// ```
/// use tokio_doca::device::{PciFunction, RepFilter, RepInfo, Representor};
/// use tokio_doca::soft::{Soft, View};
///
/// let dpu = Soft::builder().view(View::Dpu).build().open("p0")?;
/// let infos: Vec<RepInfo> = dpu.representors(RepFilter::Net)?;
/// for info in infos.iter().filter(|info| info.function() == PciFunction::Vf) {
///     let representor = Representor::open_info(&dpu, info)?;
///     println!("{} proxies the host's {:?}", info.name(), info.pci_addr());
/// #   let _ = representor;
/// }
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "doca_devinfo_rep")]
pub struct RepInfo(Arc<RepInfoInner>);

#[derive(Debug, PartialEq, Eq)]
struct RepInfoInner {
    name: String,
    vuid: String,
    pci_addr: Option<PciAddr>,
    function: PciFunction,
    kind: RepKind,
}

impl RepInfo {
    /// Describes a representor. Providers call this. `vuid` is the unique name of the represented
    /// function, which stays the same when the function's PCI address changes.
    pub fn new(
        name: impl Into<String>,
        vuid: impl Into<String>,
        pci_addr: impl Into<Option<PciAddr>>,
        function: PciFunction,
        kind: RepKind,
    ) -> RepInfo {
        RepInfo(Arc::new(RepInfoInner {
            name: name.into(),
            vuid: vuid.into(),
            pci_addr: pci_addr.into(),
            function,
            kind,
        }))
    }

    /// Returns the representor's own name (`hpf0`).
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the unique name of the represented function.
    #[doc(alias = "doca_devinfo_rep_get_vuid")]
    pub fn vuid(&self) -> &str {
        &self.0.vuid
    }

    /// Returns the PCI address of the represented function, or `None` if that is not a PCI
    /// function.
    #[doc(alias = "doca_devinfo_rep_get_pci_addr_str")]
    pub fn pci_addr(&self) -> Option<PciAddr> {
        self.0.pci_addr
    }

    /// Returns the kind of the represented PCI function.
    #[doc(alias = "doca_devinfo_rep_get_pci_func_type")]
    pub fn function(&self) -> PciFunction {
        self.0.function
    }

    /// Returns whether the represented function is a network function or an emulated one.
    pub fn kind(&self) -> RepKind {
        self.0.kind
    }

    /// Returns true if `name` is the representor's name, the [`vuid`](RepInfo::vuid) of its
    /// function, or the function's PCI address, in full or in short.
    #[doc(alias = "doca_devinfo_rep_get_is_pci_addr_equal")]
    #[doc(alias = "doca_devinfo_rep_is_equal_pci_addr")]
    pub fn is_named(&self, name: &str) -> bool {
        self.name() == name
            || self.vuid() == name
            || name.parse::<PciAddr>().is_ok_and(|addr| *self == addr)
    }
}

impl PartialEq<PciAddr> for RepInfo {
    /// Returns true if the represented function has this PCI address
    /// (`doca_devinfo_rep_get_is_pci_addr_equal`).
    fn eq(&self, addr: &PciAddr) -> bool {
        self.pci_addr() == Some(*addr)
    }
}
