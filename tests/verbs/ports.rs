//! Ports of adapters, which device names select, and the completion vectors of WorkQs.

use std::net::SocketAddr;

use support::rdma::{Setup, Side, connect};
use support::stream::{Net, small};
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_doca::device::contract::Provider;
use tokio_doca::device::{DevInfo, PciFunction};
use tokio_doca::error::Reason;
use tokio_doca::rdma::RdmaState;
use tokio_doca::soft::Soft;
use tokio_doca::verbs::ffi::{IBV_MTU_512, IBV_MTU_1024, IBV_MTU_4096};
use tokio_doca::{Device, Dma, ErrorKind, Mode, Rdma, WorkQ};

use crate::adapters::{open, provider};
use crate::fake_verbs::{Description, World};

/// Describes an adapter with ports of these kinds. The second port has a smaller MTU.
fn two_ports(name: &str, kinds: [fn(&str) -> Description; 2]) -> Description {
    let second = Description {
        mtu: IBV_MTU_512,
        ..kinds[1](name)
    };
    kinds[0](name).with_second(second)
}

fn two_of_roce(name: &str) -> Description {
    two_ports(name, [Description::roce; 2])
}

fn side(device: &Device, mode: Mode) -> Side {
    let workq = WorkQ::builder().depth(32).mode(mode).build().unwrap();
    Side::on(device, &workq, Setup::new(false, mode))
}

async fn passes(from: &Side, to: &Side) {
    let both = async { tokio::join!(from.send(b"hello"), to.recv()) };
    let passed = in_time("a message", both).await;
    assert_eq!(passed, (Ok(()), Ok(b"hello".to_vec())));
}

/// Returns the port and the path MTU of each connected queue pair of the adapter.
fn used(world: &World, adapter: &str) -> Vec<(u8, u32)> {
    let connected = world.fake(adapter).connected();
    let of = connected.iter();
    of.map(|(attr, _)| (attr.ah_attr.port_num, attr.path_mtu))
        .collect()
}

#[test]
fn each_port_of_several_is_listed() {
    let world = World::new([two_of_roce("fake0"), Description::roce("fake1")]);
    let verbs = provider(&world);
    let names = || {
        let infos = verbs.devices().unwrap();
        let names = infos.iter().map(|info| info.name().to_owned());
        names.collect::<Vec<_>>()
    };
    let all = ["fake0", "fake0/1", "fake0/2", "fake1"];
    assert_eq!(names(), all);
    let one = open(&verbs, "fake0/2");
    assert_eq!(names(), all, "with one of them open");
    let others = ["fake0", "fake0/1", "fake1"].map(|name| open(&verbs, name));
    let opened = world.calls("ibv_open_device");
    assert_eq!(names(), all, "with all of them open");
    let again = world.calls("ibv_open_device");
    assert_eq!(again, opened, "what is open is not opened again");
    drop((one, others));
}

#[test]
fn a_name_is_one_device() {
    let world = World::new([two_of_roce("fake0"), Description::roce("fake1")]);
    let verbs = provider(&world);
    let names = ["fake0", "fake0/1", "fake0/2", "fake1"];
    let devices = names.map(|name| open(&verbs, name));
    for (at, (name, device)) in names.iter().zip(&devices).enumerate() {
        assert_eq!(device.info().name(), *name);
        assert_eq!(open(&verbs, name), *device);
        assert!(!devices[..at].contains(device), "{name} is another one");
    }
    // A name that selects the only port of an adapter finds the adapter itself.
    assert_eq!(open(&verbs, "fake1/1"), devices[3]);
}

#[test]
fn ports_that_do_not_exist_are_refused() {
    let world = World::new([two_of_roce("fake0"), Description::roce("fake1")]);
    let verbs = provider(&world);
    let wrong = ["3", "0", "x", "", "02", "+2", "2 ", "1/2", "258"].map(|port| ("fake0", port, 2));
    for (adapter, port, count) in wrong.into_iter().chain([("fake1", "2", 1)]) {
        let name = format!("{adapter}/{port}");
        assert_eq!(verbs.find(&name).unwrap(), None);
        let text = verbs.why_not(&name).unwrap();
        let says = format!(
            "it has no port \"{port}\": ports are numbered from 1, and the adapter has {count}"
        );
        assert!(text.contains(&name) && text.contains(&says), "{text}");
        // A `DevInfo` as an application could construct it.
        let known = verbs.find(adapter).unwrap().unwrap();
        let function = PciFunction::Pf;
        let info = DevInfo::new("verbs", &*name, None, function, known.caps().clone());
        let text = rejected(verbs.open(&info), ErrorKind::Initialization);
        assert!(text.contains(&says), "{text}");
    }
    assert_eq!(
        verbs.why_not("fake9/1"),
        None,
        "another provider may have it"
    );
    assert_eq!(verbs.why_not("fake0/2"), None);
    world.faults().fail_always("ibv_open_device", libc::EACCES);
    let text = verbs.why_not("fake1").unwrap();
    assert!(text.contains("fake1 cannot be opened"), "{text}");
}

