//! The memory of streams on adapters, which lock it: its size, when it is allocated, and how a lack
//! of it is reported.

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

/// Returns the memory regions of streams: those longer than the 512 bytes that a queue of depth 64
/// needs for its probes.
fn of_streams(world: &World) -> Vec<Region> {
    let mut regions = world.fake("fake0").regions();
    regions.retain(|region| region.len > 512);
    regions
}

/// Returns the number of bytes that streams have registered.
fn locked(world: &World) -> u64 {
    of_streams(world).iter().map(|region| region.len).sum()
}

/// An adapter locks memory once per registration, so each memory of streams is registered only
/// once.
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

/// With the defaults 64 streams take 34 MiB on each side. A single peer does not lock all of it,
/// and memory is reused for streams that come and go.
#[test]
fn memory_of_streams_comes_with_them() {
    let (world, device) = adapter();
    run(async {
        let options = StreamOptions::new().timeout(LIMIT);
        let net = Net::deep(1024, &device, Mode::EventDriven, options).await;
        // The memory of the listener alone.
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

/// The error names the option that a user of streams can change; a peer that connects later is told
/// to try again.
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

        // A connector with its own memory allows more streams than the listener.
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
        // The peer may connect now.
        let (connected, accepted) = met(false).await;
        pairs.push((connected.unwrap(), accepted.unwrap()));
    });
}

/// While a slow registration is in progress, the runtime's only thread continues with other tasks,
/// and an attempt that is given up meanwhile loses no memory.
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

        // The memory of one stream; its `connect` is dropped while the memory is registered.
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
            // Attempts that hung up are accepted as well.
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
