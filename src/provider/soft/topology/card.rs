//! A card with its ports and functions, checked as a whole, and the devices of each view.

use super::{Function, Port, View};
use crate::device::{Caps, DevInfo, PciAddr, PciFunction, RepCaps, RepInfo};
use crate::error::{Error, ErrorKind, Result};

/// The serial number of a card for which the program sets none.
const CARD: &str = "TD0000X00000";

/// A card: its serial number, its ports, and the functions behind each.
///
/// The two sides of one card are processes whose topologies have the same serial number. The serial
/// number defaults to `TD0000X00000`; `TOKIO_DOCA_SOFT_CARD=NAME` sets the serial number for the
/// default software device. A topology is built in code:
///
/// ```
/// use tokio_doca::device::contract::Provider;
/// use tokio_doca::soft::{Function, Port, Soft, Topology, View};
///
/// let pf0 = Function::pf("pf0", "0b:00.0".parse()?);
/// let p0 = Port::new("p0", "03:00.0".parse()?).function(pf0);
/// let topology = Topology::new([p0])?.with_card("TD0000X00001")?;
///
/// let dpu = Soft::builder().view(View::Dpu).topology(topology).build();
/// assert_eq!(dpu.devices()?.len(), 1);
/// # Ok::<(), tokio_doca::Error>(())
/// ```
///
/// Names have 1 to 15 lower-case letters, digits, `_` and `-`. No two devices have the same name,
/// nor two representors. No two ports, and no two functions of the host, have the same PCI
/// address. A card has 1 to 255 ports, and a port at most 1,024 functions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    card: String,
    pub(super) ports: Vec<Port>,
}

impl Default for Topology {
    /// Returns the card of the figure in the Core guide: five host functions, and two ports with
    /// a sub-function each.
    fn default() -> Topology {
        let host = |function| PciAddr::new(0x0b, 0, function);
        let dpu = |function| PciAddr::new(0x03, 0, function);
        let p0 = Port::new("p0", dpu(0))
            .function(Function::pf("pf0", host(0)))
            .function(Function::vf("pf0vf0", host(2)))
            .function(Function::vf("pf0vf1", host(3)))
            .function(Function::sf("p0s0"));
        let p1 = Port::new("p1", dpu(1))
            .function(Function::pf("pf1", host(1)))
            .function(Function::vf("pf1vf0", host(4)))
            .function(Function::sf("p1s0"));
        Topology {
            card: CARD.to_owned(),
            ports: vec![p0, p1],
        }
    }
}

impl Topology {
    /// Returns a card with these ports and the default serial number.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if the ports break a rule of [`Topology`].
    pub fn new(ports: impl IntoIterator<Item = Port>) -> Result<Topology> {
        let card = Topology {
            card: CARD.to_owned(),
            ports: ports.into_iter().collect(),
        };
        let checked = card.checked();
        checked.map_err(|error| error.with_call("Topology::new"))
    }

    /// Sets the serial number of the card.
    ///
    /// # Errors
    ///
    /// `InvalidValue` unless `serial` has 1 to 20 letters and digits.
    pub fn with_card(mut self, serial: impl Into<String>) -> Result<Topology> {
        self.card = serial.into();
        let checked = self.checked();
        checked.map_err(|error| error.with_call("Topology::with_card"))
    }

    /// Plugs a function into a port.
    ///
    /// # Errors
    ///
    /// - `NotFound` if the card has no such port.
    /// - `InvalidValue` if the function breaks a rule of [`Topology`].
    pub fn plug(mut self, port: &str, function: Function) -> Result<Topology> {
        const CALL: &str = "Topology::plug";
        let known = self.ports.iter_mut().find(|known| known.name == port);
        let known = known.ok_or_else(|| missing("port", port).with_call(CALL))?;
        known.functions.push(function);
        self.checked().map_err(|error| error.with_call(CALL))
    }

    /// Unplugs the function with this name. If a function with the same name is plugged in again,
    /// for example at another address, it counts as the same function.
    ///
    /// # Errors
    ///
    /// `NotFound` if the card has no such function.
    pub fn unplug(mut self, function: &str) -> Result<Topology> {
        let at = self.ports.iter_mut().find_map(|port| {
            let mut functions = port.functions.iter();
            let at = functions.position(|known| known.name == function)?;
            Some(port.functions.remove(at))
        });
        match at {
            Some(_) => Ok(self),
            None => Err(missing("function", function).with_call("Topology::unplug")),
        }
    }

    /// Returns the serial number of the card.
    pub fn card(&self) -> &str {
        &self.card
    }

