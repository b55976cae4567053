//! Streams whose adapters cannot connect: with `or_tcp` on both sides they use TCP instead.

use std::time::Duration;

use futures::FutureExt;
use futures::future::{Either, join, select, try_join};
use nix::libc::{EIO, ENETUNREACH, ENOMEM};
use support::device::under_test;
use support::stream::{crosses, small};
use support::*;
use tokio::io::AsyncWriteExt;
use tokio_doca::stream::{RdmaStream, StreamOptions, StreamTransport};
use tokio_doca::{Device, ErrorKind, Result, WorkQ};

use crate::adapters::{open, provider};
use crate::fake_verbs::{Description, World};
use crate::streams::{loopback, meet};

fn options() -> StreamOptions {
    small().frame_size(8 << 10).or_tcp(true)
}

/// Makes two adapters, for the connector and the listener.
fn adapters(make: impl Fn(&str) -> Description) -> (World, [Device; 2]) {
    let names = ["fake0", "fake1"];
    let world = World::new(names.map(make));
    let verbs = provider(&world);
    let devices = names.map(|name| open(&verbs, name));
    (world, devices)
}

/// Checks that both streams use TCP, and that bytes pass.
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

/// A failure: its name, the adapters that it is applied to in turn, and the function that causes
/// it.
type Fault = (&'static str, &'static [&'static str], fn(&World, &str));

const EITHER: &[&str] = &["fake0", "fake1"];
const ALL: &[&str] = &["all"];

const FAULTS: [Fault; 6] = [
    ("removed", EITHER, |world, name| world.fake(name).remove()),
    ("no port", EITHER, |world, name| {
        world.fake(name).set_port(false);
    }),
    ("no queue pairs", ALL, |world, _| {
        world.faults().fail_always("ibv_create_qp", EIO);
    }),
    ("no route", ALL, |world, _| {
        world.faults().fail_always("ibv_modify_qp", ENETUNREACH);
    }),
    ("no regions", ALL, |world, _| {
        world.faults().fail_always("ibv_reg_mr", EIO);
    }),
    ("no completion queues", ALL, |world, _| {
        world.faults().fail_always("ibv_create_cq", EIO);
    }),
];

/// The failure comes before there is a peer.
#[test]
fn the_adapter_of_either_side_may_be_taken_away_or_fail() {
    for (what, names, fault) in FAULTS {
        for name in names {
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

/// Packets are lost in one direction or both, either the large ones or all.
#[test]
fn a_path_that_carries_nothing_is_left_for_tcp() {
    for carry in [[100, 100], [100, usize::MAX], [usize::MAX, 100]] {
        let (_world, devices) = adapters(|name| Description {
            path_bytes: carry[usize::from(name == "fake1")],
            hurry: 20,
            ..Description::roce(name)
        });
        run(async {
            // The memory for one connection is all in use by the try.
            let options = options().connections(1).timeout(Duration::from_secs(4));
            go_on(meet(&devices, [options; 2], loopback()).await).await;
        });
    }
}

/// An adapter is removed while large packets are tried, or while small ones are.
#[test]
fn an_adapter_may_be_taken_away_amid_the_exchange() {
    for name in ["fake0", "fake1"] {
        for tries in [2, 4] {
            let (world, devices) = adapters(|name| Description {
                path_bytes: 100,
                ..Description::roce(name)
            });
            run(async {
                let options = options().timeout(Duration::from_secs(8));
                let both = meet(&devices, [options; 2], loopback());
                // Each try makes a queue pair on both sides.
                let before = world.calls("ibv_create_qp");
                let remove = async {
                    let tried = || world.calls("ibv_create_qp") >= before + tries;
                    until("it is tried", tried).await;
                    world.fake(name).remove();
                };
                let (met, ()) = futures::join!(both, remove);
                go_on(met).await;
            });
        }
    }
}

/// A listener lacks memory for its first frames, since frames to strangers that have vanished hold
/// it: no stream falls back to TCP.
#[test]
fn strangers_that_hold_the_memory_for_sends_turn_no_stream_into_tcp() {
    let names = ["fake0", "fake1", "fake2"];
    let world = World::new(names.map(Description::roce));
    let verbs = provider(&world);
    let [honest, server, stranger] = names.map(|name| open(&verbs, name));
    run(async {
        let options = options().timeout(Duration::from_millis(1500));
        let options = options.linger(Duration::ZERO);
        let workq = || WorkQ::builder().build().unwrap();
        let listener = options.bind(&server, &workq(), loopback()).await.unwrap();
        let addr = listener.tcp_addr().unwrap();
        let accept = || async { listener.accept().await?.accept(b"").await };
        let strangers = options.connector(&stranger, &workq()).unwrap();
        let mut held = Vec::new();
        for _ in 0..2 {
            held.push(try_join(strangers.connect(addr), accept()).await.unwrap());
        }
        world.fake("fake2").set_port(false);
        for (_, there) in &mut held {
            while let Some(written) = there.write(&[7; 4000]).now_or_never() {
                written.unwrap();
            }
        }
        let honest = options.connector(&honest, &workq()).unwrap();
        let met = in_time("both sides", join(honest.connect(addr), accept())).await;
        for stream in [met.0, met.1].into_iter().flatten() {
            assert_eq!(stream.transport(), StreamTransport::Rdma);
        }
    });
}

/// Streams over TCP count even if the device accepts no more memory after the first ones.
#[test]
fn streams_over_tcp_count_among_the_connections() {
    let (world, [here, there]) = adapters(Description::roce);
    run(async {
        let options = StreamOptions::new().or_tcp(true).frame_size(128 << 10);
        let workq = || WorkQ::builder().depth(512).build().unwrap();
        let few = options.connections(10);
        let listener = few.bind(&there, &workq(), loopback()).await.unwrap();
        let addr = listener.tcp_addr().unwrap();
        let connector = options.connections(100).connector(&here, &workq()).unwrap();
        let mut held = Vec::new();
        let error = loop {
            if held.len() == 9 {
                world.faults().fail_always("ibv_reg_mr", EIO);
            }
            let accept = async { listener.accept().await?.accept(b"").await };
            match try_join(connector.connect(addr), accept).await {
                Ok(pair) => held.push(pair),
                Err(error) => break error,
            }
        };
        assert_eq!((held.len(), error.kind()), (10, ErrorKind::Full), "{error}");
    });
    world.faults().clear();
}

/// A lack of memory, which a stranger can cause, is an error and no reason for TCP.
#[test]
fn memory_that_is_not_to_be_had_is_an_error_and_no_reason_for_tcp() {
    for of_listener in [false, true] {
        let (world, devices) = adapters(Description::roce);
        run(async {
            let workq = || WorkQ::builder().build().unwrap();
            let (addr, workqs) = (loopback(), [workq(), workq()]);
            let listener = options().bind(&devices[1], &workqs[1], addr).await.unwrap();
            let connector = options().connector(&devices[0], &workqs[0]).unwrap();
            let fail = || world.faults().fail_always("ibv_create_qp", ENOMEM);
            if !of_listener {
                fail();
            }
            let connect = connector.connect(listener.tcp_addr().unwrap());
            let accept = async {
                let incoming = listener.accept().await?;
                fail();
                incoming.accept(b"").await.map(drop)
            };
            let both = select(Box::pin(connect), Box::pin(accept));
            let error = match in_time("an error", both).await {
                Either::Left((connected, _)) if !of_listener => connected.unwrap_err(),
                Either::Right((accepted, connects)) if of_listener => {
                    // The peer is told that it may try again.
                    rejected(connects.await, ErrorKind::Full);
                    accepted.unwrap_err()
                }
                _ => panic!("the other side"),
            };
            assert_eq!(error.kind(), ErrorKind::NoMemory, "{error}");
        });
        world.faults().clear();
    }
}
