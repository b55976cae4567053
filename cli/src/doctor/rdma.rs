//! Checks of RDMA: modules, devices, their files, ports, and addresses.

use std::net::IpAddr;

use nix::unistd::{AccessFlags, access};

use super::row::{Finding, Found};
use super::view::{View, few};
use crate::adapters::{self, Address, CLASS, Link};

const FILES: &str = "sys/class/infiniband_verbs";

/// The drivers of adapters, and two software drivers that need no adapter.
const DRIVERS: [&str; 12] = [
    "mlx5_ib",
    "mlx4_ib",
    "irdma",
    "bnxt_re",
    "efa",
    "erdma",
    "hns_roce_hw_v2",
    "ionic_rdma",
    "mana_ib",
    "qedr",
    "rdma_rxe",
    "siw",
];

pub(super) fn modules(view: &View) -> Found {
    let mut loaded = view.names("sys/module")?;
    // Modules that are built into the kernel are not listed.
    let text = view.text("proc/modules").unwrap_or_default();
    loaded.extend(text.lines().filter_map(|line| {
        let name = line.split_whitespace().next()?;
        Some(name.to_owned())
    }));
    let is_loaded = |name: &str| loaded.iter().any(|it| it == name);
    let core = is_loaded("ib_core") || view.has(CLASS);
    let verbs = is_loaded("ib_uverbs") || view.has(FILES);
    let mut there = Vec::new();
    there.extend(core.then(|| "ib_core".to_owned()));
    there.extend(verbs.then(|| "ib_uverbs".to_owned()));
    let drivers = DRIVERS.iter().filter(|it| is_loaded(it));
    there.extend(drivers.map(|it| (*it).to_owned()));
    if verbs {
        return Ok(Finding::ok(there.join(", ")));
    }
    let found = match there.is_empty() {
        true => "none".to_owned(),
        false => format!("{}, but not ib_uverbs", there.join(", ")),
    };
    Ok(Finding::note(
        found,
        "Programs cannot open an adapter. The software device needs no module.",
        "modprobe ib_uverbs, on the host if this is a container",
    )
    .or_problem(view.has_adapter()))
}

pub(super) fn devices(view: &View) -> Found {
    let names = view.adapters()?;
    if !names.is_empty() {
        return Ok(Finding::ok(few(&names)));
    }
    let modules = modules(view)?;
    let found = match modules.found.starts_with("none") {
        true => "none",
        false => "none, though there are modules",
    };
    Ok(Finding::note(
        found,
        "Programs use the software device. Streams to other hosts use TCP if they allow it.",
        "modprobe mlx5_ib, or the driver of your adapter; without one, modprobe rdma_rxe && rdma \
         link add rxe0 type rxe netdev eth0; if rdma system says exclusive, rdma dev set mlx5_0 \
         netns NAME on the host",
    ))
}

pub(super) fn files(view: &View) -> Found {
    let names = view.names(FILES)?;
    let mut names: Vec<_> = names
        .into_iter()
        .filter(|it| it.starts_with("uverbs"))
        .collect();
    names.sort();
    if names.is_empty() && view.has_adapter() {
        return Ok(Finding::ok("none, as there is no ib_uverbs"));
    }
    if names.is_empty() {
        return Ok(Finding::ok("none needed"));
    }
    if !view.live && !view.has("dev/infiniband") {
        return Ok(Finding::not_asked(""));
    }
    let may = AccessFlags::R_OK | AccessFlags::W_OK;
    let faults: Vec<String> = names
        .iter()
        .filter_map(|name| {
            let path = format!("dev/infiniband/{name}");
            let errno = match view.live {
                true => access(&view.path(&path), may).err()?.desc(),
                false if view.has(&path) => return None,
                false => "No such file or directory",
            };
            Some(format!("/{path}: {errno}"))
        })
        .collect();
    if faults.is_empty() {
        return Ok(Finding::ok(few(&names)));
    }
    Ok(Finding::note(
        few(&faults),
        "libibverbs opens these files to reach an adapter: Device::open fails.",
        "docker run --device /dev/infiniband; chmod a+rw /dev/infiniband/uverbs*",
    )
    .or_problem(faults.len() == names.len()))
}

/// A port of an adapter, with the name that `Device::open` accepts.
struct Port {
    name: String,
    link: Link,
    addresses: Vec<Address>,
}

impl Port {
    fn all(view: &View) -> Result<Vec<Port>, String> {
        let class = view.path(CLASS);
        let mut all = Vec::new();
        for adapter in view.adapters()? {
            for number in adapters::ports(&class, &adapter) {
                let name = format!("{adapter}/{number}");
                let link = adapters::link(&class, &name);
                let link = link.filter(|link| !link.state.is_empty());
                let why = || format!("port {name} does not say its link_layer and its state");
                all.push(Port {
                    link: link.ok_or_else(why)?,
                    addresses: adapters::addresses(&class, &name, None),
                    name,
                });
            }
        }
        Ok(all)
    }

    fn is_active(&self) -> bool {
        self.link.state == "active"
    }

    /// Returns the active Ethernet ports, whose addresses are those of network interfaces.
    fn ethernet(view: &View) -> Result<Vec<Port>, String> {
        let mut ports = Port::all(view)?;
        ports.retain(|port| port.is_active() && port.link.layer == "Ethernet");
        Ok(ports)
    }

