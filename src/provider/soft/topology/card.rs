//! A card with its ports and functions, checked when it is built, and what each view has of it.

use std::collections::HashSet;
use std::path::Path;
use std::str::FromStr;

use super::{Function, Port, View, file};
use crate::device::{Caps, DevInfo, PciAddr, PciFunction, RepCaps, RepInfo};
use crate::error::{Error, ErrorKind, Result};

/// The longest name of a device, as Linux has it.
const NAME_MAX: usize = 15;
/// The longest serial number.
const CARD_MAX: usize = 20;
/// What an export says of the port is a byte.
const PORTS_MAX: usize = 255;
/// Functions of one port.
const FUNCTIONS_MAX: usize = 1024;

/// A card: its serial number, its ports, and the functions behind each.
///
/// The two sides of one card are processes whose topologies have the same serial number, `TD0000X00000` if none is said. Built
/// ([`Topology::builder`]), or read from TOML:
///
/// ```
/// use tokio_doca::Device;
/// use tokio_doca::device::Provider;
/// use tokio_doca::soft::{Function, Port, Soft, Topology, View};
///
/// let topology: Topology = r#"
///     card = "TD0000X00001"               # the default: TD0000X00000
///     [[port]]
///     name = "p0"
///     address = "03:00.0"
///     [[port.function]]
///     name = "pf0"
///     kind = "pf"                         # pf, vf or sf
///     address = "0b:00.0"                 # a sub-function has none
///     representor = "hpf0"                # if not said: "h" and the name
///     emulated = false                    # if not said: false
/// "#
/// .parse()?;
/// let port = Port::new("p0", "03:00.0".parse()?).function(Function::pf("pf0", "0b:00.0".parse()?));
/// assert_eq!(topology, Topology::builder().card("TD0000X00001").port(port).build()?);
///
/// let dpu = Soft::builder().view(View::Dpu).topology(topology).build();
/// assert_eq!(dpu.devices()?.len(), 1);
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    card: String,
    ports: Vec<Port>,
}

/// Builds a [`Topology`].
#[derive(Clone, Debug)]
#[must_use = "nothing is built before build"]
pub struct TopologyBuilder {
    topology: Topology,
    /// Changes that name what there is not.
    wrong: Option<String>,
}

impl Default for Topology {
    /// The card of the Core guide's figure: five functions of the host, two ports with a sub-function each.
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
            card: "TD0000X00000".to_owned(),
            ports: vec![p0, p1],
        }
    }
}

impl FromStr for Topology {
    type Err = Error;

    /// Reads the TOML that the type's documentation has. Keys that it has not are refused.
    fn from_str(text: &str) -> Result<Topology> {
        file::parse(text)
    }
}

impl Topology {
    /// A card without ports, to which some are added.
    pub fn builder() -> TopologyBuilder {
        let topology = Topology {
            card: Topology::default().card,
            ports: Vec::new(),
        };
        topology.edit()
    }

    /// The same card, to be changed.
    pub fn edit(self) -> TopologyBuilder {
        TopologyBuilder {
            topology: self,
            wrong: None,
        }
    }

    /// Reads a TOML file.
    ///
    /// # Errors
    ///
    /// `InvalidValue` for what is no topology, with the line, and for what is no regular file; else why the file cannot be read.
    pub fn load(path: impl AsRef<Path>) -> Result<Topology> {
        file::load(path.as_ref())
    }

    /// The serial number of the card.
    pub fn card(&self) -> &str {
        &self.card
    }

