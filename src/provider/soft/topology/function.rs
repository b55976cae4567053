//! The ports and functions of a card, as a program describes them. [`Topology`] checks them.
//!
//! [`Topology`]: super::Topology

use crate::device::{PciAddr, PciFunction, RepKind};

/// A port of the card: a device in the DPU's view, with the functions behind it.
///
/// ```
/// use tokio_doca::soft::{Function, Port, Topology};
///
/// let pf = |name, address: &str| address.parse().map(|address| Function::pf(name, address));
/// let p0 = Port::new("p0", "03:00.0".parse()?).function(pf("pf0", "0b:00.0")?);
/// let p1 = Port::new("p1", "03:00.1".parse()?).function(pf("pf1", "0b:00.1")?);
/// let card = Topology::new([p0, p1])?;
/// # drop(card);
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    pub(super) name: String,
    pub(super) addr: PciAddr,
    pub(super) functions: Vec<Function>,
}

/// A function behind a port: a device in the host's or the DPU's view, and a representor on the
/// DPU.
///
/// ```
/// use tokio_doca::device::RepFilter;
/// use tokio_doca::soft::{Function, Soft, Topology, View};
///
/// // A virtual function is plugged into the default card.
/// let vf = Function::vf("vf9", "0b:03.1".parse()?).representor("tenant9");
/// let card = Topology::default().plug("p0", vf)?;
/// let soft = Soft::builder().view(View::Dpu).topology(card).build();
/// let listed = soft.open("p0")?.representors(RepFilter::Net)?;
/// assert!(listed.iter().any(|info| info.name() == "tenant9"));
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    pub(super) name: String,
    pub(super) kind: PciFunction,
    /// The PCI address; `None` for a sub-function, which uses the one of its port.
    pub(super) own_addr: Option<PciAddr>,
    pub(super) representor: String,
    emulated: bool,
}

impl Port {
    /// Returns a port with this name, at this address of the DPU.
    pub fn new(name: impl Into<String>, addr: PciAddr) -> Port {
        Port {
            name: name.into(),
            addr,
            functions: Vec::new(),
        }
    }

    /// Adds a function behind the port.
    #[must_use = "it is the port with the function"]
    pub fn function(mut self, function: Function) -> Port {
        self.functions.push(function);
        self
    }
}

impl Function {
    /// Returns a physical function of the host. Its representor is named `h` followed by `name`.
    pub fn pf(name: impl Into<String>, addr: PciAddr) -> Function {
        Function::of_host(name.into(), addr, PciFunction::Pf)
    }

    /// Returns a virtual function of the host. Its representor is named `h` followed by `name`.
    pub fn vf(name: impl Into<String>, addr: PciAddr) -> Function {
        Function::of_host(name.into(), addr, PciFunction::Vf)
    }

    /// Returns a sub-function, which is a device of the DPU. Its representor has the name that
    /// Linux would give it: for `p0s0` it is `pf0sf0`.
    pub fn sf(name: impl Into<String>) -> Function {
        let name = name.into();
        Function {
            representor: name.replacen('p', "pf", 1).replacen('s', "sf", 1),
            name,
            kind: PciFunction::Sf,
            own_addr: None,
            emulated: false,
        }
    }

    fn of_host(name: String, addr: PciAddr, kind: PciFunction) -> Function {
        Function {
            representor: format!("h{name}"),
            name,
            kind,
            own_addr: Some(addr),
            emulated: false,
        }
    }

    /// Sets the name of the function's representor.
    #[must_use = "it is the function with the name"]
    pub fn representor(mut self, name: impl Into<String>) -> Function {
        self.representor = name.into();
        self
    }

    /// Makes this a function that the DPU emulates. By default a function is a network function.
    #[must_use = "it is the function that is emulated"]
    pub fn emulated(mut self) -> Function {
        self.emulated = true;
        self
    }

    /// Returns the address on the bus of the function's view. A sub-function has the address of its
    /// port.
    pub(super) fn addr(&self, port: &Port) -> PciAddr {
        self.own_addr.unwrap_or(port.addr)
    }

    /// Returns true if the function is a device of the host's view.
    pub(super) fn is_hosts(&self) -> bool {
        self.kind != PciFunction::Sf
    }

    pub(super) fn rep_kind(&self) -> RepKind {
        match self.emulated {
            true => RepKind::Emulated,
            false => RepKind::Net,
        }
    }
}