    /// Returns the name of the network interface, or a placeholder for it.
    fn interface(&self) -> &str {
        let mut names = self
            .addresses
            .iter()
            .filter_map(|it| it.interface.as_deref());
        names.next().unwrap_or("INTERFACE")
    }
}

/// The text of a row about ports if there are none.
const NO_PORT: &str = "no port";
const NO_ETHERNET: &str = "no active port of Ethernet";

pub(super) fn ports(view: &View) -> Found {
    let ports = Port::all(view)?;
    if ports.is_empty() {
        return Ok(Finding::ok(NO_PORT));
    }
    let said = ports
        .iter()
        .map(|port| format!("{} {}", port.name, port.link.state));
    let found = few(&said.collect::<Vec<_>>());
    let Some(down) = ports.iter().find(|port| !port.is_active()) else {
        return Ok(Finding::ok(found));
    };
    let mend = match &*down.link.layer {
        "Ethernet" => format!("ip link set {} up, and check the cable", down.interface()),
        _ => "check the cable, and that the fabric has a subnet manager (systemctl start opensm)"
            .to_owned(),
    };
    let means = "Connections of a port that is not active fail with PortDown. Device::open takes \
                 the first active port of an adapter.";
    let is_problem = !ports.iter().any(Port::is_active);
    Ok(Finding::note(found, means, mend).or_problem(is_problem))
}

/// Returns true if packets from an address can pass a router.
fn is_routed(address: IpAddr) -> bool {
    !match address {
        IpAddr::V4(it) => it.is_link_local() || it.is_loopback(),
        IpAddr::V6(it) => it.is_unicast_link_local() || it.is_loopback(),
    }
}

pub(super) fn addresses(view: &View) -> Found {
    let ports = Port::ethernet(view)?;
    if ports.is_empty() {
        return Ok(Finding::ok(NO_ETHERNET));
    }
    let mut found = Vec::new();
    let mut local = Vec::new();
    for port in &ports {
        let routed = port.addresses.iter().map(|it| it.address);
        let mut routed: Vec<IpAddr> = routed.filter(|it| is_routed(*it)).collect();
        // Each address is listed for RoCE v1 and for v2.
        routed.dedup();
        let name = &port.name;
        if routed.is_empty() {
            local.push(port);
        }
        match routed.is_empty() {
            true if port.addresses.is_empty() => found.push(format!("{name} has none")),
            true => found.push(format!("{name} has only link-local ones")),
            false => found.extend(routed.iter().map(|it| format!("{name} {it}"))),
        }
    }
    let found = few(&found);
    let Some(port) = local.first() else {
        return Ok(Finding::ok(found));
    };
    Ok(Finding::note(
        found,
        "Only peers on the same link reach a link-local address: packets pass no router.",
        format!("ip address add 10.0.0.1/24 dev {}", port.interface()),
    ))
}

/// The addresses and the interfaces of this network namespace.
struct Here {
    interfaces: Vec<String>,
    ipv4: Option<Vec<IpAddr>>,
    ipv6: Option<Vec<IpAddr>>,
}

impl Here {
    /// Returns true if an address of a port is in this namespace. Known addresses decide, because
    /// another namespace may have an interface of the same name, such as `eth0`.
    fn has(&self, address: &Address) -> bool {
        let known = match address.address {
            IpAddr::V4(_) => &self.ipv4,
            IpAddr::V6(_) => &self.ipv6,
        };
        let interface = address.interface.as_ref();
        let by_name = interface.is_none_or(|name| self.interfaces.contains(name));
        // The link-local address of a port may differ from that of its interface.
        let by_address = match known {
            Some(known) if is_routed(address.address) => known.contains(&address.address),
            _ => true,
        };
        by_name && by_address
    }
}

pub(super) fn namespace(view: &View) -> Found {
    let ports = Port::ethernet(view)?;
    if ports.is_empty() {
        return Ok(Finding::ok(NO_ETHERNET));
    }
    let here = Here {
        interfaces: view.interfaces()?,
        ipv4: view.ipv4().ok(),
        ipv6: view.ipv6().ok(),
    };
    let all = ports.iter().flat_map(|port| {
        let name = &port.name;
        port.addresses.iter().map(move |address| (name, address))
    });
    let (own, others): (Vec<_>, Vec<_>) = all.partition(|(_, it)| here.has(it));
    if others.is_empty() {
        return Ok(Finding::ok("all addresses are of this network namespace"));
    }
    let mut found: Vec<String> = others
        .iter()
        .map(|(name, it)| match &it.interface {
            Some(interface) => format!("{name} {} ({interface})", it.address),
            None => format!("{name} {}", it.address),
        })
        .collect();
    found.dedup();
    let is_usable = own.iter().any(|(_, it)| is_routed(it.address));
    let means = match is_usable {
        true => {
            "These are addresses of other network namespaces. The library takes one of this \
             namespace first; do not choose the others by gid or gid_index."
        }
        false => {
            "These are addresses of other network namespaces, and no routed one is of this \
             namespace: peers cannot reach a connection from here."
        }
    };
    let mend = "ip netns exec NAME COMMAND, or nsenter -n -t PID COMMAND, runs a program in \
                another namespace; ip link set INTERFACE netns NAME moves the interface";
    Ok(Finding::note(few(&found), means, mend).or_problem(!is_usable))
}
