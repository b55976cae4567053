//! Checks the table of docs/what-works.md, which says what works on which device, row by row: the
//! capability query, the call and the table must agree.

use support::device::{adapter, required_adapter, under_test};
use support::{in_time, runtime};
use tokio_doca::crc::{Crc, CrcOptions};
use tokio_doca::soft::{Soft, View};
use tokio_doca::{
    Buf, Device, Dma, Error, ErrorKind, Mmap, Rdma, WorkQ,
    accel::{Accel, AccelCall},
    channel::Channel,
    device::{Caps, JobKind, RdmaKind, RepFilter, Representor, SyncEventKind},
    error::Reason,
    mem::{Access, BufInventory, RemoteBuf, RemoteMmap},
    sha::{Algorithm, Sha},
    sync_event::{Location, SyncEvent},
};

type Result<T = (), E = Error> = std::result::Result<T, E>;

/// A row: the text of its first cell, the query of the device's capabilities, and the call.
struct Row {
    name: &'static str,
    query: fn(&Caps) -> bool,
    call: fn(&Device) -> Result,
}

const ROWS: [Row; 25] = [
    Row {
        name: "`Dma::copy`",
        query: |caps| caps.dma.is_some(),
        call: |device| copy(device, local(device)),
    },
    Row {
        name: "`Dma::copy` of a `RemoteBuf`",
        query: |caps| caps.dma.is_some() && caps.import_dpu,
        call: copy_remote,
    },
    Row {
        name: "`Mmap::export_dpu`",
        query: |caps| caps.export_dpu,
        call: |device| export_dpu(device).map(drop),
    },
    Row {
        name: "`Mmap::export_rdma`",
        query: |caps| caps.share_rdma,
        call: |device| {
            shared(device, Access::RDMA_READ)
                .export_rdma(device)
                .map(drop)
        },
    },
    Row {
        name: "`Rdma::recv`",
        query: |caps| supports(caps, RdmaKind::Receive),
        call: |device| rdma(device, RdmaKind::Receive),
    },
    Row {
        name: "`Rdma::send`",
        query: |caps| supports(caps, RdmaKind::Send),
        call: |device| rdma(device, RdmaKind::Send),
    },
    Row {
        name: "`Rdma::send_imm`",
        query: |caps| supports(caps, RdmaKind::SendImm),
        call: |device| rdma(device, RdmaKind::SendImm),
    },
    Row {
        name: "`Rdma::read`",
        query: |caps| supports(caps, RdmaKind::Read),
        call: |device| rdma(device, RdmaKind::Read),
    },
    Row {
        name: "`Rdma::write`",
        query: |caps| supports(caps, RdmaKind::Write),
        call: |device| rdma(device, RdmaKind::Write),
    },
    Row {
        name: "`Rdma::write_imm`",
        query: |caps| supports(caps, RdmaKind::WriteImm),
        call: |device| rdma(device, RdmaKind::WriteImm),
    },
    Row {
        name: "`Rdma::compare_swap`",
        query: |caps| supports(caps, RdmaKind::CompareSwap),
        call: |device| rdma(device, RdmaKind::CompareSwap),
    },
    Row {
        name: "`Rdma::fetch_add`",
        query: |caps| supports(caps, RdmaKind::FetchAdd),
        call: |device| rdma(device, RdmaKind::FetchAdd),
    },
    Row {
        name: "`Sha::hash`",
        query: |caps| caps.sha.is_some(),
        call: |device| hash(device, false),
    },
    Row {
        name: "`ShaSession`",
        query: |caps| caps.sha.as_ref().is_some_and(|sha| sha.sessions),
        call: |device| hash(device, true),
    },
    Row {
        name: "`Crc::crc32c`, `copy_crc`",
        query: |caps| caps.supports(JobKind::Crc),
        call: crc,
    },
    Row {
        name: "`SyncEvent::get`, `set`, `add`",
        query: |caps| counts(caps, SyncEventKind::Get) && counts(caps, SyncEventKind::Add),
        call: |device| {
            let event = sync_event(device)?;
            done(async {
                event.set(2).await?;
                assert_eq!((event.add(3).await?, event.get().await?), (2, 5));
                Ok(())
            })
        },
    },
    Row {
        name: "`SyncEvent::wait_gt`",
        query: |caps| counts(caps, SyncEventKind::WaitGt),
        call: |device| {
            let event = sync_event(device)?;
            done(async {
                let (waited, set) = futures::join!(event.wait_gt(1), event.set(2));
                assert_eq!((waited?, set?), (2, ()));
                Ok(())
            })
        },
    },
    Row {
        name: "`SyncEvent::export_dpu`",
        query: |caps| caps.sync_event.as_ref().is_some_and(|it| it.export_dpu),
        call: |device| export_event(device).map(drop),
    },
    Row {
        name: "`SyncEvent::from_export`",
        query: |caps| caps.sync_event.as_ref().is_some_and(|it| it.import_dpu),
        call: import_event,
    },
    Row {
        name: "`Accel::call`",
        query: |caps| caps.accel.is_some(),
        call: accelerate,
    },
    Row {
        name: "event-driven, each context",
        query: |caps| {
            let dma = caps.dma.as_ref().is_some_and(|caps| caps.event_driven);
            let sha = caps.sha.as_ref().is_none_or(|caps| caps.event_driven);
            let event = caps
                .sync_event
                .as_ref()
                .is_none_or(|caps| caps.event_driven);
            dma && sha && event && caps.rdma.as_ref().is_some_and(|caps| caps.event_driven)
        },
        // WorkQs are event-driven by default: the calls of all other rows cover the other contexts.
        call: |device| {
            let workq = WorkQ::builder().build()?;
            Rdma::builder(device).attach(&workq)?;
            Dma::builder(device).attach(&workq).map(drop)
        },
    },
    Row {
        name: "`Device::representors`",
        query: |caps| caps.representors.all,
        call: |device| device.representors(RepFilter::All).map(drop),
    },
    Row {
        name: "`ChannelBuilder::listen` on a representor",
        query: |caps| caps.representors.all,
        call: |device| Representor::open(device, "hpf0").and_then(|hpf0| meet(&hpf0, None)),
    },
    Row {
        name: "`ChannelBuilder::connect`",
        query: |caps| caps.channel,
        call: connect,
    },
    Row {
        name: "`ChannelBuilder::connect_tcp`",
        query: |_| true,
        call: connect_tcp,
    },
];

