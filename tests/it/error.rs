//! Errors: their texts, and their conversions to other error types.

use support::loopback::Loopback;
use support::{Bench, configs, each, mentions, run};
use tokio_doca::soft::{Fault, Soft, Topology, View};
use tokio_doca::{
    BufPool, Device, Dma, Error, ErrorKind, Mmap, Rdma, WorkQ,
    channel::Channel,
    device::{RepFilter, Representor},
    graph::Graph,
    mem::{Access, BufInventory, RemoteMmap},
    sync_event::{Location, SyncEvent},
};

/// All access flags that a peer may have.
const ALL: Access = Access::LOCAL_READ_WRITE
    .union(Access::DPU_READ_WRITE)
    .union(Access::RDMA_READ)
    .union(Access::RDMA_ATOMIC);

/// Both sides of a card, and a blob of each kind.
struct Card {
    host: Device,
    dpu: Device,
    workq: WorkQ,
    mmap: Mmap,
    event: SyncEvent,
    rdma: Rdma,
}

impl Card {
    fn new() -> Card {
        let host = Soft::builder().build().open("pf0").unwrap();
        let dpu = Soft::builder().view(View::Dpu).build().open("p0").unwrap();
        let workq = WorkQ::builder().build().unwrap();
        let builder = Mmap::builder().device(&host).access(ALL);
        let event = SyncEvent::builder()
            .publisher(Location::Dpu)
            .subscriber(Location::Cpu(&host));
        Card {
            mmap: builder.alloc(1 << 16).unwrap(),
            event: event.attach(&workq).unwrap(),
            rdma: Rdma::builder(&host).attach(&workq).unwrap(),
            host,
            dpu,
            workq,
        }
    }
}

/// Checks that the error starts with the name of the call, and names no other call.
#[track_caller]
fn names<T>(call: &str, result: Result<T, Error>) -> String {
    let text = result.err().expect("it is refused").to_string();
    let rest = text.strip_prefix(&format!("{call}: "));
    let rest = rest.unwrap_or_else(|| panic!("not of {call}: {text}"));
    assert!(!rest.starts_with(call), "{text}");
    let first = rest
        .split(' ')
        .next()
        .and_then(|word| word.strip_suffix(':'));
    let is_call = |word: &str| {
        word.chars()
            .all(|c| c.is_alphanumeric() || "_:".contains(c))
    };
    assert!(!first.is_some_and(is_call), "two calls: {text}");
    text
}

