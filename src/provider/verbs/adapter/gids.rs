//! The choice among a port's addresses (GIDs) for a connection.
//!
//! An Ethernet port lists each address twice, once for each version of RoCE. It also lists the
//! addresses of all containers of the host, of which this process can use only some.

use std::net::{IpAddr, Ipv6Addr};

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;

use super::super::ffi::{IBV_GID_TYPE_ROCE_V2, ibv_gid_entry};
use super::context::{Context, bytes};
use crate::error::{Error, ErrorKind, Result};

/// An address of the port, and its index in the port's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Gid {
    pub(in super::super) index: u32,
    /// The address as IPv6. IPv4 addresses are mapped.
    pub(in super::super) addr: Ipv6Addr,
    kind: u32,
}

/// The preferences of a connection for its address.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct Wish {
    /// The peer's address, if it is known. An address in its subnet is preferred.
    pub(in super::super) peer: Option<Ipv6Addr>,
    /// The address of this side that the application prefers:
    /// [`Transport::source`](crate::device::Transport::source).
    pub(in super::super) source: Option<IpAddr>,
}

/// An address of a network device that this process can see, and the mask of its subnet.
#[derive(Clone, Copy, Debug)]
struct Interface {
    addr: u128,
    mask: u128,
}

impl Interface {
    /// Returns the interfaces of this network namespace, or none if the system does not report
    /// them.
    fn all() -> Vec<Interface> {
        let each = getifaddrs().into_iter().flatten();
        let known = each.filter_map(|it| {
            let addr = mapped(ip(it.address.as_ref()?)?);
            let mask = mapped(ip(it.netmask.as_ref()?)?);
            // The mask of an IPv4 address applies to the last 32 bits.
            let high = if is_ipv4(addr) { !0 << 32 } else { 0 };
            let (addr, mask) = (addr.to_bits(), mask.to_bits() | high);
            Some(Interface { addr, mask })
        });
        known.collect()
    }
}

fn ip(addr: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = addr.as_sockaddr_in().map(|it| it.ip().into());
    v4.or_else(|| Some(addr.as_sockaddr_in6()?.ip().into()))
}

/// Returns an address in the form of a GID.
fn mapped(addr: IpAddr) -> Ipv6Addr {
    match addr {
        IpAddr::V4(addr) => addr.to_ipv6_mapped(),
        IpAddr::V6(addr) => addr,
    }
}

fn is_ipv4(addr: Ipv6Addr) -> bool {
    addr.to_ipv4_mapped().is_some()
}

/// How far packets from an address go.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Reach {
    Host,
    Link,
    Routed,
}

impl Reach {
    fn of(addr: Ipv6Addr) -> Reach {
        let (host, link) = match addr.to_ipv4_mapped() {
            Some(addr) => (addr.is_loopback(), addr.is_link_local()),
            None => (addr.is_loopback(), addr.is_unicast_link_local()),
        };
        match (host, link) {
            (true, _) => Reach::Host,
            (_, true) => Reach::Link,
            _ => Reach::Routed,
        }
    }
}

/// The rank of an address. Earlier fields decide first, and `true` ranks higher.
type Rank = ([bool; 4], Reach, [bool; 2]);

fn rank(gid: &Gid, wish: &Wish, interfaces: &[Interface]) -> Rank {
    let addr = gid.addr;
    let interface = interfaces.iter().find(|it| it.addr == addr.to_bits());
    let in_subnet = wish.peer.is_some_and(|peer| match interface {
        Some(it) => it.addr & it.mask == peer.to_bits() & it.mask,
        // The port reports no mask. All link-local addresses have one subnet.
        None => is_link_local(addr) && is_link_local(peer),
    });
    let same_family = |peer| is_ipv4(peer) == is_ipv4(addr);
    let first = [
        wish.peer.is_some_and(|peer| same_family(peer) && in_subnet),
        wish.peer.is_some_and(same_family),
        wish.source.map(mapped) == Some(addr),
        interface.is_some(),
    ];
    let is_v2 = gid.kind == IBV_GID_TYPE_ROCE_V2;
    (first, Reach::of(addr), [is_v2, is_ipv4(addr)])
}

fn is_link_local(addr: Ipv6Addr) -> bool {
    Reach::of(addr) == Reach::Link
}

/// Returns the best of these addresses, and the first of several that are equally good.
fn best(gids: &[Gid], wish: &Wish, interfaces: &[Interface]) -> Option<Gid> {
    let last_first = gids.iter().rev();
    last_first
        .max_by_key(|gid| rank(gid, wish, interfaces))
        .copied()
}