/// Connects a client to a service on the representor. The client is on `function`, which defaults
/// to the host's pf0.
fn meet(representor: &Representor, function: Option<&Device>) -> Result {
    let name = format!("works {} {representor:?}", std::process::id());
    let name = &name[name.len().saturating_sub(Channel::MAX_SERVICE_NAME_LEN)..];
    let pf0 = Soft::builder().build().open("pf0").unwrap();
    done(async {
        let service = Channel::builder().listen(representor, name)?;
        let client = Channel::builder().connect(function.unwrap_or(&pf0), name);
        let (client, server) = tokio::try_join!(client, service.accept())?;
        talk(client, server).await
    })
}

async fn talk(client: Channel, server: Channel) -> Result {
    client.send(b"hello").await?;
    assert_eq!(server.recv().await?, "hello");
    Ok(())
}

/// Connects from the device to a service on the device's representor.
fn connect(device: &Device) -> Result {
    let dpu = Soft::builder().view(View::Dpu).build();
    let p0 = dpu.open("p0").unwrap();
    let of = match device.info().name() {
        "p0s0" => "pf0sf0".to_owned(),
        function => format!("h{function}"),
    };
    // A device that is not a function has no representor.
    let representor = Representor::open(&p0, &of);
    let representor = representor.or_else(|_| Representor::open(&p0, "hpf0"));
    meet(&representor.unwrap(), Some(device))
}

