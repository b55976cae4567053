//! Streams on adapters: their options reach the adapter.

use std::net::SocketAddr;
use std::time::Duration;

use support::device::under_test;
use support::stream::{Net, offer, say, small};
use support::subscriber::Lines;
use support::{test_name, *};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_doca::mem::{Access, BufInventory, RemoteMmap};
use tokio_doca::rdma::{Mtu, RdmaState, Transport};
use tokio_doca::stream::{RdmaStream, StreamAddr, StreamOptions};
use tokio_doca::verbs::ffi::{IBV_MTU_512, IBV_MTU_1024, IBV_MTU_2048, IBV_MTU_4096, ibv_mtu};
use tokio_doca::{Device, ErrorKind, Mmap, Mode, Rdma, WorkQ};

use crate::adapters::{open, provider};
use crate::fake_verbs::{Description, World};

#[test]
fn packets_of_streams_travel_as_the_options_say() {
    for mode in [Mode::EventDriven, Mode::BusyPoll] {
        let world = World::new([Description::roce("fake0")]);
        let device = open(&provider(&world), "fake0");
        let mut transport = Transport::default();
        transport.traffic_class = 104;
        transport.hop_limit = 7;
        let options = small()
            .transport(transport)
            .gid_index(5)
            .frame_size(4096)
            .mtu(Mtu::Bytes2048);
        run(async {
            let net = Net::new(&device, mode, options).await;
            let (mut here, mut there) = net.pair().await;
            here.write_all(b"hello").await.unwrap();
            let mut came = [0; 5];
            in_time("five bytes", there.read_exact(&mut came))
                .await
                .unwrap();
            assert_eq!(&came, b"hello");
            let connected = world.fake("fake0").connected();
            let of_streams = connected.iter().filter(|(_, inline)| *inline > 0);
            let told: Vec<_> = of_streams
                .map(|(attr, _)| {
                    let path = attr.ah_attr.grh;
                    let of_path = (path.traffic_class, path.hop_limit, path.sgid_index);
                    (of_path, attr.path_mtu)
                })
                .collect();
            assert_eq!(told, [((104, 7, 5), IBV_MTU_2048); 2]);
            assert_eq!(here.rdma().unwrap().transport().traffic_class, 104);
        });
    }
}

#[test]
fn settings_that_a_device_does_not_take_are_refused_before_a_peer_comes() {
    let world = World::new([Description::roce("fake0")]);
    let adapter = open(&provider(&world), "fake0");
    let workq = WorkQ::builder().build().unwrap();
    let refused = |device, options: StreamOptions, kind, part: &str| {
        let bound = run(options.bind(device, &workq, loopback()));
        let text = rejected(bound, kind);
        assert!(text.contains(part), "{text}");
        let text = rejected(options.connector(device, &workq), kind);
        assert!(text.contains(part), "{text}");
    };
    let mut wrong = Transport::default();
    wrong.service_level = 16;
    let (bad, no) = (ErrorKind::InvalidValue, ErrorKind::NotSupported);
    refused(&adapter, small().transport(wrong), bad, "service_level");
    refused(&adapter, small().gid_index(1000), bad, "GID index 1000");
    let mut lossless = Transport::default();
    lossless.traffic_class = 104;
    let soft = under_test(false);
    refused(&soft, small().transport(lossless), no, "no network");
}

/// A frame waits as long as the options say for a peer that has no receive posted.
#[test]
fn a_stream_waits_for_a_peer_without_a_receive_as_long_as_it_is_told() {
    let device = under_test(false);
    run(async {
        for limit in [None, Some(Duration::from_secs(7))] {
            let net = Net::new(&device, Mode::EventDriven, small().rnr_timeout(limit)).await;
            let (here, there) = net.pair().await;
            let limit = limit.unwrap_or(Duration::from_millis(100));
            assert_eq!(
                [
                    here.rdma().unwrap().rnr_timeout(),
                    there.rdma().unwrap().rnr_timeout()
                ],
                [limit; 2]
            );
        }
    });
}

/// Returns two adapters; packets of side `i` arrive if they have at most `carry[i]` bytes.
fn networks(carry: [usize; 2], make: fn(&str) -> Description) -> (World, [Device; 2]) {
    let adapter = |at: usize| Description {
        path_bytes: carry[at],
        hurry: 20,
        ..make(["fake0", "fake1"][at])
    };
    let world = World::new([adapter(0), adapter(1)]);
    let verbs = provider(&world);
    let devices = ["fake0", "fake1"].map(|name| open(&verbs, name));
    (world, devices)
}

/// Connects a stream from the first device to the second. Returns the result of each side.
pub(crate) async fn meet(
    devices: &[Device; 2],
    options: [StreamOptions; 2],
    addr: impl Into<StreamAddr>,
) -> [tokio_doca::Result<RdmaStream>; 2] {
    let workq = || WorkQ::builder().build().unwrap();
    let listener = options[1].bind(&devices[1], &workq(), addr).await.unwrap();
    let connector = options[0].connector(&devices[0], &workq()).unwrap();
    let addr = listener.local_addr().clone();
    let accept = async { listener.accept().await?.accept(b"").await };
    let both = async { tokio::join!(connector.connect(addr), accept) };
    in_time("both sides", both).await.into()
}