    /// What a view can open: the host's functions by address, or the DPU's ports and then their sub-functions.
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
        let all = self
            .ports
            .iter()
            .flat_map(|port| port.functions.iter().map(move |function| (port, function)))
            .filter(|(_, function)| function.is_hosts() == (view == View::Host))
            .map(|(port, function)| {
                let addr = function.addr.unwrap_or(port.addr);
                device(&function.name, addr, function.function, false)
            });
        let ports = self.ports.iter().filter(|_| view == View::Dpu);
        let mut list: Vec<DevInfo> = ports
            .map(|port| device(&port.name, port.addr, PciFunction::Pf, true))
            .chain(all)
            .collect();
        if view == View::Host {
            list.sort_by_key(DevInfo::pci_addr);
        }
        list
    }

    /// The number of the port that a device belongs to.
    pub(in crate::provider::soft) fn port_of(&self, device: &str) -> Option<u8> {
        let is_its =
            |port: &Port| port.name == device || port.functions.iter().any(|f| f.name == device);
        let at = self.ports.iter().position(is_its)?;
        u8::try_from(at).ok()
    }

    /// The device of the DPU's view that is this port.
    pub(in crate::provider::soft) fn port_name(&self, port: u8) -> Option<&str> {
        Some(&self.ports.get(usize::from(port))?.name)
    }

    /// The representors behind a port.
    pub(in crate::provider::soft) fn representors(&self, port: &str) -> Option<Vec<RepInfo>> {
        let port = self.ports.iter().find(|known| known.name == port)?;
        let representor = |function: &Function| {
            RepInfo::new(
                &*function.representor,
                self.vuid(&function.name),
                function.addr.unwrap_or(port.addr),
                function.function,
                function.kind,
            )
        };
        Some(port.functions.iter().map(representor).collect())
    }

    /// The unique name of a function: it stays when the function moves, or others come and go.
    pub(in crate::provider::soft) fn vuid(&self, function: &str) -> String {
        format!("{}{}", self.card, function.to_uppercase())
    }
}

impl TopologyBuilder {
    /// The serial number of the card: 1 to 20 letters and digits.
    pub fn card(mut self, serial: impl Into<String>) -> TopologyBuilder {
        self.topology.card = serial.into();
        self
    }

    /// One more port with its functions.
    pub fn port(mut self, port: Port) -> TopologyBuilder {
        self.topology.ports.push(port);
        self
    }

    /// One more function of a port that is there: it is plugged in.
    pub fn plug(mut self, port: &str, function: Function) -> TopologyBuilder {
        match self
            .topology
            .ports
            .iter_mut()
            .find(|known| known.name == port)
        {
            Some(port) => port.functions.push(function),
            None => self.wrong = Some(format!("there is no port \"{port}\"")),
        }
        self
    }

    /// Without the function of this name: it is unplugged. One that is plugged in again under its name, at another address,
    /// say, is the same function.
    pub fn unplug(mut self, function: &str) -> TopologyBuilder {
        let mut found = false;
        for port in &mut self.topology.ports {
            let before = port.functions.len();
            port.functions.retain(|known| known.name != function);
            found |= port.functions.len() < before;
        }
        if !found {
            self.wrong = Some(format!("there is no function \"{function}\""));
        }
        self
    }

    /// Checks it.
    ///
    /// # Errors
    ///
    /// `InvalidValue`: names of 1 to 15 lower-case letters, digits, `_` and `-`, of which no two devices, and no two representors, have the same;
    /// PCI addresses that no two devices of a side share; 1 to 255 ports, and at most 1,024 functions of each.
    pub fn build(self) -> Result<Topology> {
        let wrong = |text: String| {
            Err(Error::new(
                ErrorKind::InvalidValue,
                "TopologyBuilder::build",
                text,
            ))
        };
        match self.wrong.map_or_else(|| self.topology.check(), Err) {
            Err(text) => wrong(text),
            Ok(()) => Ok(self.topology),
        }
    }
}

