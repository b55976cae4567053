//! Tests which of its adapter's addresses a stream uses.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use support::programs::Folder;
use support::stream::small;
use support::*;
use tokio_doca::rdma::Transport;
use tokio_doca::stream::{StreamAddr, StreamOptions};
use tokio_doca::verbs::ffi::{IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2};
use tokio_doca::{ErrorKind, WorkQ};

use crate::adapters::{open, provider};
use crate::fake_verbs::{Description, Gid, World};
use crate::streams::{loopback, meet};

/// Returns the address in the form that a GID has: IPv4 is mapped to IPv6.
fn mapped(text: &str) -> Ipv6Addr {
    match text.parse().unwrap() {
        IpAddr::V4(addr) => addr.to_ipv6_mapped(),
        IpAddr::V6(addr) => addr,
    }
}

/// Describes an adapter with a GID table like "v1/fe80::1 v2/10.0.0.1 -"; "-" is an empty entry.
fn adapter(name: &str, table: &str) -> Description {
    let gid = |entry: &str| {
        let (kind, text) = entry.split_once('/')?;
        let raw = mapped(text).octets();
        let kind = match kind {
            "v1" => IBV_GID_TYPE_ROCE_V1,
            _ => IBV_GID_TYPE_ROCE_V2,
        };
        Some(Gid { raw, kind })
    };
    Description {
        gids: table.split(' ').map(gid).collect(),
        ..Description::roce(name)
    }
}

/// Returns the addresses that a connector and a listener with these GID tables use.
fn chosen(tables: [&str; 2], options: StreamOptions, addr: impl Into<StreamAddr>) -> [Ipv6Addr; 2] {
    let wishes = format!("{options:?}").contains("source: Some");
    let world = World::new([adapter("fake0", tables[0]), adapter("fake1", tables[1])]);
    let verbs = provider(&world);
    let devices = ["fake0", "fake1"].map(|name| open(&verbs, name));
    run(async {
        let addr = addr.into();
        let met = meet(&devices, [options, small()], addr.clone()).await;
        let [here, there] = met.map(Result::unwrap);
        if let StreamAddr::Tcp(addr) = addr {
            // An IPv6 socket names an IPv4 address in its mapped form.
            let met = Some(addr.ip().to_canonical());
            let sources = [&here, &there].map(|stream| stream.rdma().unwrap().transport().source);
            assert_eq!(sources[1], met);
            assert!(wishes || sources[0] == met, "{sources:?}");
        }
        let paths = [&here, &there].map(|stream| stream.rdma().unwrap().path().unwrap());
        let addrs = paths.map(|path| path.gid);
        assert_eq!(paths.map(|path| path.peer_gid), [addrs[1], addrs[0]]);
        // Checks the addresses that the queue pairs were given.
        for (name, table, addr) in [
            ("fake0", tables[0], addrs[0]),
            ("fake1", tables[1], addrs[1]),
        ] {
            let connected = world.fake(name).connected();
            let (attr, _) = connected.iter().find(|(_, inline)| *inline > 0).unwrap();
            let index = usize::from(attr.ah_attr.grh.sgid_index);
            let (kind, text) = table
                .split(' ')
                .nth(index)
                .unwrap()
                .split_once('/')
                .unwrap();
            assert_eq!((kind, mapped(text)), ("v2", addr));
        }
        addrs
    })
}

/// The address at which two sides met is chosen if both tables have it, even between addresses of
/// other containers.
#[test]
fn streams_have_the_address_at_which_they_met() {
    let met = mapped("127.0.0.1");
    let table = "v1/10.244.7.9 v2/10.244.7.9 - v1/127.0.0.1 v2/127.0.0.1 v2/10.244.3.3";
    assert_eq!(chosen([table; 2], small(), loopback()), [met; 2]);
    // A dual-stack IPv6 socket names the address ::ffff:127.0.0.1.
    let both: SocketAddr = "[::ffff:127.0.0.1]:0".parse().unwrap();
    assert_eq!(chosen([table; 2], small(), both), [met; 2]);
}