impl Context {
    /// Returns the addresses of the port.
    fn gids(&self) -> Vec<Gid> {
        // For holes in the table the query returns an error, or zeros.
        let all =
            (0..self.traits.gids).filter_map(|index| Some(gid(index, &self.gid(index).ok()?)));
        all.filter(|gid| !gid.addr.is_unspecified()).collect()
    }

    /// Returns the most suitable address.
    pub(in super::super) fn best_gid(&self, wish: &Wish) -> Result<Gid> {
        if !self.traits.ethernet {
            // On InfiniBand all addresses of the port are in one subnet, so the first one serves.
            return Ok(gid(0, &self.gid(0)?));
        }
        let gids = self.gids();
        best(&gids, wish, &Interface::all()).ok_or_else(|| {
            let (name, port) = (&self.name, self.traits.port);
            let text = format!(
                "port {port} of {name} has no address (GID): give its network device an IP address, and bring it up"
            );
            Error::new(ErrorKind::NotFound, None, text)
        })
    }

    /// Returns the GID of the port with this address. If the port has it for both versions of RoCE,
    /// returns the newer one.
    pub(in super::super) fn gid_of(&self, addr: Ipv6Addr) -> Result<Gid> {
        let mut gids = self.gids();
        gids.retain(|gid| gid.addr == addr);
        best(&gids, &Wish::default(), &[]).ok_or_else(|| {
            let name = &self.name;
            let text = format!("the port of {name} does not have the address {addr}");
            Error::new(ErrorKind::NotFound, None, text)
        })
    }

    /// Returns a known address with its present index, which may have changed.
    pub(in super::super) fn same_gid(&self, known: Gid) -> Result<Gid> {
        match self.gid(known.index) {
            Ok(entry) if gid(known.index, &entry) == known => Ok(known),
            _ => self.gid_of(known.addr),
        }
    }

    /// Returns the address at this index.
    pub(in super::super) fn gid_at(&self, index: u32) -> Result<Gid> {
        let found = self.gid(index).ok().map(|entry| gid(index, &entry));
        found
            .filter(|gid| !gid.addr.is_unspecified())
            .ok_or_else(|| {
                let name = &self.name;
                let text = format!("the port of {name} has no address at GID index {index}");
                Error::new(ErrorKind::NotFound, None, text)
            })
    }
}

