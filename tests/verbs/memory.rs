//! The memory of streams on adapters, which lock it: how much there is, when it comes, and what a
//! lack of it means.

use std::collections::HashMap;

use futures::FutureExt;
use support::stream::{Net, small};
use support::*;
use tokio_doca::stream::StreamOptions;
use tokio_doca::{Device, ErrorKind, Mode, WorkQ};

use crate::adapters::{open, provider};
use crate::fake_verbs::{Description, Region, World};
use crate::streams::loopback;

const MIB: u64 = 1 << 20;

fn adapter() -> (World, Device) {
    let world = World::new([Description::roce("fake0")]);
    let device = open(&provider(&world), "fake0");
    (world, device)
}

/// The memory that the adapter has locked, but for what a queue of 64 has to ask whether its peers
/// are there.
fn of_streams(world: &World) -> Vec<Region> {
    let mut regions = world.fake("fake0").regions();
    regions.retain(|region| region.len > 512);
    regions
}

/// Its bytes.
fn locked(world: &World) -> u64 {
    of_streams(world).iter().map(|region| region.len).sum()
}

/// An adapter locks memory for each use of it: streams have one.
#[test]
fn memory_of_streams_is_registered_once() {
    let (world, device) = adapter();
    run(async {
        let net = Net::new(&device, Mode::EventDriven, small()).await;
        let _pair = net.pair().await;
        let mut times: HashMap<u64, usize> = HashMap::new();
        for region in of_streams(&world) {
            *times.entry(region.addr).or_default() += 1;
        }
        assert_eq!(times.len(), 2, "a listener's and a connector's: {times:?}");
        assert!(times.values().all(|&count| count == 1), "{times:?}");
    });
}

/// With the defaults 64 streams have 34 MiB on each side: nobody locks it for one peer, and none
/// is locked twice for those that come and go.
#[test]
fn memory_of_streams_comes_with_them() {
    let (world, device) = adapter();
    run(async {
        let options = StreamOptions::new().timeout(LIMIT);
        let net = Net::deep(1024, &device, Mode::EventDriven, options).await;
        // Of the listener alone.
        let before = locked(&world);
        assert!((4 * MIB..=8 * MIB).contains(&before), "{before}");
        let mut pairs = vec![net.pair().await];
        assert!((before + 1..=2 * 8 * MIB).contains(&locked(&world)));
        while pairs.len() < 64 {
            pairs.push(net.pair().await);
        }
        let all = locked(&world);
        assert!((64 * MIB..=72 * MIB).contains(&all), "{all}");
        let full = net.connector.connect(net.addr).await;
        rejected(full, ErrorKind::Full);
        pairs.truncate(1);
        pairs.push(net.pair_once_there_is_memory().await);
        assert_eq!(locked(&world), all);
    });
}

/// What a user of streams can change is said; who comes later is told that it may come again.
#[test]
fn memory_that_cannot_be_locked_is_said() {
    let (world, device) = adapter();
    run(async {
        let workq = || WorkQ::builder().depth(1024).build().unwrap();
        let options = StreamOptions::new().timeout(LIMIT);
        let refused = |text: &str| {
            for part in ["545 KiB each", "StreamOptions::connections"] {
                assert!(text.contains(part), "{text}");
            }
        };
        world.faults().fail("ibv_reg_mr", 1, libc::ENOMEM);
        let bound = options.bind(&device, &workq(), loopback()).await;
        refused(&rejected(bound, ErrorKind::NoMemory));

        let listener = options.bind(&device, &workq(), loopback()).await.unwrap();
        let addr = listener.tcp_addr().unwrap();
        let connector = options.connector(&device, &workq()).unwrap();
        world.faults().fail("ibv_reg_mr", 1, libc::ENOMEM);
        let connected = connector.connect(addr).await;
        refused(&rejected(connected, ErrorKind::NoMemory));

        // The connector of another memory has more than the listener.
        let mut pairs = Vec::new();
        let many = small()
            .connections(64)
            .connector(&device, &workq())
            .unwrap();
        let met = |fails: bool| {
            let (many, listener, world) = (&many, &listener, &world);
            async move {
                let accept = async {
                    let incoming = listener.accept().await?;
                    if fails {
                        world.faults().fail("ibv_reg_mr", 1, libc::ENOMEM);
                    }
                    incoming.accept(b"").await
                };
                let both = async { tokio::join!(many.connect(addr), accept) };
                in_time("both sides", both).await
            }
        };
        for _ in 0..15 {
            let (connected, accepted) = met(false).await;
            pairs.push((connected.unwrap(), accepted.unwrap()));
        }
        let (connected, accepted) = met(true).await;
        refused(&rejected(accepted, ErrorKind::NoMemory));
        rejected(connected, ErrorKind::Full);
        // And it may.
        let (connected, accepted) = met(false).await;
        pairs.push((connected.unwrap(), accepted.unwrap()));
    });
}

/// A registration takes long: the runtime's only thread does something else, and whoever gives up
/// meanwhile loses no memory.
#[test]
fn memory_of_streams_holds_up_nobody_else() {
    let (world, device) = adapter();
    run(async {
        let held = world.faults().hold_calls("ibv_reg_mr");
        let workq = WorkQ::builder().depth(64).build().unwrap();
        let mut bind = Box::pin(small().bind(&device, &workq, loopback()));
        let (asked, hears) = tokio::sync::oneshot::channel();
        let other = tokio::spawn(async { hears.await.unwrap() });
        assert!((&mut bind).now_or_never().is_none());
        asked.send(()).unwrap();
        in_time("another task", other).await.unwrap();
        assert!((&mut bind).now_or_never().is_none());
        drop(held);
        let listener = in_time("the listener", bind).await.unwrap();

        // One stream's memory, and its connect is dropped while it comes.
        let addr = listener.tcp_addr().unwrap();
        let connector = small().connections(1).connector(&device, &workq).unwrap();
        let parts = || of_streams(&world).len();
        let (before, held) = (parts(), world.faults().hold_calls("ibv_reg_mr"));
        let mut connect = Box::pin(connector.connect(addr));
        let begun = async {
            while parts() == before {
                assert!((&mut connect).now_or_never().is_none());
                tokio::task::yield_now().await;
            }
        };
        in_time("the registration", begun).await;
        drop(connect);
        drop(held);
        let accept = async {
            // Of those that hung up as well.
            loop {
                if let Ok(stream) = listener.accept().await.unwrap().accept(b"").await {
                    break stream;
                }
            }
        };
        let both = async { tokio::join!(connector.connect(addr), accept) };
        in_time("both sides", both).await.0.unwrap();
        assert_eq!(parts(), before + 1);
    });
}