/// If the network of the exchange is not that of the adapters, the listener chooses an address that
/// matches the connector's.
#[test]
fn a_listener_follows_its_connector() {
    let options = |gid: &str| {
        let mut transport = Transport::default();
        transport.gid = Some(mapped(gid));
        small().transport(transport)
    };
    // An address of the same family: no interface here has these addresses, so nothing else is
    // known.
    let [one, other] = ["v2/10.0.0.1 v2/fd00::1", "v2/10.0.0.9 v2/fd00::9"];
    let addrs = chosen([one, other], options("fd00::1"), loopback());
    assert_eq!(addrs, ["fd00::1", "fd00::9"].map(mapped));
    // An address of the same subnet, 127.0.0.0/8, is preferred to the one that would rank best.
    let [one, other] = ["v2/127.0.0.7", "v2/10.0.0.9 v2/127.0.0.1"];
    let folder = Folder::new();
    let addrs = chosen([one, other], small(), folder.path("socket"));
    assert_eq!(addrs, ["127.0.0.7", "127.0.0.1"].map(mapped));
    // Without a peer's address the one that the application asked for comes first.
    let mut wish = Transport::default();
    wish.source = Some("10.0.0.2".parse().unwrap());
    let both = "v2/10.0.0.1 v2/10.0.0.2";
    let addrs = chosen([both; 2], small().transport(wish), loopback());
    assert_eq!(addrs[0], mapped("10.0.0.2"));
}

/// If the adapter cannot reach the peer, the error names both addresses and the place to set them.
#[test]
fn an_address_that_leads_nowhere_is_named() {
    let world = World::new([
        adapter("fake0", "v2/10.0.0.1"),
        adapter("fake1", "v2/10.7.0.1"),
    ]);
    let verbs = provider(&world);
    let [one, other] = ["fake0", "fake1"].map(|name| open(&verbs, name));
    run(async {
        let workq = || WorkQ::builder().build().unwrap();
        let listener = small().bind(&other, &workq(), loopback()).await.unwrap();
        let connector = small().connector(&one, &workq()).unwrap();
        let accept = async {
            let incoming = listener.accept().await?;
            // Six calls come first, three for the listener's copies and three for its stream; the
            // seventh takes the connector's queue pair to RTR.
            world.faults().fail("ibv_modify_qp", 7, libc::ENETUNREACH);
            incoming.accept(b"").await.map(drop)
        };
        let connect = async {
            connector
                .connect(listener.local_addr().clone())
                .await
                .map(drop)
        };
        let both = async { tokio::join!(connect, accept) };
        let (connected, accepted) = in_time("both sides", both).await;
        accepted.unwrap_err();
        let text = rejected(connected, ErrorKind::NotSupported);
        for part in ["10.0.0.1", "10.7.0.1", "gid_index"] {
            assert!(text.contains(part), "{text}");
        }
    });
}

/// An iWARP adapter connects by rdma_cm alone.
#[test]
fn streams_that_meet_at_a_socket_are_refused_on_iwarp() {
    let world = World::new([Description::iwarp("fake0")]);
    let device = open(&provider(&world), "fake0");
    let workq = WorkQ::builder().build().unwrap();
    let kind = ErrorKind::NotSupported;
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let dial = async || {
        let connector = small().connector(&device, &workq).unwrap();
        connector.connect(socket.local_addr().unwrap()).await
    };
    for text in [
        rejected(run(small().bind(&device, &workq, loopback())), kind),
        rejected(run(dial()), kind),
    ] {
        assert!(text.contains("fake0 is an iWARP adapter"), "{text}");
        assert!(text.contains("StreamAddr::Cm"), "{text}");
    }
}

/// An InfiniBand port is reached by its LID: zeros in place of its address are accepted.
#[test]
fn an_infiniband_port_without_an_address_connects() {
    let adapter = |name: &str| {
        let mut adapter = Description::infiniband(name);
        adapter.gids[0].as_mut().unwrap().raw = [0; 16];
        adapter
    };
    let world = World::new([adapter("fake0"), adapter("fake1")]);
    let verbs = provider(&world);
    let devices = ["fake0", "fake1"].map(|name| open(&verbs, name));
    run(async {
        let met = meet(&devices, [small(); 2], loopback()).await;
        let paths = met.map(|stream| stream.unwrap().rdma().unwrap().path().unwrap());
        assert!(paths.iter().all(|path| path.gid.is_unspecified()));
    });
}