fn connect_tcp(device: &Device) -> Result {
    done(async {
        let addr = "127.0.0.1:0".parse().unwrap();
        let service = Channel::builder().listen_tcp(device, addr, "works").await?;
        let addr = service.local_addr().unwrap();
        let client = Channel::builder().connect_tcp(device, addr, "works");
        let (client, server) = tokio::try_join!(client, service.accept())?;
        talk(client, server).await
    })
}

fn supports(caps: &Caps, kind: RdmaKind) -> bool {
    caps.rdma.as_ref().is_some_and(|rdma| rdma.supports(kind))
}

fn shared(device: &Device, access: Access) -> Mmap {
    let access = Access::LOCAL_READ_WRITE | access;
    let mmap = Mmap::builder().device(device).access(access);
    mmap.alloc(4096).unwrap()
}

fn local(device: &Device) -> Buf {
    let mmap = shared(device, Access::empty());
    BufInventory::with_capacity(1).buf(&mmap, ..).unwrap()
}

fn filled(device: &Device) -> Buf {
    let buf = local(device);
    buf.extend_from_slice(&[7; 64]).unwrap();
    buf
}

/// Runs a future on a runtime, with the usual time limit.
fn done<T>(future: impl Future<Output = Result<T>>) -> Result {
    runtime().block_on(in_time("it", future)).map(drop)
}

fn copy(device: &Device, dst: Buf) -> Result {
    let dma = Dma::builder(device).attach(&WorkQ::builder().build()?)?;
    done(async { Ok(dma.copy(filled(device), dst).await?) })
}

fn export_dpu(device: &Device) -> Result<(Mmap, Vec<u8>)> {
    let mmap = shared(device, Access::DPU_READ_WRITE);
    let blob = mmap.export_dpu(device)?;
    Ok((mmap, blob))
}

fn counts(caps: &Caps, kind: SyncEventKind) -> bool {
    caps.sync_event.as_ref().is_some_and(|it| it.supports(kind))
}

/// Makes a sync event of the device alone.
fn sync_event(device: &Device) -> Result<SyncEvent> {
    let (cpu, workq) = (Location::Cpu(device), WorkQ::builder().build()?);
    SyncEvent::builder()
        .publisher(cpu)
        .subscriber(cpu)
        .attach(&workq)
}

/// Exports a sync event between the device's CPU and the DPU.
fn export_event(device: &Device) -> Result<(SyncEvent, Vec<u8>)> {
    let builder = SyncEvent::builder().publisher(Location::Dpu);
    let builder = builder.subscriber(Location::Cpu(device));
    let event = builder.attach(&WorkQ::builder().build()?)?;
    let blob = event.export_dpu(device)?;
    Ok((event, blob))
}

/// Imports a sync event that a function of the host has exported.
fn import_event(device: &Device) -> Result {
    let host = Soft::builder().build().open("pf0").unwrap();
    let (_keep, blob) = export_event(&host).unwrap();
    SyncEvent::from_export(device, &blob)
        .wait()?
        .start()?
        .set(1)?;
    Ok(())
}

/// Copies to memory that a function of the host has exported. Its blob is invalid for an adapter.
fn copy_remote(device: &Device) -> Result {
    let host = Soft::builder().build().open("pf0").unwrap();
    let (_keep, blob) = export_dpu(&host).unwrap();
    let imported = RemoteMmap::from_export(device, &blob).wait();
    let foreign = device.info().provider() != host.info().provider();
    let remote = imported.map_err(|error| match error.kind() {
        ErrorKind::InvalidValue if foreign => Error::new(
            ErrorKind::NotSupported,
            "import",
            "it is no blob of an adapter",
        ),
        _ => error,
    })?;
    let dma = Dma::builder(device).attach(&WorkQ::builder().build()?)?;
    done(async { Ok(dma.copy(remote.buf(..64)?, local(device)).await?) })
}