    /// Returns the devices of a view: the host's functions by address, or the DPU's ports and then
    /// their sub-functions.
    pub(in crate::provider::soft) fn devices(
        &self,
        provider: &'static str,
        view: View,
        caps: &Caps,
    ) -> Vec<DevInfo> {
        let device = |name: &str, addr, function, is_port| {
            let mut caps = caps.clone();
            caps.export_dpu = view == View::Host;
            caps.import_dpu = is_port;
            caps.channel = !is_port;
            if let Some(sync_event) = &mut caps.sync_event {
                sync_event.export_dpu = caps.export_dpu;
                sync_event.import_dpu = caps.import_dpu;
            }
            if is_port {
                caps.representors = RepCaps::ALL;
            }
            DevInfo::new(provider, name, addr, function, caps)
        };
        let ports = self.ports.iter();
        let functions = ports.clone().flat_map(|port| {
            let functions = port.functions.iter();
            let functions = functions.filter(|it| it.is_hosts() == (view == View::Host));
            functions.map(|it| device(&it.name, it.addr(port), it.kind, false))
        });
        let mut list: Vec<DevInfo> = ports
            .clone()
            .filter(|_| view == View::Dpu)
            .map(|port| device(&port.name, port.addr, PciFunction::Pf, true))
            .chain(functions)
            .collect();
        if view == View::Host {
            list.sort_by_key(DevInfo::pci_addr);
        }
        list
    }

    /// Returns the number of the port that a device belongs to.
    pub(in crate::provider::soft) fn port_of(&self, device: &str) -> Option<u8> {
        let is_its = |port: &Port| {
            let mut functions = port.functions.iter();
            port.name == device || functions.any(|it| it.name == device)
        };
        let at = self.ports.iter().position(is_its)?;
        u8::try_from(at).ok()
    }

    /// Returns the name of this port, which is also the name of its device in the DPU's view.
    pub(in crate::provider::soft) fn port_name(&self, port: u8) -> Option<&str> {
        Some(&self.ports.get(usize::from(port))?.name)
    }

    /// Returns the representors behind a port.
    pub(in crate::provider::soft) fn representors(&self, port: &str) -> Option<Vec<RepInfo>> {
        let mut ports = self.ports.iter();
        let port = ports.find(|known| known.name == port)?;
        let representor = |function: &Function| {
            let vuid = self.vuid(&function.name);
            let name = function.representor.clone();
            let addr = function.addr(port);
            RepInfo::new(name, vuid, addr, function.kind, function.rep_kind())
        };
        Some(port.functions.iter().map(representor).collect())
    }

    /// Returns the unique name of a function. It stays the same when the function moves, or when
    /// other functions are plugged in or unplugged.
    pub(in crate::provider::soft) fn vuid(&self, function: &str) -> String {
        format!("{}{}", self.card(), function.to_uppercase())
    }
}

fn missing(what: &str, name: &str) -> Error {
    let text = format!("the card has no {what} \"{name}\"");
    Error::new(ErrorKind::NotFound, None, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_topology_is_refused_with_what_is_wrong() {
        let addr = |function| PciAddr::new(0x0b, 0, function);
        let p0 = || Port::new("p0", addr(0)).function(Function::pf("pf0", addr(0)));
        let many = (0..256).map(|i| Port::new(format!("p{i}"), PciAddr::new(i as u8, 0, 0)));
        let full = (0..1025).map(|i| Function::sf(format!("p0s{i}")));
        let full = full.fold(Port::new("p0", addr(0)), Port::function);
        let default = Topology::default;
        let named = |name: &str| Topology::new([Port::new(name, addr(0))]);
        let rep = |name| Function::sf("x").representor(name);
        let invalid = ErrorKind::InvalidValue;
        for (result, kind, part) in [
            (Topology::new([]), invalid, "Topology::new: 0 ports"),
            (Topology::new(many), invalid, "256 ports"),
            (Topology::new([full]), invalid, "1025 functions"),
            (
                Topology::new([p0(), p0()]),
                invalid,
                "two devices are called p0",
            ),
            (default().with_card(""), invalid, "serial number"),
            (
                default().with_card("a b"),
                invalid,
                "with_card: the serial number \"a b\"",
            ),
            (default().with_card("x".repeat(21)), invalid, "1 to 20"),
            (named(""), invalid, "the name \"\""),
            (named("P0"), invalid, "\"P0\""),
            (named(&"x".repeat(16)), invalid, "1 to 15"),
            (
                default().plug("p0", Function::sf("p1s0")),
                invalid,
                "plug: two devices are called p1s0",
            ),
            (
                default().plug("p1", rep("hpf0")),
                invalid,
                "two representors are called hpf0",
            ),
            (
                default().plug("p1", Function::vf("vf7", addr(3))),
                invalid,
                "0000:0b:00.3",
            ),
            (
                default().plug("p2", Function::sf("x")),
                ErrorKind::NotFound,
                "no port \"p2\"",
            ),
            (
                default().unplug("pf7"),
                ErrorKind::NotFound,
                "no function \"pf7\"",
            ),
        ] {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(part), "{part:?}: {error}");
        }
        // The host and the DPU have separate buses, so a port and a function of the host may have
        // the same address.
        Topology::new([p0()]).unwrap();
        default().check().unwrap();
    }
}