/// Queue pairs use the address, LID and MTU of the port in the device's name, even if the links of
/// the ports differ.
#[test]
fn peers_connect_over_the_port_of_their_names() {
    let ib: fn(&str) -> Description = Description::infiniband;
    let roce = Description::roce;
    for kinds in [[ib, ib], [roce, roce], [ib, roce], [roce, ib]] {
        for mode in [Mode::EventDriven, Mode::BusyPoll] {
            let world = World::new(["fake0", "fake1"].map(|name| two_ports(name, kinds)));
            let verbs = provider(&world);
            let sides = |port: &str| {
                let names = ["fake0", "fake1"].map(|name| format!("{name}{port}"));
                names.map(|name| side(&open(&verbs, &name), mode))
            };
            run(async {
                // Copies use the MTU of the port; an `Rdma` was configured for 1024 bytes.
                let (first, second) = ([IBV_MTU_4096, IBV_MTU_1024], [IBV_MTU_512; 2]);
                let uses = [("/2", 2, second), ("/1", 1, first), ("", 1, first)];
                for (port, number, mtus) in uses {
                    let [one, other] = sides(port);
                    connect(&one.rdma, &other.rdma);
                    passes(&one, &other).await;
                    passes(&other, &one).await;
                    for adapter in ["fake0", "fake1"] {
                        let uses = mtus.map(|mtu| (number, mtu));
                        assert_eq!(used(&world, adapter), uses, "{adapter}{port}");
                    }
                    drop((one, other));
                    world.wait_until_empty();
                }
            });
        }
    }
}

#[test]
fn streams_use_the_port_of_their_device() {
    let world = World::new([two_of_roce("fake0")]);
    let device = open(&provider(&world), "fake0/2");
    run(async {
        let net = Net::new(&device, Mode::EventDriven, small()).await;
        let (mut here, mut there) = net.pair().await;
        here.write_all(b"hello").await.unwrap();
        let mut came = [0; 5];
        let read = there.read_exact(&mut came);
        in_time("five bytes", read).await.unwrap();
        assert_eq!(&came, b"hello");
        // Two of the four belong to copies, one for each WorkQ.
        assert_eq!(used(&world, "fake0"), [(2, IBV_MTU_512); 4]);
    });
}

#[test]
fn a_port_that_goes_down_ends_its_own_connections_alone() {
    let world = World::new(["fake0", "fake1"].map(two_of_roce));
    let verbs = provider(&world);
    let pair = |port: u8| {
        let names = ["fake0", "fake1"].map(|name| format!("{name}/{port}"));
        let sides = names.map(|name| side(&open(&verbs, &name), Mode::EventDriven));
        connect(&sides[0].rdma, &sides[1].rdma);
        sides
    };
    run(async {
        let (first, second) = (pair(1), pair(2));
        world.fake("fake0").set_port_of(2, false);
        assert_eq!(second[0].failed().await.reason(), Reason::PortDown);
        passes(&first[0], &first[1]).await;
        assert_eq!(first[0].rdma.state(), RdmaState::Connected);
    });
}

#[test]
fn an_adapter_without_a_port_in_its_name_uses_the_first_that_is_up() {
    let world = World::new([two_of_roce("fake0")]);
    let verbs = provider(&world);
    world.fake("fake0").set_port(false);
    let sides = [(); 2].map(|()| side(&open(&verbs, "fake0"), Mode::EventDriven));
    connect(&sides[0].rdma, &sides[1].rdma);
    run(passes(&sides[0], &sides[1]));
    assert_eq!(used(&world, "fake0"), [(2, IBV_MTU_512); 4]);
    // A port that the application names is used even if it is down, but without copies.
    assert_eq!(open(&verbs, "fake0/1").info().caps().dma, None);
}

#[test]
fn a_workq_is_signalled_by_its_completion_vector() {
    let description = Description {
        comp_vectors: 4,
        ..Description::roce("fake0")
    };
    let world = World::new([description]);
    let device = open(&provider(&world), "fake0");
    assert_eq!(device.info().caps().completion_vectors, 4);
    let workq = |vector| {
        let builder = WorkQ::builder().completion_vector(vector);
        builder.build().unwrap()
    };
    let vectors = || world.fake("fake0").completion_vectors();
    let rdma = Rdma::builder(&device).attach(&workq(3)).unwrap();
    assert_eq!(vectors(), [3]);
    let dma = Dma::builder(&device).attach(&WorkQ::builder().build().unwrap());
    assert_eq!(vectors(), [0, 3]);
    run(async {
        let local: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let listener = small().bind(&device, &workq(1), local).await.unwrap();
        let connector = small().connector(&device, &workq(2)).unwrap();
        let connect = connector.connect(listener.tcp_addr().unwrap());
        let accept = async { listener.accept().await?.accept(b"").await };
        let both = futures::future::try_join(connect, accept);
        let streams = in_time("the connection", both).await.unwrap();
        assert_eq!(vectors(), [0, 1, 2, 3]);
        drop(streams);
    });
    for vector in [4, u32::MAX] {
        let attached = Dma::builder(&device).attach(&workq(vector));
        let text = rejected(attached, ErrorKind::InvalidValue);
        let says = format!("completion vector {vector}: they are numbered from 0");
        assert!(text.contains(&says), "{text}");
        assert!(text.contains("device fake0 has 4"), "{text}");
    }
    drop((rdma, dma));
    let soft = Soft::builder().build().open("pf0").unwrap();
    assert_eq!(soft.info().caps().completion_vectors, 1);
    let refused = Dma::builder(&soft).attach(&workq(1));
    let text = rejected(refused, ErrorKind::InvalidValue);
    assert!(text.contains("device pf0 has 1"), "{text}");
    Dma::builder(&soft).attach(&workq(0)).unwrap();
}
