//! Reads what the kernel tells about an adapter's port (`/sys/class/infiniband`): its link and its
//! addresses.

use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};

use serde::Serialize;
use tokio_doca::device::DevInfo;
use tokio_doca::device::contract::Provider;
use tokio_doca::rdma::Path as Way;
use tokio_doca::verbs::Verbs;
use tokio_doca::{Device, Rdma, WorkQ};

use crate::failure::text;
use crate::system;

pub(crate) const CLASS: &str = "/sys/class/infiniband";

/// The link of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Link {
    pub(crate) port: u32,
    /// The state, such as `active` or `down`.
    pub(crate) state: String,
    /// `InfiniBand` or `Ethernet`.
    pub(crate) layer: String,
    /// The rate, such as `100 Gb/sec (4X EDR)`.
    pub(crate) rate: String,
}

/// What the kernel states about an adapter, apart from its link. A text is empty if the kernel does
/// not state it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hardware {
    /// The kind of adapter: `CA` for InfiniBand and RoCE, `RNIC` for iWARP.
    pub(crate) kind: String,
    pub(crate) firmware: String,
    pub(crate) guid: String,
    /// The state of the port's cable, such as `linkup` or `disabled`.
    pub(crate) physical_state: String,
}

/// An address (GID) of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Address {
    pub(crate) index: u32,
    /// The address. IPv4 addresses are stored as such.
    pub(crate) address: IpAddr,
    /// The type, such as `RoCE v2` or `IB/RoCE v1`.
    pub(crate) kind: String,
    /// The network interface that it belongs to.
    pub(crate) interface: Option<String>,
    /// True if a connection without further settings uses this address.
    pub(crate) taken: bool,
}

/// Returns true if the device is an adapter, which the kernel lists.
pub(crate) fn is_one(info: &DevInfo) -> bool {
    info.provider() == Verbs::system().name()
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    let text = system::text(path.as_ref()).ok()?;
    (!text.is_empty()).then_some(text)
}

/// Returns the names of a folder's entries, sorted. `/sys/class/infiniband` has one entry for each
/// adapter.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