pub(crate) fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// Returns the MTUs of the streams' queue pairs on both sides.
fn mtus(world: &World) -> Vec<ibv_mtu> {
    let connected = ["fake0", "fake1"].map(|name| world.fake(name).connected());
    let of_streams = connected.iter().flatten().filter(|(_, inline)| *inline > 0);
    of_streams.map(|(attr, _)| attr.path_mtu).collect()
}

/// Sends more than a packet in both directions, and checks that it arrives.
async fn carries(pair: &mut [RdmaStream; 2]) {
    let bytes: Vec<u8> = (0..30_000_u32).map(|at| at as u8).collect();
    for _ in 0..2 {
        pair.swap(0, 1);
        let [from, to] = pair;
        let mut came = vec![0; bytes.len()];
        let both = async {
            tokio::try_join!(from.write_all(&bytes), to.read_exact(&mut came)).unwrap();
        };
        in_time("all bytes", both).await;
        assert_eq!(came, bytes);
    }
}

fn long() -> StreamOptions {
    small().frame_size(8 << 10)
}

/// Packets are as large as both ports permit, unless the options ask for less.
#[test]
fn packets_are_as_large_as_both_ports_have_them() {
    type Make = fn(&str) -> Description;
    let makes: [(Make, _); 2] = [
        (Description::roce, IBV_MTU_4096),
        (Description::soft_roce, IBV_MTU_1024),
    ];
    for (make, mtu) in makes {
        for (options, mtu) in [(long(), mtu), (long().mtu(Mtu::Bytes512), IBV_MTU_512)] {
            let (world, devices) = networks([usize::MAX; 2], make);
            run(async {
                let met = meet(&devices, [options; 2], loopback()).await;
                let mut pair = met.map(Result::unwrap);
                assert_eq!(mtus(&world), [mtu; 2]);
                carries(&mut pair).await;
            });
        }
    }
}

/// If the network carries less than the ports permit, in one direction or both, streams use packets
/// of 1,024 bytes, even if the first try used all their memory.
#[test]
fn packets_that_a_network_does_not_carry_are_made_smaller() {
    for carry in [[1500, usize::MAX], [usize::MAX, 1500], [1024, 1024]] {
        for options in [long().connections(1), long().recv_bufs(3)] {
            let (world, devices) = networks(carry, Description::roce);
            run(async {
                let met = meet(&devices, [options; 2], loopback()).await;
                let mut pair = met.map(Result::unwrap);
                assert_eq!(mtus(&world), [IBV_MTU_1024; 2], "{carry:?}");
                carries(&mut pair).await;
                let path = pair[0].rdma().unwrap().path().unwrap();
                assert_eq!(path.mtu, Mtu::Bytes1024);
            });
        }
    }
}

/// If the network carries nothing in one direction or both, there is no stream, and the connector's
/// error names both addresses.
#[test]
fn a_path_that_carries_nothing_makes_no_stream() {
    for carry in [[100, 100], [100, usize::MAX], [usize::MAX, 100]] {
        let (_world, devices) = networks(carry, Description::roce);
        run(async {
            let options = long().timeout(Duration::from_secs(4));
            let [connected, accepted] = meet(&devices, [options; 2], loopback()).await;
            accepted.unwrap_err();
            let text = connected.unwrap_err().to_string();
            for part in ["10.0.", " to 10.0.", "gid_index"] {
                assert!(text.contains(part), "{text}");
            }
        });
    }
}

/// The listener's error names both addresses, as the connector's does.
#[test]
fn a_listener_whose_peer_does_not_come_says_where_it_waited() {
    let (_world, devices) = networks([usize::MAX; 2], Description::roce);
    run(async {
        let workq = || WorkQ::builder().build().unwrap();
        let options = long().timeout(Duration::from_millis(100));
        let listener = options
            .bind(&devices[1], &workq(), loopback())
            .await
            .unwrap();
        let mut peer = TcpStream::connect(listener.tcp_addr().unwrap())
            .await
            .unwrap();
        let rdma = Rdma::builder(&devices[0]).attach(&workq()).unwrap();
        say(&mut peer, &offer(0, 0, &rdma.export().unwrap()))
            .await
            .unwrap();
        let incoming = in_time("the hello", listener.accept()).await.unwrap();
        let text = rejected(incoming.accept(b"").await, ErrorKind::TimedOut);
        for part in ["10.0.", " to 10.0.", "gid_index"] {
            assert!(text.contains(part), "{text}");
        }
    });
}