#[test]
fn an_error_names_the_public_call_also_where_the_device_is_what_failed() {
    run(async {
        let card = Card::new();
        let Card { host, dpu, .. } = &card;
        let garbage = b"#!/bin/sh and more";
        names("Device::open", Device::open("nope"));
        names("Soft::open", Soft::builder().build().open("nope"));
        names(
            "RemoteMmap::from_export",
            RemoteMmap::from_export(dpu, garbage).wait(),
        );
        names(
            "RemoteMmap::from_export",
            RemoteMmap::from_export(dpu, garbage).await,
        );
        names(
            "SyncEvent::from_export",
            SyncEvent::from_export(dpu, garbage).wait(),
        );
        // This provider's error names a call of its own.
        let loopback = Loopback::device(true).1;
        let imported = RemoteMmap::from_export(&loopback, garbage);
        names("RemoteMmap::from_export", imported.await);
        // The default error for a device without sync events.
        names(
            "SyncEvent::from_export",
            SyncEvent::from_export(host, garbage).await,
        );
        names("Rdma::connect", card.rdma.connect(garbage).await);
        names("Rdma::connect", card.rdma.connect(garbage).wait());
        let (mut here, mut there) = tokio::io::duplex(4096);
        let peer = async {
            use tokio::io::AsyncWriteExt;
            there.write_u32(garbage.len() as u32).await.unwrap();
            there.write_all(garbage).await.unwrap();
            there.write_u8(1).await.unwrap();
        };
        let (shaken, ()) = tokio::join!(card.rdma.handshake(&mut here), peer);
        names("Rdma::handshake", shaken);
        // Memory that is not in a memfd.
        let owned = Mmap::builder()
            .device(host)
            .access(ALL)
            .from_owner(vec![0; 64])
            .unwrap();
        names("Mmap::export_dpu", owned.export_dpu(host));
        names("Mmap::export_rdma", owned.export_rdma(host));
        names("Mmap::start", owned.start([host]));
        let shut = WorkQ::builder().build().unwrap();
        shut.shutdown().await.unwrap();
        names("DmaBuilder::attach", Dma::builder(host).attach(&shut));
        names("RdmaBuilder::attach", Rdma::builder(host).attach(&shut));
        names(
            "RdmaBuilder::attach",
            Rdma::builder(host).recv_queue_size(0).attach(&card.workq),
        );
        let event = || {
            SyncEvent::builder()
                .publisher(Location::Dpu)
                .subscriber(Location::Cpu(host))
        };
        names(
            "SyncEventBuilder::attach",
            event().waits(0).attach(&card.workq),
        );
        let blob = card.event.export_dpu(host).unwrap();
        let imported = SyncEvent::from_export(dpu, &blob).await.unwrap();
        names(
            "ImportedSyncEvent::attach",
            imported.waits(0).attach(&card.workq),
        );
        let misplaced = event().backing(&card.mmap, 4).start();
        names("SyncEventBuilder::start", misplaced);
        let _pool = BufPool::builder(&card.mmap).build().unwrap();
        names(
            "SyncEventBuilder::attach",
            event().backing(&card.mmap, 0).attach(&card.workq),
        );
        let blocking = event().start().unwrap();
        names("BlockingSyncEvent::export_dpu", blocking.export_dpu(dpu));
        names("SyncEvent::export_dpu", card.event.export_dpu(dpu));
        let inventory = BufInventory::with_capacity(1);
        names("BufInventory::buf", inventory.buf(&card.mmap, 0..8));
        names(
            "BufInventory::buf_filled",
            inventory.buf_filled(&card.mmap, 0..8),
        );
        let stopped = Mmap::builder().device(host).access(ALL).alloc(4096);
        let stopped = stopped.unwrap();
        let blob = stopped.export_rdma(host).unwrap();
        let own = RemoteMmap::from_export(host, &blob).await.unwrap();
        stopped.stop().unwrap();
        names("RemoteMmap::buf", own.buf(..));
        let soft = Soft::builder().build();
        let faults = soft.faults();
        names("Faults::push_script", faults.push_script("nonsense"));
        names("Faults::push_script", faults.push_script("pass*0"));
        names("Fault::from_str", "nonsense".parse::<Fault>());
        names("Device::representors", host.representors(RepFilter::All));
        names("Representor::open", Representor::open(dpu, "nope"));
        names("Representor::open", Representor::open(host, "hpf0"));
        let hpf0 = Representor::open(dpu, "hpf0").unwrap();
        names(
            "Representor::open_info",
            Representor::open_info(host, hpf0.info()),
        );
        names("Topology::new", Topology::new([]));
        let channel = Channel::builder;
        names(
            "ChannelBuilder::connect",
            channel().connect(dpu, "service").await,
        );
        let nowhere = ([127, 0, 0, 1], 1).into();
        names(
            "ChannelBuilder::connect_tcp",
            channel().connect_tcp(host, nowhere, "").await,
        );
        names(
            "ChannelBuilder::connect_tcp",
            channel().connect_tcp(host, nowhere, "s").await,
        );
        names(
            "ChannelBuilder::listen_tcp",
            channel().listen_tcp(host, nowhere, "").await,
        );
        names("ChannelBuilder::listen", channel().listen(&hpf0, ""));
    });
}

#[test]
fn the_error_of_a_job_names_no_call_that_nobody_wrote() {
    each(async |bench| {
        let src = bench.filled(b"abc");
        let error = bench.dma.copy(&src, &src).await.unwrap_err();
        assert_eq!(Error::from(error).to_string(), error.to_string());
    });
}