/// Does an operation between two connected contexts, or on exported memory.
fn rdma(device: &Device, kind: RdmaKind) -> Result {
    let all = Access::RDMA_READ | Access::RDMA_WRITE | Access::RDMA_ATOMIC;
    let workq = WorkQ::builder().build()?;
    let [a, b] = [(); 2].map(|()| Rdma::builder(device).permissions(all).attach(&workq));
    let (a, b) = (a?, b?);
    a.connect(&b.export()?).wait()?;
    b.connect(&a.export()?).wait()?;
    let mmap = shared(device, all);
    let remote = RemoteMmap::from_export(device, &mmap.export_rdma(device)?).wait()?;
    let there: RemoteBuf = remote.buf(..64)?;
    let (src, dst) = (filled(device), local(device));
    let takes = async {
        let received = b.recv(&dst).await?;
        Ok::<_, Error>(received.len)
    };
    done(async {
        match kind {
            RdmaKind::Receive | RdmaKind::Send => {
                let (sent, received) = futures::join!(a.send(&src), takes);
                assert_eq!((sent?, received?), (64, 64));
            }
            RdmaKind::SendImm => {
                let (sent, received) = futures::join!(a.send_imm(&src, 1), takes);
                assert_eq!((sent?, received?), (64, 64));
            }
            RdmaKind::WriteImm => {
                let received = b.recv(&dst).start()?;
                assert_eq!(a.write_imm(&src, &there, 1).await?, 64);
                received.await?;
            }
            RdmaKind::Read => assert_eq!(a.read(&there, &dst).await?, 64),
            RdmaKind::Write => assert_eq!(a.write(&src, &there).await?, 64),
            RdmaKind::CompareSwap => assert_eq!(a.compare_swap(there.slice(..8)?, 0, 1).await?, 0),
            RdmaKind::FetchAdd => assert_eq!(a.fetch_add(there.slice(..8)?, 1).await?, 0),
        }
        Ok(())
    })
}

fn hash(device: &Device, session: bool) -> Result {
    let sha = Sha::builder(device).attach(&WorkQ::builder().build()?)?;
    let (src, dst) = (filled(device), local(device));
    done(async {
        if !session {
            return Ok(sha.hash(Algorithm::Sha256, &src, &dst).await?);
        }
        let session = sha.session(Algorithm::Sha256)?;
        Ok(session.finish(&src, &dst).await?)
    })
}

fn crc(device: &Device) -> Result {
    let crc = Crc::builder(device).attach(&WorkQ::builder().build()?)?;
    done(async {
        let options = CrcOptions::new().expected(crc.crc32c(filled(device)).await?);
        Ok(crc
            .copy_crc_with(options, filled(device), local(device))
            .await?)
    })
}

fn accelerate(device: &Device) -> Result {
    let accel = Accel::builder(device).attach(&WorkQ::builder().build()?)?;
    let call = AccelCall::new(1).src(filled(device)).dst(local(device));
    done(async { Ok(accel.call(call).await?) })
}

