//! The DPU's proxies of the functions behind one of its devices: what there is, and an open one.

use std::fmt;
use std::sync::Arc;

use super::{Device, PciAddr, PciFunction};
use crate::error::{Error, ErrorKind, Result};

/// What a representor stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RepKind {
    /// A network function.
    Net,
    /// A function that the DPU emulates, such as one of storage.
    Emulated,
}

/// Which representors are listed (`doca_dev_rep_filter`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[doc(alias = "doca_dev_rep_filter")]
pub enum RepFilter {
    /// All of them.
    #[default]
    All,
    /// Those of network functions.
    Net,
    /// Those of emulated functions.
    Emulated,
}

impl RepFilter {
    fn takes(self, kind: RepKind) -> bool {
        match self {
            RepFilter::All => true,
            RepFilter::Net => kind == RepKind::Net,
            RepFilter::Emulated => kind == RepKind::Emulated,
        }
    }
}

/// Which lists of representors a device has; none, by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RepCaps {
    /// Of all of them.
    #[doc(alias = "doca_devinfo_rep_get_is_list_all_supported")]
    pub all: bool,
    /// Of those of network functions.
    #[doc(alias = "doca_devinfo_rep_get_is_list_net_supported")]
    pub net: bool,
    /// Of those of emulated functions.
    #[doc(alias = "doca_devinfo_rep_get_is_list_emulated_supported")]
    pub emulated: bool,
}

impl RepCaps {
    /// All three lists.
    pub const ALL: RepCaps = RepCaps {
        all: true,
        net: true,
        emulated: true,
    };

    /// Whether there is a list by this filter.
    pub fn supports(&self, filter: RepFilter) -> bool {
        match filter {
            RepFilter::All => self.all,
            RepFilter::Net => self.net,
            RepFilter::Emulated => self.emulated,
        }
    }
}

/// What can be opened as a [`Representor`]: a snapshot, of when it was listed, which changes with nothing (Core guide 3.2.2).
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "doca_devinfo_rep")]
pub struct RepInfo(Arc<Inner>);

#[derive(Debug, PartialEq, Eq)]
struct Inner {
    name: String,
    vuid: String,
    pci_addr: Option<PciAddr>,
    function: PciFunction,
    kind: RepKind,
}

impl RepInfo {
    /// For providers: describes a representor. The `vuid` is that of its function, which no other function has, and which stays
    /// when the address changes.
    pub fn new(
        name: impl Into<String>,
        vuid: impl Into<String>,
        pci_addr: impl Into<Option<PciAddr>>,
        function: PciFunction,
        kind: RepKind,
    ) -> RepInfo {
        RepInfo(Arc::new(Inner {
            name: name.into(),
            vuid: vuid.into(),
            pci_addr: pci_addr.into(),
            function,
            kind,
        }))
    }

    /// Its own name (`hpf0`).
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The unique name of its function.
    #[doc(alias = "doca_devinfo_rep_get_vuid")]
    pub fn vuid(&self) -> &str {
        &self.0.vuid
    }

    /// Where its function sits; `None` if that is no PCI function.
    #[doc(alias = "doca_devinfo_rep_get_pci_addr_str")]
    pub fn pci_addr(&self) -> Option<PciAddr> {
        self.0.pci_addr
    }

    /// What kind of function it stands for.
    #[doc(alias = "doca_devinfo_rep_get_pci_func_type")]
    pub fn function(&self) -> PciFunction {
        self.0.function
    }

    /// Whether it stands for a network function or an emulated one.
    pub fn kind(&self) -> RepKind {
        self.0.kind
    }

    /// Whether `name` names it: its name, its vuid, or the PCI address of its function in either form.
    pub fn is_named(&self, name: &str) -> bool {
        self.name() == name
            || self.vuid() == name
            || name.parse::<PciAddr>().is_ok_and(|addr| *self == addr)
    }
}

impl PartialEq<PciAddr> for RepInfo {
    /// `doca_devinfo_rep_get_is_pci_addr_equal`.
    fn eq(&self, addr: &PciAddr) -> bool {
        self.pci_addr() == Some(*addr)
    }
}

impl Device {
    /// The representors behind it, as they are now.
    ///
    /// # Errors
    ///
    /// `NotSupported` if it has no such list ([`Caps::representors`](super::Caps::representors)): all devices of a host, and those of
    /// the DPU that are no port.
    #[doc(alias = "doca_devinfo_rep_list_create")]
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
/// Clones are the same one. It keeps its device open.
///
/// ```
/// use tokio_doca::soft::{Soft, View};
/// use tokio_doca::{RepFilter, Representor};
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
    /// Opens the representor with this name (`hpf0`), vuid, or PCI address of its function (`0b:00.0`).
    ///
    /// # Errors
    ///
    /// `NotFound`, with the names that there are; `NotSupported` if the device has no representors.
    pub fn open(device: &Device, name: &str) -> Result<Representor> {
        let find = |info: &RepInfo| info.is_named(name);
        Representor::find(device, &format!("\"{name}\""), find)
            .map_err(|error| error.with_call("Representor::open"))
    }

    /// Opens what was listed, as it is now: the function of that vuid.
    ///
    /// # Errors
    ///
    /// `NotFound` if it has gone since; `NotSupported` if the device has no representors.
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

    /// Its device: the port that it is behind.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// What it was when it was opened.
    #[doc(alias = "doca_dev_rep_as_devinfo")]
    pub fn info(&self) -> &RepInfo {
        &self.info
    }

    /// Whether its function is still there.
    ///
    /// # Errors
    ///
    /// `NotFound` if it has gone.
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