impl Topology {
    fn check(&self) -> Result<(), String> {
        let card = &self.card;
        if card.is_empty()
            || card.len() > CARD_MAX
            || !card.bytes().all(|byte| byte.is_ascii_alphanumeric())
        {
            return Err(format!(
                "the card \"{card}\": a serial number has 1 to {CARD_MAX} letters and digits"
            ));
        }
        if self.ports.is_empty() || self.ports.len() > PORTS_MAX {
            let count = self.ports.len();
            return Err(format!("{count} ports: a card has 1 to {PORTS_MAX}"));
        }
        let (mut devices, mut representors) = (HashSet::new(), HashSet::new());
        let (mut hosts, mut dpus) = (HashSet::new(), HashSet::new());
        for port in &self.ports {
            if port.functions.len() > FUNCTIONS_MAX {
                let (name, count) = (&port.name, port.functions.len());
                return Err(format!(
                    "port {name} has {count} functions: at most {FUNCTIONS_MAX}"
                ));
            }
            check_name(&port.name, &mut devices)?;
            check_addr(port.addr, &port.name, &mut dpus)?;
            for function in &port.functions {
                check_name(&function.name, &mut devices)?;
                check_name(&function.representor, &mut representors)?;
                if let Some(addr) = function.addr {
                    check_addr(addr, &function.name, &mut hosts)?;
                }
            }
        }
        Ok(())
    }
}

fn check_name<'a>(name: &'a str, taken: &mut HashSet<&'a str>) -> Result<(), String> {
    let plain = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_' || byte == b'-'
    };
    if name.is_empty() || name.len() > NAME_MAX || !name.bytes().all(plain) {
        return Err(format!(
            "the name \"{name}\": 1 to {NAME_MAX} lower-case letters, digits, _ and -"
        ));
    }
    match taken.insert(name) {
        true => Ok(()),
        false => Err(format!("the name \"{name}\" stands there twice")),
    }
}

fn check_addr(addr: PciAddr, of: &str, taken: &mut HashSet<PciAddr>) -> Result<(), String> {
    match taken.insert(addr) {
        true => Ok(()),
        false => Err(format!(
            "{of} is at {addr}, and another device of that side is as well"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_topology_is_refused_with_what_is_wrong() {
        let addr = |function| PciAddr::new(0x0b, 0, function);
        let p0 = || Port::new("p0", addr(0)).function(Function::pf("pf0", addr(0)));
        let many = (0..256).map(|i| Port::new(format!("p{i}"), PciAddr::new(i as u8, 0, 0)));
        let many = many.fold(Topology::builder(), TopologyBuilder::port);
        let full = (0..1025).map(|i| Function::sf(format!("p0s{i}")));
        let full = full.fold(Port::new("p0", addr(0)), Port::function);
        for (builder, part) in [
            (Topology::builder(), "0 ports"),
            (many, "256 ports"),
            (Topology::builder().port(full), "1025 functions"),
            (
                Topology::builder().port(p0()).port(p0()),
                "\"p0\" stands there twice",
            ),
            (Topology::builder().card("").port(p0()), "serial number"),
            (Topology::builder().card("a b").port(p0()), "\"a b\""),
            (
                Topology::builder().card("x".repeat(21)).port(p0()),
                "1 to 20",
            ),
            (
                Topology::builder().port(Port::new("", addr(0))),
                "the name \"\"",
            ),
            (Topology::builder().port(Port::new("P0", addr(0))), "\"P0\""),
            (
                Topology::builder().port(Port::new("x".repeat(16), addr(0))),
                "1 to 15",
            ),
            (
                Topology::default().edit().plug("p0", Function::sf("p1s0")),
                "\"p1s0\"",
            ),
            (
                Topology::default()
                    .edit()
                    .plug("p1", Function::sf("x").representor("hpf0")),
                "\"hpf0\"",
            ),
            (
                Topology::default()
                    .edit()
                    .plug("p1", Function::vf("vf7", addr(3))),
                "0000:0b:00.3",
            ),
            (
                Topology::default().edit().plug("p2", Function::sf("x")),
                "no port \"p2\"",
            ),
            (
                Topology::default().edit().unplug("pf7"),
                "no function \"pf7\"",
            ),
        ] {
            let error = builder.build().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidValue);
            assert!(error.to_string().contains(part), "{part:?}: {error}");
        }
        // The two sides have addresses of their own.
        let both = Topology::builder().port(p0()).build();
        assert!(both.is_ok(), "{both:?}");
        assert_eq!(
            Topology::default().edit().build().unwrap(),
            Topology::default()
        );
    }
}
