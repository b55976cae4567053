//! The ports and functions of a card, as code or a file gives them; [`Topology`] checks them.
//!
//! The tables are private, so that `serde` is no part of the public API.
//!
//! [`Topology`]: super::Topology

use std::fmt;

use serde::Deserialize;
use toml::Spanned;

use crate::device::{PciAddr, PciFunction, RepKind};

/// A port of the card: a device of the DPU's view, and the parent of functions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port(pub(super) PortTable);

/// A function behind a port: a device of one view, and a representor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function(pub(super) FunctionTable);

/// `[[port]]` of the file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PortTable {
    pub(super) name: Spanned<String>,
    pub(super) address: Spanned<Address>,
    #[serde(default, rename = "function")]
    pub(super) functions: Vec<FunctionTable>,
}

/// `[[port.function]]` of the file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FunctionTable {
    pub(super) name: Spanned<String>,
    #[serde(with = "Kind")]
    pub(super) kind: PciFunction,
    /// `None` for a sub-function.
    pub(super) address: Option<Spanned<Address>>,
    pub(super) representor: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) emulated: bool,
}

#[derive(Deserialize)]
#[serde(remote = "PciFunction", rename_all = "lowercase")]
enum Kind {
    Pf,
    Vf,
    Sf,
}

/// A PCI address, written as a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Address(pub(super) PciAddr);

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(text: String) -> Result<Address, String> {
        let addr = text.parse::<PciAddr>();
        addr.map(Address)
            .map_err(|error| error.message().to_owned())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Wraps a value that comes from no file.
pub(super) fn unwritten<T>(value: T) -> Spanned<T> {
    Spanned::new(0..0, value)
}

impl Port {
    /// Returns a port of this name, at this address of the DPU.
    pub fn new(name: impl Into<String>, addr: PciAddr) -> Port {
        Port(PortTable {
            name: unwritten(name.into()),
            address: unwritten(Address(addr)),
            functions: Vec::new(),
        })
    }

    /// Adds a function behind the port.
    #[must_use = "it is the port with the function"]
    pub fn function(mut self, function: Function) -> Port {
        self.0.functions.push(function.0);
        self
    }
}

impl Function {
    /// Returns a physical function of the host. Its representor is called `h` and its name.
    pub fn pf(name: impl Into<String>, addr: PciAddr) -> Function {
        Function::new(name.into(), Some(addr), PciFunction::Pf)
    }

    /// Returns a virtual function of the host. Its representor is called `h` and its name.
    pub fn vf(name: impl Into<String>, addr: PciAddr) -> Function {
        Function::new(name.into(), Some(addr), PciFunction::Vf)
    }

    /// Returns a sub-function, which is a device of the DPU. Its representor has the name that
    /// Linux would give it: that of `p0s0` is `pf0sf0`.
    pub fn sf(name: impl Into<String>) -> Function {
        Function::new(name.into(), None, PciFunction::Sf)
    }

    fn new(name: String, addr: Option<PciAddr>, kind: PciFunction) -> Function {
        let mut table = FunctionTable {
            name: unwritten(name),
            kind,
            address: addr.map(|addr| unwritten(Address(addr))),
            representor: None,
            emulated: false,
        };
        table.name_representor();
        Function(table)
    }

    /// Gives its representor another name.
    #[must_use = "it is the function with the name"]
    pub fn representor(mut self, name: impl Into<String>) -> Function {
        self.0.representor = Some(unwritten(name.into()));
        self
    }

    /// Makes it a function that the DPU emulates, and no network function.
    #[must_use = "it is the function that is emulated"]
    pub fn emulated(mut self) -> Function {
        self.0.emulated = true;
        self
    }
}

impl PortTable {
    pub(super) fn addr(&self) -> PciAddr {
        self.address.get_ref().0
    }
}

impl FunctionTable {
    /// Its address on the bus of its view: a sub-function has that of its port.
    pub(super) fn addr(&self, port: &PortTable) -> PciAddr {
        self.address
            .as_ref()
            .map_or(port.addr(), |own| own.get_ref().0)
    }

    /// Whether it is a device of the host's view.
    pub(super) fn is_hosts(&self) -> bool {
        self.kind != PciFunction::Sf
    }

    /// Gives the representor its default name if it has none.
    pub(super) fn name_representor(&mut self) {
        self.representor = Some(self.representor());
    }

    /// The name of its representor, with the place in the file that decides it.
    pub(super) fn representor(&self) -> Spanned<String> {
        let name = self.name.get_ref();
        self.representor.clone().unwrap_or_else(|| {
            let default = match self.kind {
                PciFunction::Sf => name.replacen('p', "pf", 1).replacen('s', "sf", 1),
                PciFunction::Pf | PciFunction::Vf => format!("h{name}"),
            };
            Spanned::new(self.name.span(), default)
        })
    }

    pub(super) fn rep_kind(&self) -> RepKind {
        match self.emulated {
            true => RepKind::Emulated,
            false => RepKind::Net,
        }
    }
}
