//! Information for a report about the tool, the system and the device.

use std::path::Path;

use serde::Serialize;
use tokio_doca::device::DevInfo;

use crate::adapters::{self, CLASS, Link};
use crate::system;

#[derive(Debug, Serialize)]
pub(crate) struct About {
    pub(crate) version: &'static str,
    pub(crate) kernel: Option<String>,
    pub(crate) device: String,
    /// True if the command named no device.
    pub(crate) default: bool,
    pub(crate) provider: String,
    pub(crate) pci_address: Option<String>,
    /// The kernel driver of an adapter.
    pub(crate) driver: Option<String>,
    /// The firmware of an adapter.
    pub(crate) firmware: Option<String>,
    /// The link of an adapter's port: its state, layer and rate.
    pub(crate) link: Option<String>,
    /// The variables that change the software device, as `NAME=value`.
    pub(crate) settings: Vec<String>,
    /// The other side of a check between two hosts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peer: Option<Peer>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Peer {
    pub(crate) address: String,
    /// The peer's description of itself: its device, kernel and version.
    pub(crate) about: String,
}

impl About {
    pub(crate) fn of(info: &DevInfo, default: bool) -> About {
        let class = Path::new(CLASS);
        let folder = adapters::folder(class, info.name());
        let kernel = system::text(Path::new("/proc/sys/kernel/osrelease")).ok();
        About {
            version: env!("CARGO_PKG_VERSION"),
            kernel: kernel.map(|it| format!("Linux {it}, {}", std::env::consts::ARCH)),
            device: info.name().to_owned(),
            default,
            provider: info.provider().to_owned(),
            pci_address: info.pci_addr().map(|it| it.to_string()),
            driver: driver(&folder),
            firmware: adapters::firmware(&folder),
            link: adapters::link(class, info.name()).map(link),
            settings: settings(),
            peer: None,
        }
    }

    /// Returns the information in one line, which is sent to a peer.
    pub(crate) fn line(&self) -> String {
        let mut line = format!("{} ({})", self.device, self.provider);
        let more = [&self.driver, &self.firmware, &self.kernel];
        for part in more.into_iter().flatten() {
            line += &format!(", {part}");
        }
        format!("{line}, tokio-doca {}", self.version)
    }

    /// Returns rows of names and values, for people.
    pub(crate) fn lines(&self) -> Vec<(&'static str, String)> {
        let device = match self.default {
            true => format!("{}, the default", self.device),
            false => self.device.clone(),
        };
        let optional = |name, value: &Option<String>| Some((name, value.clone()?));
        let settings = (!self.settings.is_empty()).then(|| self.settings.join(", "));
        let peer = self.peer.as_ref();
        let lines = [
            Some(("tool", format!("tokio-doca {}", self.version))),
            optional("kernel", &self.kernel),
            Some(("device", device)),
            Some(("provider", self.provider.clone())),
            optional("PCI address", &self.pci_address),
            optional("driver", &self.driver),
            optional("firmware", &self.firmware),
            optional("link", &self.link),
            optional("settings", &settings),
            peer.map(|it| ("peer", it.address.clone())),
            peer.map(|it| ("its device", it.about.clone())),
        ];
        lines.into_iter().flatten().collect()
    }
}

/// Returns the name of the driver to which the adapter's PCI device links.
fn driver(folder: &Path) -> Option<String> {
    let link = folder.join("device/driver").read_link().ok()?;
    Some(link.file_name()?.to_string_lossy().into_owned())
}

fn link(link: Link) -> String {
    let port = format!("port {}", link.port);
    [port, link.state, link.layer, link.rate].join(", ")
}

fn settings() -> Vec<String> {
    let mut settings: Vec<String> = std::env::vars_os()
        .filter(|(name, _)| name.to_string_lossy().starts_with("TOKIO_DOCA_SOFT"))
        .map(|(name, value)| format!("{}={}", name.display(), value.display()))
        .collect();
    settings.sort();
    settings
}