/// Strangers name an address that does not exist, which the kernel tries to resolve. However many
/// they are, the application's own connect is not delayed.
#[test]
fn strangers_at_addresses_of_nobody_hold_up_no_connect() {
    const STRANGERS: usize = 64;
    let world = World::new([Description::roce("fake0")]);
    let device = open(&provider(&world), "fake0");
    run(async {
        let workq = || WorkQ::builder().build().unwrap();
        let options = small().connections(STRANGERS);
        let listener = options.bind(&device, &workq(), loopback()).await.unwrap();
        let rdma = || Rdma::builder(&device).attach(&workq()).unwrap();
        let (named, own) = (rdma(), rdma());
        let before = world.calls("ibv_modify_qp(RTR)");
        let held = world.faults().hold_calls("ibv_modify_qp(RTR)");
        let (mut peers, mut accepts) = (Vec::new(), Vec::new());
        for _ in 0..STRANGERS {
            let addr = listener.tcp_addr().unwrap();
            let mut peer = TcpStream::connect(addr).await.unwrap();
            say(&mut peer, &offer(0, 0, &named.export().unwrap()))
                .await
                .unwrap();
            peers.push(peer);
            let incoming = in_time("a hello", listener.accept()).await.unwrap();
            accepts.push(tokio::spawn(async { incoming.accept(b"").await }));
        }
        let looked_for = || world.calls("ibv_modify_qp(RTR)") - before;
        until("all are looked for", || looked_for() >= STRANGERS as u64).await;
        let refused = in_time("an answer", own.connect(b"no blob")).await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidValue);
        drop((held, peers));
        for accept in accepts {
            accept.await.unwrap().unwrap_err();
        }
    });
}

/// A new stream accepts a whole window of frames before the peer reads: the first frame of each
/// side has returned its receive.
#[test]
fn a_new_stream_has_its_whole_window() {
    let world = World::new([Description::soft_roce("fake0")]);
    let device = open(&provider(&world), "fake0");
    run(async {
        let net = Net::new(&device, Mode::EventDriven, small()).await;
        let (mut here, mut there) = net.pair().await;
        // Three frames of 252 bytes.
        for stream in [&mut here, &mut there] {
            let written = in_time("a window", stream.write_all(&[1; 3 * 252])).await;
            written.unwrap();
        }
    });
}

/// One-sided operations use the MTU of the path too: their packets are no larger than the frame
/// that was tried.
#[test]
fn packets_of_one_sided_operations_are_as_large_as_what_was_tried() {
    for frame in [64, 512, 2048, 8 << 10] {
        let (_world, devices) = networks([1500; 2], Description::roce);
        run(async {
            let options = small().frame_size(frame).permissions(Access::RDMA_WRITE);
            let met = meet(&devices, [options; 2], loopback()).await;
            let [here, _there] = met.map(Result::unwrap);
            assert!(
                here.rdma().unwrap().path().unwrap().mtu <= Mtu::Bytes1024,
                "{frame}"
            );
            let memory = |device, access| {
                let memory = Mmap::builder().device(device).access(access);
                memory.alloc(8 << 10).unwrap()
            };
            let access = Access::LOCAL_READ_WRITE | Access::RDMA_WRITE;
            let theirs = memory(&devices[1], access);
            let blob = theirs.export_rdma(&devices[1]).unwrap();
            let remote = RemoteMmap::from_export(&devices[0], &blob).await.unwrap();
            let own = memory(&devices[0], Access::LOCAL_READ_WRITE);
            let src = BufInventory::with_capacity(1).buf_filled(&own, ..).unwrap();
            let dst = remote.buf(..).unwrap();
            let written = here.rdma().unwrap().write(&src, &dst);
            in_time("8 KiB", written).await.unwrap();
        });
    }
}

/// A peer that has ended its stream in order causes no warning, although the adapter only sees that
/// it is silent; a peer that vanishes without an end does.
#[test]
fn an_orderly_end_warns_nobody() {
    if !alone(test_name!(an_orderly_end_warns_nobody)) {
        return;
    }
    let lines = Lines::everywhere();
    for ends in [true, false] {
        let (_world, devices) = networks([usize::MAX; 2], Description::roce);
        run(async {
            let options = long().linger(Duration::ZERO);
            let mut pair = meet(&devices, [options; 2], loopback())
                .await
                .map(Result::unwrap);
            let [here, there] = &mut pair;
            let mut watch = there.rdma().unwrap().watch();
            here.write_all(b"bye").await.unwrap();
            if ends {
                here.shutdown().await.unwrap();
            }
            let mut came = [0; 4];
            let len = if ends { 3 } else { 2 };
            in_time("the data", there.read_exact(&mut came[..len]))
                .await
                .unwrap();
            if ends {
                assert_eq!(there.read(&mut came).await.unwrap(), 0);
            }
            let [here, there] = pair;
            // Without a linger the peer is not told of the drop.
            drop(here);
            let fails = async {
                while !matches!(there.rdma().unwrap().state(), RdmaState::Error(_)) {
                    watch.changed().await.unwrap();
                }
            };
            in_time("the end of the connection", fails).await;
            let warned = lines.with(&["WARN tokio_doca::rdma state"]).len();
            assert_eq!(warned, usize::from(!ends));
        });
    }
}
