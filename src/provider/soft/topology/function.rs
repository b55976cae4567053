//! What a card has: its ports, and the functions of each.

use crate::device::{PciAddr, PciFunction, RepKind};

/// A port of the card: a device of the DPU's view, and what it is the parent of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    pub(super) name: String,
    pub(super) addr: PciAddr,
    pub(super) functions: Vec<Function>,
}

impl Port {
    /// A port of this name, at this address of the DPU.
    pub fn new(name: impl Into<String>, addr: PciAddr) -> Port {
        Port {
            name: name.into(),
            addr,
            functions: Vec::new(),
        }
    }

    /// One more function behind it.
    #[must_use = "it is the port with the function"]
    pub fn function(mut self, function: Function) -> Port {
        self.functions.push(function);
        self
    }
}

/// A function behind a port: a device of one view, and a representor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    pub(super) name: String,
    /// `None` for a sub-function, which has its port's.
    pub(super) addr: Option<PciAddr>,
    pub(super) function: PciFunction,
    pub(super) representor: String,
    pub(super) kind: RepKind,
}

impl Function {
    /// A physical function of the host; its representor is called `h` and its name.
    pub fn pf(name: impl Into<String>, addr: PciAddr) -> Function {
        Function::new(name.into(), Some(addr), PciFunction::Pf)
    }

    /// A virtual function of the host; its representor is called `h` and its name.
    pub fn vf(name: impl Into<String>, addr: PciAddr) -> Function {
        Function::new(name.into(), Some(addr), PciFunction::Vf)
    }

    /// A sub-function, which is a device of the DPU; its representor is called as its port and itself are in Linux (`p0s0`: `pf0sf0`).
    pub fn sf(name: impl Into<String>) -> Function {
        Function::new(name.into(), None, PciFunction::Sf)
    }

    pub(super) fn new(name: String, addr: Option<PciAddr>, function: PciFunction) -> Function {
        let representor = match function {
            PciFunction::Sf => name.replacen('p', "pf", 1).replacen('s', "sf", 1),
            PciFunction::Pf | PciFunction::Vf => format!("h{name}"),
        };
        Function {
            name,
            addr,
            function,
            representor,
            kind: RepKind::Net,
        }
    }

    /// Another name for its representor.
    #[must_use = "it is the function with the name"]
    pub fn representor(mut self, name: impl Into<String>) -> Function {
        self.representor = name.into();
        self
    }

    /// It is emulated by the DPU, and no network function.
    #[must_use = "it is the function that is emulated"]
    pub fn emulated(mut self) -> Function {
        self.kind = RepKind::Emulated;
        self
    }

    /// Whether it is a device of the host's view.
    pub(super) fn is_hosts(&self) -> bool {
        self.function != PciFunction::Sf
    }
}