fn gid(index: u32, entry: &ibv_gid_entry) -> Gid {
    Gid {
        index,
        addr: bytes(entry).into(),
        kind: entry.gid_type,
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::ffi::IBV_GID_TYPE_ROCE_V1;
    use super::*;

    fn addr(text: &str) -> Ipv6Addr {
        mapped(text.parse().unwrap())
    }

    /// Reads a table from a text such as "v1/fe80::1 v2/10.0.0.1".
    fn table(text: &str) -> Vec<Gid> {
        let each = text.split(' ').zip(0..);
        let entry = |(entry, index): (&str, u32)| {
            let (kind, text) = entry.split_once('/').unwrap();
            let kind = match kind {
                "v1" => IBV_GID_TYPE_ROCE_V1,
                _ => IBV_GID_TYPE_ROCE_V2,
            };
            let addr = addr(text);
            Gid { index, addr, kind }
        };
        each.map(entry).collect()
    }

    /// Reads interfaces from a text such as "10.0.0.1/24 fe80::1/64".
    fn interfaces(text: &str) -> Vec<Interface> {
        let each = text.split_whitespace();
        let interface = |text: &str| {
            let (text, bits) = text.split_once('/').unwrap();
            let addr = addr(text);
            let bits: u32 = bits.parse().unwrap();
            let bits = if is_ipv4(addr) { 96 + bits } else { bits };
            Interface {
                addr: addr.to_bits(),
                mask: !0 << (128 - bits),
            }
        };
        each.map(interface).collect()
    }

    struct Case {
        what: &'static str,
        table: &'static str,
        interfaces: &'static str,
        source: Option<&'static str>,
        peer: Option<&'static str>,
        index: u32,
    }

    #[rustfmt::skip]
    const CASES: &[Case] = &[
        // These are from public reports.
        Case { what: "the table has addresses of other containers (brpc 3119, nccl 1573 and 890)",
            table: "v2/10.244.7.9 v2/127.0.0.1", interfaces: "127.0.0.1/8",
            source: None, peer: None, index: 1 },
        Case { what: "the same, and the exchange's address is known",
            table: "v2/10.244.7.9 v2/10.244.3.2 v2/10.244.3.3",
            interfaces: "10.244.3.2/24 10.244.3.3/24",
            source: Some("10.244.3.3"), peer: None, index: 2 },
        Case { what: "169.254/16 is link-local (torchcomms 2945)",
            table: "v1/fe80::1 v2/fe80::1 v1/169.254.3.1 v2/169.254.3.1 v1/10.0.0.1 v2/10.0.0.1",
            interfaces: "", source: None, peer: None, index: 5 },
        Case { what: "fe80 before IPv4 (Mooncake 2747)",
            table: "v1/fe80::1 v2/fe80::1 v1/10.0.0.1 v2/10.0.0.1",
            interfaces: "", source: None, peer: None, index: 3 },
        Case { what: "only a ULA beside fe80 (uccl 803)",
            table: "v1/fe80::1 v2/fe80::1 v1/fd93::5 v2/fd93::5",
            interfaces: "", source: None, peer: None, index: 3 },
        // These are made up: hosts with several networks, NAT and loopback.
        Case { what: "a management network beside the fabric: the connector",
            table: "v1/10.1.0.1 v2/10.1.0.1", interfaces: "192.168.0.1/24 10.1.0.1/16",
            source: Some("192.168.0.1"), peer: None, index: 1 },
        Case { what: "two fabrics: the listener follows the connector's",
            table: "v2/10.1.0.2 v2/10.2.0.2", interfaces: "192.168.0.2/24 10.1.0.2/16 10.2.0.2/16",
            source: Some("192.168.0.2"), peer: Some("10.2.0.1"), index: 1 },
        Case { what: "the connector's subnet comes before the exchange's address",
            table: "v2/10.1.0.2 v2/10.2.0.2", interfaces: "10.1.0.2/16 10.2.0.2/16",
            source: Some("10.1.0.2"), peer: Some("10.2.0.1"), index: 1 },
        Case { what: "the connector's family comes before the exchange's address",
            table: "v2/10.1.0.2 v2/fd00::2", interfaces: "10.1.0.2/16 fd00::2/64",
            source: Some("fd00::2"), peer: Some("10.9.0.1"), index: 0 },
        Case { what: "NAT: the connector's own address, whatever the listener sees of it",
            table: "v2/10.5.0.7 v2/172.16.0.7", interfaces: "10.5.0.7/24 172.16.0.7/24",
            source: Some("172.16.0.7"), peer: None, index: 1 },
        Case { what: "NAT: no subnet is the connector's, so the exchange's address",
            table: "v2/203.0.113.9 v2/10.9.0.2", interfaces: "203.0.113.9/24 10.9.0.2/24",
            source: Some("10.9.0.2"), peer: Some("172.16.0.7"), index: 1 },
        Case { what: "the exchange by 127.0.0.1, which no port has",
            table: "v1/10.0.0.1 v2/10.0.0.1", interfaces: "127.0.0.1/8 10.0.0.1/24",
            source: Some("127.0.0.1"), peer: None, index: 1 },
        Case { what: "a port of the loopback device and the exchange by 127.0.0.1",
            table: "v2/10.0.0.1 v2/127.0.0.1", interfaces: "127.0.0.1/8 10.0.0.1/24",
            source: Some("127.0.0.1"), peer: None, index: 1 },
        Case { what: "only this side has the exchange's address: the peer's fabric is another",
            table: "v2/10.0.0.1 v2/10.7.0.1", interfaces: "10.0.0.1/24 10.7.0.1/24",
            source: Some("10.0.0.1"), peer: Some("10.7.0.2"), index: 1 },
        Case { what: "link-local peers, whose addresses no interface lists",
            table: "v2/10.0.0.1 v2/fe80::1", interfaces: "10.0.0.1/24",
            source: None, peer: Some("fe80::2"), index: 1 },
        Case { what: "RoCE v2 before v1, whatever their places",
            table: "v2/10.0.0.1 v1/10.0.0.1", interfaces: "10.0.0.1/24",
            source: None, peer: None, index: 0 },
        Case { what: "one that is listed and link-local before one of another container",
            table: "v2/10.244.7.9 v2/169.254.3.1", interfaces: "169.254.3.1/16",
            source: None, peer: None, index: 1 },
    ];

    #[test]
    fn the_address_suits_the_network() {
        for case in CASES {
            let wish = Wish {
                peer: case.peer.map(addr),
                source: case.source.map(|text| text.parse().unwrap()),
            };
            let chosen = best(&table(case.table), &wish, &interfaces(case.interfaces));
            assert_eq!(chosen.unwrap().index, case.index, "{}", case.what);
        }
        assert_eq!(best(&[], &Wish::default(), &[]), None);
    }

    /// The interfaces of the machine are known, with their masks: that of 127.0.0.1 has 8 bits.
    #[test]
    fn this_hosts_loopback_is_listed() {
        let all = Interface::all();
        let local = all.iter().find(|it| it.addr == addr("127.0.0.1").to_bits());
        let mask = local.expect("127.0.0.1 is up").mask;
        assert_eq!(mask.leading_ones(), 96 + 8);
    }
}