/// Returns the cells of the table, by row.
fn table() -> Vec<Vec<String>> {
    let path = crate::root().join("docs/what-works.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (_, table) = page.split_once("<!-- works -->").unwrap();
    let (table, _) = table.split_once("<!-- /works -->").unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| "));
    let cells = |row: &str| {
        row.trim_matches('|')
            .split('|')
            .map(|cell| cell.trim().to_owned())
            .collect()
    };
    rows.map(cells).collect()
}

/// Opens the devices of the table's columns. The last one is the adapter, if there is one.
fn devices() -> Vec<Device> {
    let host = Soft::builder().build();
    let dpu = Soft::builder().view(View::Dpu).build();
    let mut devices: Vec<Device> = ["pf0", "pf0vf0"]
        .map(|name| host.open(name).unwrap())
        .into();
    devices.extend(["p0", "p0s0"].map(|name| dpu.open(name).unwrap()));
    devices.extend(adapter().map(|_| under_test(true)));
    devices
}

#[test]
fn queries_calls_and_the_table_say_the_same() {
    let table = table();
    let devices = devices();
    let head: Vec<&str> = table[0][1..6].iter().map(String::as_str).collect();
    let columns = [
        "host: `pf`",
        "host: `vf`",
        "DPU: `p`",
        "DPU: `sf`",
        "adapter",
    ];
    assert_eq!(head, columns);
    for (row, cells) in ROWS.iter().zip(&table[1..]) {
        assert_eq!(row.name, cells[0]);
        for (device, cell) in devices.iter().zip(&cells[1..6]) {
            let name = device.info().name();
            let said = (row.query)(device.info().caps());
            let done = (row.call)(device);
            match (&done, said) {
                (Ok(()), true) => {}
                (Err(error), false) if error.kind() == ErrorKind::NotSupported => {}
                _ => panic!(
                    "{} on {name}: the query says {said}, and the call {done:?}",
                    row.name
                ),
            }
            let cell = match cell.as_str() {
                "yes" => true,
                "no" => false,
                "if it has them" => said,
                other => panic!("{}: {other:?}", row.name),
            };
            assert_eq!(cell, said, "{} on {name}", row.name);
        }
    }
    assert_eq!(table.len(), ROWS.len() + 1);
}

/// Tests an adapter that lacks operations: soft-iWARP has neither atomics nor immediates, and no
/// copies.
#[test]
#[ignore = "needs DOCA_VERBS_DEVICE"]
fn what_an_adapter_does_not_have_is_refused_before_it_is_posted() {
    let device = required_adapter();
    let caps = device.info().caps();
    let workq = WorkQ::builder().build().unwrap();
    let rdma = Rdma::builder(&device).attach(&workq).unwrap();
    let mmap = shared(&device, Access::RDMA_WRITE | Access::RDMA_ATOMIC);
    let blob = mmap.export_rdma(&device).unwrap();
    let there = RemoteMmap::from_export(&device, &blob).wait().unwrap();
    let word = there.buf(..8).unwrap();
    // Supported operations are refused as well, since the context is not connected.
    let expected = |has: bool| match has {
        true => Reason::NotConnected,
        false => Reason::RdmaUnsupported,
    };
    let atomics = expected(caps.rdma.as_ref().unwrap().atomics);
    let write_imm = expected(caps.rdma.as_ref().unwrap().write_imm);
    let send_imm = expected(caps.rdma.as_ref().unwrap().send_imm);
    runtime().block_on(async {
        let error = rdma.fetch_add(&word, 1).await.unwrap_err();
        assert_eq!(error.reason(), atomics);
        let error = rdma.compare_swap(&word, 0, 1).await.unwrap_err();
        assert_eq!(error.reason(), atomics);
        let error = rdma
            .write_imm(filled(&device), &there.buf(..).unwrap(), 1)
            .await;
        assert_eq!(error.unwrap_err().reason(), write_imm);
        let error = rdma.send_imm(filled(&device), 1).await.unwrap_err();
        assert_eq!(error.reason(), send_imm);
    });
    let copies = Dma::builder(&device).attach(&workq);
    let copies = copies.map_err(|error| error.kind());
    assert_eq!(copies.is_ok(), caps.dma.is_some(), "{copies:?}");
    if caps.dma.is_none() {
        assert_eq!(copies.unwrap_err(), ErrorKind::NotSupported);
    }
}

#[test]
fn the_tests_that_the_table_names_are_there() {
    for cells in &table()[1..] {
        for name in cells[6].split(", ") {
            let name = name.trim_matches('`');
            let path = crate::root().join(format!("tests/{name}.rs"));
            assert!(path.exists(), "{cells:?}: {}", path.display());
        }
    }
}
