//! Streams on adapters: what their options say is what the adapter is told.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use support::device::under_test;
use support::stream::{Net, small};
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_doca::rdma::{Mtu, Transport};
use tokio_doca::stream::StreamOptions;
use tokio_doca::verbs::ffi::IBV_MTU_2048;
use tokio_doca::{ErrorKind, Mode, WorkQ};

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
            assert_eq!(here.rdma().transport().traffic_class, 104);
        });
    }
}

/// An adapter locks memory for each use of it: streams have one.
#[test]
fn memory_of_streams_is_registered_once() {
    let world = World::new([Description::roce("fake0")]);
    let device = open(&provider(&world), "fake0");
    run(async {
        let _net = Net::new(&device, Mode::EventDriven, small()).await;
        let mut times: HashMap<u64, usize> = HashMap::new();
        for region in world.fake("fake0").regions() {
            *times.entry(region.addr).or_default() += 1;
        }
        assert_eq!(times.len(), 2, "a listener's and a connector's: {times:?}");
        assert!(times.values().all(|&count| count == 1), "{times:?}");
    });
}

#[test]
fn settings_that_a_device_does_not_take_are_refused_before_a_peer_comes() {
    let world = World::new([Description::roce("fake0")]);
    let adapter = open(&provider(&world), "fake0");
    let workq = WorkQ::builder().build().unwrap();
    let local: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let refused = |device, options: StreamOptions, kind, part: &str| {
        let bound = run(options.bind(device, &workq, local));
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

/// A frame waits for a peer without a receive for as long as the options say.
#[test]
fn a_stream_waits_for_a_peer_without_a_receive_as_long_as_it_is_told() {
    let device = under_test(false);
    run(async {
        for limit in [None, Some(Duration::from_secs(7))] {
            let net = Net::new(&device, Mode::EventDriven, small().rnr_timeout(limit)).await;
            let (here, there) = net.pair().await;
            let limit = limit.unwrap_or(Duration::from_millis(100));
            assert_eq!(
                [here.rdma().rnr_timeout(), there.rdma().rnr_timeout()],
                [limit; 2]
            );
        }
    });
}