#[test]
fn a_blob_of_another_kind_says_what_it_is_of_and_which_call_takes_it() {
    run(async {
        let card = Card::new();
        let Card {
            host, dpu, rdma, ..
        } = &card;
        let calls = [
            ("an Mmap", "RemoteMmap::from_export"),
            ("a SyncEvent", "SyncEvent::from_export"),
            ("an Rdma", "Rdma::connect"),
        ];
        let blobs = [
            card.mmap.export_dpu(host).unwrap(),
            card.event.export_dpu(host).unwrap(),
            card.rdma.export().unwrap(),
        ];
        for (&(object, call), blob) in calls.iter().zip(&blobs) {
            let results = [
                RemoteMmap::from_export(dpu, blob).await.map(drop),
                SyncEvent::from_export(dpu, blob).await.map(drop),
                rdma.connect(blob).await,
            ];
            for ((takes, tried), result) in calls.iter().zip(results) {
                if *tried == call {
                    // A blob of the right kind is at least parsed.
                    let text = result.err().map(|error| error.to_string());
                    assert!(!text.is_some_and(|text| text.contains("this blob is of")));
                    continue;
                }
                let text = names(tried, result);
                let says = format!("this blob is of {object}, and {tried} takes one of {takes}");
                assert!(text.contains(&says) && text.ends_with(call), "{text}");
            }
        }
    });
}

#[test]
fn a_device_of_the_other_side_or_of_a_feature_says_how_to_get_it() {
    let host = Soft::builder().build();
    let dpu = Soft::builder().view(View::Dpu).build();
    let there = [
        (Device::open("p0"), ["DPU", "TOKIO_DOCA_SOFT=dpu"]),
        (host.open("p0"), ["DPU", "View::Dpu"]),
        (host.open("03:00.0"), ["DPU", "View::Dpu"]),
        (dpu.open("pf0"), ["host", "TOKIO_DOCA_SOFT=host"]),
        (dpu.open("0b:00.0"), ["host", "View::Host"]),
    ];
    for (result, parts) in there {
        let text = result.unwrap_err().to_string();
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    }
    let text = Device::open("mlx5_0").unwrap_err().to_string();
    assert!(!text.contains("TOKIO_DOCA_SOFT"), "{text}");
    #[cfg(not(feature = "verbs"))]
    assert!(text.contains("the feature \"verbs\""), "{text}");
}

#[test]
fn a_range_that_is_empty_one_that_is_reversed_and_one_out_of_bounds_are_told_apart() {
    let bench = Bench::new(configs()[0]);
    let mmap = bench.mmap_with(4096, ALL);
    let blob = mmap.export_rdma(&bench.device).unwrap();
    let remote = RemoteMmap::from_export(&bench.device, &blob)
        .wait()
        .unwrap();
    let whole = remote.buf(..).unwrap();
    let buf = bench.filled(&[7; 100]);
    let memfd = || {
        let flags = nix::sys::memfd::MFdFlags::MFD_ALLOW_SEALING;
        let memfd = nix::sys::memfd::memfd_create("ranges", flags).unwrap();
        nix::unistd::ftruncate(&memfd, 4096).unwrap();
        memfd
    };
    // The Buf has 100 bytes of data, and everything else has 4096.
    let texts = |start: usize, end: usize| {
        let (inventory, device) = (BufInventory::with_capacity(1), &bench.device);
        [
            inventory.buf(&mmap, start..end).unwrap_err().to_string(),
            BufPool::builder(&mmap)
                .range(start..end)
                .build()
                .unwrap_err()
                .to_string(),
            Mmap::builder()
                .device(device)
                .from_memfd(memfd(), start..end)
                .unwrap_err()
                .to_string(),
            remote.buf(start..end).unwrap_err().to_string(),
            whole.slice(start..end).unwrap_err().to_string(),
            buf.slice(start..end).unwrap_err().to_string(),
        ]
    };
    #[expect(clippy::reversed_empty_ranges, reason = "that is what is refused")]
    let (empty, reversed) = (10..10, 20..10);
    // A Buf may be empty, but the memory from which Bufs are made may not.
    let device = &bench.device;
    for text in [
        BufPool::builder(&mmap)
            .range(empty.clone())
            .build()
            .unwrap_err()
            .to_string(),
        Mmap::builder()
            .device(device)
            .from_memfd(memfd(), empty)
            .unwrap_err()
            .to_string(),
    ] {
        assert!(text.contains("10..10 is empty"), "{text}");
        assert!(!text.contains("before") && !text.contains("past"), "{text}");
    }
    for text in texts(reversed.start, reversed.end) {
        assert!(text.contains("20..10 ends before it begins"), "{text}");
        assert!(!text.contains("empty") && !text.contains("past"), "{text}");
    }
    for text in texts(10, 5000) {
        mentions(&text, &[5000]);
        assert!(
            !text.contains("empty") && !text.contains("before"),
            "{text}"
        );
    }
}

