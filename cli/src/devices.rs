//! `tokio-doca devices`: lists the devices that can be opened, with links, addresses and
//! representors.

use std::fmt::Write;
use std::path::Path;

use serde::Serialize;
use tokio_doca::Device;
use tokio_doca::device::{DevInfo, PciAddr, PciFunction, RepFilter, RepInfo, RepKind};
use tokio_doca::verbs::Verbs;

use crate::adapters::{self, Address, CLASS, Link};
use crate::failure::{Result, text};
use crate::open;
use crate::output::{BOLD, print, print_json, table, wrapped};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The whole output.
#[derive(Serialize)]
struct Report {
    devices: Vec<Row>,
    /// The reason why there are no adapters.
    no_adapters: Option<String>,
    /// Adapters that the kernel has but that cannot be opened.
    left_out: Vec<LeftOut>,
}

#[derive(Serialize)]
struct LeftOut {
    name: String,
    why: String,
}

#[derive(Serialize)]
struct Row {
    name: String,
    provider: &'static str,
    pci_address: Option<String>,
    function: Option<&'static str>,
    /// The link, or `None` for the software device, which has none.
    link: Option<Link>,
    addresses: Vec<Address>,
    /// The reason why the marked address is used, or why none is.
    address_reason: Option<String>,
    representors: Vec<Rep>,
}

#[derive(Serialize)]
struct Rep {
    name: String,
    vuid: String,
    pci_address: Option<String>,
    function: Option<&'static str>,
    kind: &'static str,
}

pub(crate) fn run(args: &Args) -> Result {
    let report = open::runtime()?.block_on(report())?;
    match args.json {
        true => print_json(&report),
        false => print(&report.text()),
    }
}

/// Returns the kind of a device's function, or `None` if it is not a PCI function.
pub(crate) fn function(addr: Option<PciAddr>, function: PciFunction) -> Option<&'static str> {
    addr.map(|_| match function {
        PciFunction::Pf => "PF",
        PciFunction::Vf => "VF",
        PciFunction::Sf => "SF",
    })
}

fn pci(addr: Option<PciAddr>) -> Option<String> {
    addr.map(|addr| addr.to_string())
}

async fn report() -> Result<Report> {
    let mut devices = Vec::new();
    for info in Device::list()? {
        devices.push(row(&info).await?);
    }
    let known = |name: &String| devices.iter().any(|row: &Row| row.name == *name);
    let missing = adapters::names(Path::new(CLASS));
    let missing = missing.into_iter().filter(|name| !known(name));
    let left_out = missing.filter_map(|name| {
        let why = text(&Device::open(&name).err()?);
        Some(LeftOut { name, why })
    });
    let left_out = left_out.collect();
    Ok(Report {
        no_adapters: Verbs::system().unavailable().map(|error| text(&error)),
        left_out,
        devices,
    })
}

async fn row(info: &DevInfo) -> Result<Row> {
    let (class, name) = (Path::new(CLASS), info.name());
    let (mut link, mut addresses, mut address_reason) = (None, Vec::new(), None);
    if adapters::is_one(info) {
        link = adapters::link(class, name);
        let taken = adapters::taken(name).await;
        addresses = adapters::addresses(class, name, taken.as_ref().ok().map(adapters::address));
        let marked = addresses.iter().find(|it| it.taken);
        address_reason = taken.err().or_else(|| marked.map(adapters::because));
    }
    let mut representors = Vec::new();
    if info.caps().representors.supports(RepFilter::All) {
        representors = Device::open(name)?.representors(RepFilter::All)?;
    }
    Ok(Row {
        name: name.to_owned(),
        provider: info.provider(),
        pci_address: pci(info.pci_addr()),
        function: function(info.pci_addr(), info.function()),
        link,
        addresses,
        address_reason,
        representors: representors.iter().map(rep).collect(),
    })
}

fn rep(info: &RepInfo) -> Rep {
    Rep {
        name: info.name().to_owned(),
        vuid: info.vuid().to_owned(),
        pci_address: pci(info.pci_addr()),
        function: function(info.pci_addr(), info.function()),
        kind: match info.kind() {
            RepKind::Emulated => "emulated",
            _ => "net",
        },
    }
}

fn or_dash(text: Option<&str>) -> String {
    text.unwrap_or("-").to_owned()
}

impl Report {
    fn text(&self) -> String {
        let rows: Vec<_> = self.devices.iter().map(Row::cells).collect();
        let heading = [
            "DEVICE",
            "PROVIDER",
            "PCI ADDRESS",
            "KIND",
            "LINK",
            "ADDRESS",
        ];
        let mut text = table(heading, &rows);
        for device in &self.devices {
            text += &device.details();
        }
        if let Some(why) = &self.no_adapters {
            let _ = write!(text, "\n{}", wrapped(&format!("No adapters: {why}")));
        }
        for LeftOut { name, why } in &self.left_out {
            let sentence = format!("Adapter {name} is left out: {why}");
            let _ = write!(text, "\n{}", wrapped(&sentence));
        }
        text
    }
}

impl Row {
    fn cells(&self) -> [String; 6] {
        let taken = self.addresses.iter().find(|it| it.taken);
        let taken = taken.map(|it| it.address.to_string());
        [
            self.name.clone(),
            self.provider.to_owned(),
            or_dash(self.pci_address.as_deref()),
            or_dash(self.function),
            or_dash(self.link.as_ref().map(|link| link.state.as_str())),
            or_dash(taken.as_deref()),
        ]
    }

    /// Returns the details that do not fit into a row: the port with its addresses, and the
    /// representors.
    fn details(&self) -> String {
        let mut text = String::new();
        if let Some(link) = &self.link {
            let Link {
                port, layer, rate, ..
            } = link;
            let _ = writeln!(
                text,
                "\n{BOLD}{}{BOLD:#}, port {port}: {layer}, {rate}",
                self.name
            );
            if let Some(why) = &self.address_reason {
                let sentence = match self.addresses.iter().find(|it| it.taken) {
                    Some(it) => format!("takes GID {}, {}: {why}", it.index, it.address),
                    None => format!("takes no address: {why}"),
                };
                text += &wrapped(&sentence);
            }
            if !self.addresses.is_empty() {
                let heading = ["", "GID", "ADDRESS", "TYPE", "INTERFACE"];
                text += &table(
                    heading,
                    &self.addresses.iter().map(gid_cells).collect::<Vec<_>>(),
                );
            }
        }
        if !self.representors.is_empty() {
            let _ = writeln!(text, "\nRepresentors behind {BOLD}{}{BOLD:#}:", self.name);
            let rows = self.representors.iter().map(|rep| {
                [
                    rep.name.clone(),
                    rep.vuid.clone(),
                    or_dash(rep.pci_address.as_deref()),
                    or_dash(rep.function),
                    rep.kind.to_owned(),
                ]
            });
            let heading = ["NAME", "VUID", "PCI ADDRESS", "KIND", "CLASS"];
            text += &table(heading, &rows.collect::<Vec<_>>());
        }
        text
    }
}

fn gid_cells(address: &Address) -> [String; 5] {
    [
        if address.taken { "*" } else { "" }.to_owned(),
        address.index.to_string(),
        address.address.to_string(),
        address.kind.clone(),
        or_dash(address.interface.as_deref()),
    ]
}
