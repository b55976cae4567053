//! Streams whose adapters do not connect: with `or_tcp` on both sides they go on over TCP.

use std::time::Duration;

use nix::libc::{EIO, ENETUNREACH, ENOMEM};
use support::device::under_test;
use support::stream::{crosses, small};
use support::*;
use tokio_doca::stream::{RdmaStream, StreamOptions, StreamTransport};
use tokio_doca::{Device, ErrorKind, Result};

use crate::adapters::{open, provider};
use crate::fake_verbs::{Description, World};
use crate::streams::{loopback, meet};

fn options() -> StreamOptions {
    small().frame_size(8 << 10).or_tcp(true)
}

/// Two adapters, of the connector and of the listener.
fn adapters(make: impl Fn(&str) -> Description) -> (World, [Device; 2]) {
    let names = ["fake0", "fake1"];
    let world = World::new(names.map(make));
    let verbs = provider(&world);
    let devices = names.map(|name| open(&verbs, name));
    (world, devices)
}

/// Both have streams over TCP, and bytes cross.
async fn go_on(met: [Result<RdmaStream>; 2]) {
    let [mut here, mut there] = met.map(Result::unwrap);
    for stream in [&here, &there] {
        assert_eq!(stream.transport(), StreamTransport::Tcp);
    }
    crosses(&mut here, &mut there).await;
    crosses(&mut there, &mut here).await;
}

#[test]
fn an_adapter_and_a_software_device_go_on_over_tcp() {
    let (_world, [adapter, _]) = adapters(Description::roce);
    let soft = under_test(false);
    for devices in [[&adapter, &soft], [&soft, &adapter]] {
        let devices = devices.map(Device::clone);
        run(async { go_on(meet(&devices, [options(); 2], loopback()).await).await });
    }
}

#[test]
fn an_iwarp_adapter_serves_streams_over_tcp() {
    let (_world, devices) = adapters(Description::iwarp);
    run(async { go_on(meet(&devices, [options(); 2], loopback()).await).await });
}

/// What goes wrong with this adapter, or with all.
type Fault = (&'static str, fn(&World, &str));

const FAULTS: [Fault; 6] = [
    ("removed", |world, name| world.fake(name).remove()),
    ("no port", |world, name| world.fake(name).set_port(false)),
    ("no queue pairs", |world, _| {
        world.faults().fail_always("ibv_create_qp", EIO);
    }),
    ("no route", |world, _| {
        world.faults().fail_always("ibv_modify_qp", ENETUNREACH);
    }),
    ("no regions", |world, _| {
        world.faults().fail_always("ibv_reg_mr", EIO);
    }),
    ("no completion queues", |world, _| {
        world.faults().fail_always("ibv_create_cq", EIO);
    }),
];

/// On either side, before there is a peer.
#[test]
fn the_adapter_of_either_side_may_be_taken_away_or_fail() {
    for (what, fault) in FAULTS {
        for name in ["fake0", "fake1"] {
            eprintln!("{what}: {name}");
            let (world, devices) = adapters(Description::roce);
            fault(&world, name);
            run(async {
                let options = options().timeout(Duration::from_secs(4));
                go_on(meet(&devices, [options; 2], loopback()).await).await;
            });
            world.faults().clear();
        }
    }
}

/// In one direction or both, for large packets or for all.
#[test]
fn a_path_that_carries_nothing_is_left_for_tcp() {
    for carry in [[100, 100], [100, usize::MAX], [usize::MAX, 100]] {
        let (_world, devices) = adapters(|name| Description {
            path_bytes: carry[usize::from(name == "fake1")],
            hurry: 20,
            ..Description::roce(name)
        });
        run(async {
            // All memory is in use by what was tried.
            let options = options().connections(1).timeout(Duration::from_secs(4));
            go_on(meet(&devices, [options; 2], loopback()).await).await;
        });
    }
}

/// A stranger can take much of it for itself.
#[test]
fn memory_that_is_not_to_be_had_is_an_error_and_no_reason_for_tcp() {
    let (world, devices) = adapters(Description::roce);
    run(async {
        let addr = loopback();
        let workq = || tokio_doca::WorkQ::builder().build().unwrap();
        let listener = options().bind(&devices[1], &workq(), addr).await.unwrap();
        let connector = options().connector(&devices[0], &workq()).unwrap();
        world.faults().fail_always("ibv_create_qp", ENOMEM);
        let connect = connector.connect(listener.tcp_addr().unwrap());
        let accept = async { listener.accept().await?.accept(b"").await.map(drop) };
        let both = futures::future::select(Box::pin(connect), Box::pin(accept));
        let error = match in_time("an error", both).await {
            futures::future::Either::Left((connected, _)) => connected.unwrap_err(),
            futures::future::Either::Right((accepted, _)) => accepted.unwrap_err(),
        };
        assert_eq!(error.kind(), ErrorKind::NoMemory, "{error}");
    });
}