/// Returns the names of a folder's entries that are numbers, sorted.
fn numbers(folder: &Path) -> Vec<u32> {
    let names = names(folder);
    let mut numbers: Vec<u32> = names.iter().filter_map(|name| name.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}

/// Returns the word of a file with a number and a word, such as "4: ACTIVE".
fn word(path: impl AsRef<Path>) -> String {
    let text = read(path).unwrap_or_default();
    let word = text.split_once(": ").map(|(_, word)| word.to_owned());
    word.unwrap_or(text)
}

fn state(port: &Path) -> String {
    word(port.join("state")).to_lowercase()
}

/// Returns the numbers of an adapter's ports, in order.
pub(crate) fn ports(class: &Path, adapter: &str) -> Vec<u32> {
    numbers(&class.join(adapter).join("ports"))
}

/// Returns the number and the folder of a device's port: the port in the device's name, or else the
/// first active port, or else the first port.
fn port(class: &Path, name: &str) -> Option<(u32, PathBuf)> {
    let (adapter, named) = match name.split_once('/') {
        Some((adapter, port)) => (adapter, Some(port.parse().ok()?)),
        None => (name, None),
    };
    let ports = class.join(adapter).join("ports");
    let all = self::ports(class, adapter);
    let is_active = |number: &&u32| state(&ports.join(number.to_string())) == "active";
    let number = match named {
        Some(number) => number,
        None => *all.iter().find(is_active).or(all.first())?,
    };
    Some((number, ports.join(number.to_string())))
}

pub(crate) fn link(class: &Path, name: &str) -> Option<Link> {
    let (number, folder) = port(class, name)?;
    Some(Link {
        port: number,
        state: state(&folder),
        layer: read(folder.join("link_layer"))?,
        rate: read(folder.join("rate")).unwrap_or_default(),
    })
}

/// Returns the folder of a device's adapter. The name may end in a slash and the number of a port.
pub(crate) fn folder(class: &Path, name: &str) -> PathBuf {
    class.join(name.split('/').next().unwrap_or_default())
}

/// Returns the version of an adapter's firmware. Soft-RoCE has none.
pub(crate) fn firmware(adapter: &Path) -> Option<String> {
    read(adapter.join("fw_ver"))
}

/// Describes a device's adapter, and its port of this number.
pub(crate) fn hardware(class: &Path, name: &str, port: u32) -> Hardware {
    let adapter = folder(class, name);
    let port = adapter.join(format!("ports/{port}"));
    Hardware {
        kind: word(adapter.join("node_type")),
        firmware: firmware(&adapter).unwrap_or_default(),
        guid: read(adapter.join("node_guid")).unwrap_or_default(),
        physical_state: word(port.join("phys_state")).to_lowercase(),
    }
}

/// Returns the addresses of a device's port. The address `taken`, which a connection uses, is
/// marked.
pub(crate) fn addresses(class: &Path, name: &str, taken: Option<IpAddr>) -> Vec<Address> {
    let Some((_, folder)) = port(class, name) else {
        return Vec::new();
    };
    let mut found: Vec<Address> = numbers(&folder.join("gids"))
        .into_iter()
        .filter_map(|index| {
            let gid: Ipv6Addr = read(folder.join(format!("gids/{index}")))?.parse().ok()?;
            (!gid.is_unspecified()).then(|| Address {
                index,
                address: IpAddr::from(gid).to_canonical(),
                kind: read(folder.join(format!("gid_attrs/types/{index}"))).unwrap_or_default(),
                interface: read(folder.join(format!("gid_attrs/ndevs/{index}"))),
                taken: false,
            })
        })
        .collect();
    // A port of Ethernet has each address twice. The one of RoCE v2 is preferred to that of v1.
    let is_taken = |address: &&mut Address| Some(address.address) == taken;
    let newest = found.iter_mut().filter(is_taken).reduce(|best, next| {
        match next.kind == "RoCE v2" && best.kind != "RoCE v2" {
            true => next,
            false => best,
        }
    });
    if let Some(newest) = newest {
        newest.taken = true;
    }
    found
}

/// Returns how a connection of this device to itself goes by default: its address, and the size of
/// its packets. Makes two Rdmas and connects one to the other; sends nothing.
pub(crate) async fn taken(name: &str) -> std::result::Result<Way, String> {
    let connect = async || -> tokio_doca::Result<Option<Way>> {
        let device = Device::open(name)?;
        let workq = WorkQ::builder().depth(16).build()?;
        let here = Rdma::builder(&device).attach(&workq)?;
        let there = Rdma::builder(&device).attach(&workq)?;
        here.connect(&there.export()?).await?;
        Ok(here.path())
    };
    match connect().await {
        Ok(Some(way)) => Ok(way),
        Ok(None) => Err("the device does not say which address it takes".to_owned()),
        Err(error) => Err(text(&error)),
    }
}

/// Returns the address of this side of a connection.
pub(crate) fn address(way: &Way) -> IpAddr {
    IpAddr::from(way.gid).to_canonical()
}

/// Returns the reason why the library uses an address, as far as the address itself shows it.
pub(crate) fn because(address: &Address) -> String {
    let reach = match address.address {
        it if it.is_loopback() => "loopback",
        IpAddr::V4(it) if it.is_link_local() => "link-local",
        IpAddr::V6(it) if it.is_unicast_link_local() => "link-local",
        _ => "routed",
    };
    let family = if address.address.is_ipv4() {
        "IPv4"
    } else {
        "IPv6"
    };
    format!("{reach}, {}, {family}", address.kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A temporary folder laid out as the kernel does, which is deleted at the end.
    struct Class(PathBuf);

    impl Class {
        fn new(name: &str) -> Class {
            let name = format!("tokio-doca-cli-{name}-{}", std::process::id());
            Class(std::env::temp_dir().join(name))
        }

        fn port(&self, number: u32, state: &str, gids: &[(&str, &str)]) {
            let port = self.0.join(format!("mlx5_0/ports/{number}"));
            for folder in ["gids", "gid_attrs/types", "gid_attrs/ndevs"] {
                fs::create_dir_all(port.join(folder)).unwrap();
            }
            fs::write(port.join("state"), format!("{state}\n")).unwrap();
            fs::write(port.join("link_layer"), "Ethernet\n").unwrap();
            fs::write(port.join("rate"), "100 Gb/sec (4X EDR)\n").unwrap();
            for (index, (gid, kind)) in gids.iter().enumerate() {
                fs::write(port.join(format!("gids/{index}")), format!("{gid}\n")).unwrap();
                fs::write(port.join(format!("gid_attrs/types/{index}")), kind).unwrap();
                fs::write(port.join(format!("gid_attrs/ndevs/{index}")), "eth0\n").unwrap();
            }
        }
    }

    impl Drop for Class {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn a_name_means_the_first_port_that_is_up() {
        let class = Class::new("ports");
        class.port(1, "1: DOWN", &[]);
        class.port(2, "4: ACTIVE", &[]);
        let state = |name| link(&class.0, name).map(|link| (link.port, link.state));
        assert_eq!(state("mlx5_0"), Some((2, "active".to_owned())));
        assert_eq!(state("mlx5_0/1"), Some((1, "down".to_owned())));
        assert_eq!(state("mlx5_0/3"), None);
        assert_eq!(state("pf0"), None);
        assert_eq!(names(&class.0), ["mlx5_0"]);
    }

    #[test]
    fn the_taken_address_is_the_newer_version_of_roce() {
        let class = Class::new("gids");
        let gids = [
            ("fe80:0000:0000:0000:0202:c9ff:fe00:0001", "IB/RoCE v1\n"),
            ("0000:0000:0000:0000:0000:ffff:0a00:0001", "IB/RoCE v1\n"),
            ("0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2\n"),
            ("0000:0000:0000:0000:0000:0000:0000:0000", ""),
        ];
        class.port(1, "4: ACTIVE", &gids);
        let taken: IpAddr = "10.0.0.1".parse().unwrap();
        let found = addresses(&class.0, "mlx5_0", Some(taken));
        let marks: Vec<bool> = found.iter().map(|address| address.taken).collect();
        assert_eq!(marks, [false, false, true]);
        assert_eq!(because(&found[0]), "link-local, IB/RoCE v1, IPv6");
        assert_eq!(because(&found[2]), "routed, RoCE v2, IPv4");
        assert_eq!(found[2].interface.as_deref(), Some("eth0"));
        assert!(
            addresses(&class.0, "mlx5_0", None)
                .iter()
                .all(|it| !it.taken)
        );
    }
}