#[test]
fn a_misaligned_atomic_names_its_offset_in_the_memory_of_the_peer() {
    run(async {
        let bench = Bench::new(configs()[0]);
        let mmap = bench.mmap_with(4096, ALL);
        let blob = mmap.export_rdma(&bench.device).unwrap();
        let builder = || Rdma::builder(&bench.device).permissions(Access::RDMA_ATOMIC);
        let (one, other) = (
            builder().attach(&bench.workq),
            builder().attach(&bench.workq),
        );
        let (one, other) = (one.unwrap(), other.unwrap());
        let (theirs, ours) = (other.export().unwrap(), one.export().unwrap());
        let (there, here) = tokio::join!(one.connect(&theirs), other.connect(&ours));
        there.and(here).unwrap();
        let remote = RemoteMmap::from_export(&bench.device, &blob).await.unwrap();
        let odd = remote.buf(16..).unwrap().slice(5..13).unwrap();
        let text = one.fetch_add(&odd, 1).await.unwrap_err().to_string();
        mentions(&text, &[21, 8]);
        assert!(text.contains("byte 21 of"), "{text}");
    });
}

#[test]
fn the_error_of_a_run_names_the_node_once_with_its_path_through_the_sub_graphs() {
    each(async |bench| {
        let mut g = Graph::builder();
        let hash = g.dma_copy(&bench.dma);
        g.label(hash, "hash");
        let innermost = g.build().unwrap();
        let mut g = Graph::builder();
        let inner = g.subgraph(&innermost);
        g.label(inner, "inner");
        let middle = g.build().unwrap();
        let mut g = Graph::builder();
        let copy = g.subgraph(&middle);
        g.label(copy, "copy");
        let mut part = middle.instance().unwrap();
        let mut last = innermost.instance().unwrap();
        let both = bench.filled(b"abc");
        let operands = (&both, &both);
        last.set(hash, operands).unwrap();
        part.set(inner, last).unwrap();
        let mut instance = g.build().unwrap().instance().unwrap();
        instance.set(copy, part).unwrap();
        // Each run returns the same error text with its own cause.
        for _ in 0..2 {
            let cause = bench.dma.copy(operands.0, operands.1).await.unwrap_err();
            let error = instance.run().await.unwrap_err();
            assert_eq!(
                (error.kind(), error.node()),
                (ErrorKind::InvalidValue, copy.id())
            );
            assert_eq!(error.cause().to_string(), cause.to_string());
            let text = format!("node copy > inner > hash: {cause}");
            assert_eq!(error.to_string(), text);
            assert_eq!(
                Error::from(error).to_string(),
                format!("Instance::run: {text}")
            );
        }
    });
}

#[test]
fn errors_become_io_errors_of_the_same_kind() {
    each(async |bench| {
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        let io: std::io::Error = bench.dma.copy(&src, &src).await.unwrap_err().into();
        assert_eq!(io.kind(), std::io::ErrorKind::InvalidInput, "{io}");
        let guard = src.data().unwrap();
        dst.extend_from_slice(b"d").unwrap();
        let io: std::io::Error = bench.dma.copy(&dst, &src).await.unwrap_err().into();
        assert_eq!(io.kind(), std::io::ErrorKind::ResourceBusy, "{io}");
        drop(guard);
        let io: std::io::Error = bench.soft.open("nope").unwrap_err().into();
        assert_eq!(io.kind(), std::io::ErrorKind::NotFound);
    });
}
