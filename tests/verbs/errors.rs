//! Failures of an adapter, one at a time, on fake adapters: each is reported as what it is, nothing
//! hangs, and nothing is left behind.
#![expect(unsafe_code, reason = "forks")]

use std::net::Ipv6Addr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use crate::adapters::{open, provider, try_open};
use crate::fake_verbs::{Description, Fake, Link, World};
use futures::{FutureExt, StreamExt};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use support::rdma::{REMOTE, Setup, Side, connect, failed};
use support::subscriber::OnEvent;
use support::{test_name, *};
use tokio::io::AsyncWriteExt;
use tokio_doca::device::Liveness;
use tokio_doca::device::contract::Provider;
use tokio_doca::verbs::{Address, ffi::*};
use tokio_doca::{
    BufPool, Device, Dma, ErrorKind, Mmap, Mode, Rdma, WorkQ,
    error::{JobError, Reason},
    mem::{Access, BufChain, BufInventory, RemoteMmap},
    rdma::{RdmaState, Transport},
};

const MODES: [Mode; 3] = [
    Mode::EventDriven,
    Mode::BusyPoll,
    Mode::Hybrid {
        spin: Duration::from_micros(50),
    },
];

/// Runs `story` in each mode, each time on a new adapter of this kind.
fn each(kind: fn(&str) -> Description, story: impl AsyncFn(&World, Fake, &Device, Mode)) {
    for mode in MODES {
        eprintln!("{mode:?}");
        let world = World::new([kind("fake0")]);
        let verbs = provider(&world);
        let device = open(&verbs, "fake0");
        run(story(&world, world.fake("fake0"), &device, mode));
    }
}

fn setup(mode: Mode) -> Setup {
    Setup::new(false, mode)
}

/// Returns two sides, each on its own WorkQ.
fn sides(device: &Device, setup: Setup) -> (Side, Side) {
    let side = || {
        let workq = WorkQ::builder().depth(32).mode(setup.mode).build().unwrap();
        Side::on(device, &workq, setup)
    };
    (side(), side())
}

/// Returns two connected sides, each on its own WorkQ.
fn pair(device: &Device, setup: Setup) -> (Side, Side) {
    let sides = sides(device, setup);
    connect(&sides.0.rdma, &sides.1.rdma);
    sides
}

fn again(one: &Side, other: &Side) {
    one.rdma.reset().unwrap();
    other.rdma.reset().unwrap();
    connect(&one.rdma, &other.rdma);
}

async fn works(one: &Side, other: &Side) {
    for (from, to) in [(one, other), (other, one)] {
        let both = async { tokio::join!(from.send(b"works"), to.recv()) };
        assert_eq!(
            in_time("messages pass", both).await,
            (Ok(()), Ok(b"works".to_vec()))
        );
    }
}

/// A WorkQ with its buffers for copies.
struct Copies {
    workq: WorkQ,
    dma: Dma,
    pool: BufPool,
}

impl Copies {
    fn new(device: &Device, mode: Mode) -> Copies {
        let mmap = Mmap::builder().device(device).alloc(64 * ELEMENT).unwrap();
        let workq = WorkQ::builder().depth(32).mode(mode).build().unwrap();
        Copies {
            dma: Dma::builder(device).attach(&workq).unwrap(),
            pool: BufPool::builder(&mmap)
                .element_size(ELEMENT)
                .build()
                .unwrap(),
            workq,
        }
    }

    /// Copies 100 bytes into `pieces` buffers, each of which takes its own request.
    async fn copy(&self, pieces: usize) -> Result<usize, JobError> {
        let src = self.pool.try_alloc().unwrap();
        src.extend_from_slice(&pattern(1, 100)).unwrap();
        let to = BufChain::with_capacity(pieces);
        let bufs: Vec<_> = (0..pieces)
            .map(|_| self.pool.try_alloc().unwrap())
            .collect();
        for (number, buf) in bufs.iter().enumerate() {
            // All buffers but the last hold only a few bytes.
            if number + 1 < pieces {
                buf.set_data(ELEMENT - 5, 0).unwrap();
            }
            to.push(buf).unwrap();
        }
        let copied = self.dma.copy(&src, &to).await?;
        let all: Vec<u8> = bufs.iter().flat_map(bytes).collect();
        assert_eq!(all, pattern(1, 100), "the copy is whole");
        Ok(copied)
    }

    async fn works(&self) {
        assert_eq!(in_time("a copy", self.copy(3)).await, Ok(100));
    }
}

/// Sets up one object of each kind and runs one operation of each. Returns the first error.
fn everything(verbs: &tokio_doca::verbs::Verbs) -> tokio_doca::Result<()> {
    let device = try_open(verbs, "fake0")?;
    let access = Access::LOCAL_READ_WRITE | REMOTE;
    let mmap = Mmap::builder()
        .device(&device)
        .access(access)
        .alloc(1 << 14)?;
    let blob = mmap.export_rdma(&device)?;
    let remote = RemoteMmap::from_export(&device, &blob).wait()?;
    let workq = WorkQ::builder().mode(Mode::BusyPoll).build()?;
    let dma = Dma::builder(&device).attach(&workq)?;
    let attach = || {
        tokio_doca::Rdma::builder(&device)
            .permissions(REMOTE)
            .attach(&workq)
    };
    let (one, other) = (attach()?, attach()?);
    let blobs = (one.export()?, other.export()?);
    one.connect(&blobs.1).wait()?;
    other.connect(&blobs.0).wait()?;
    let pool = BufPool::builder(&mmap).element_size(1024).build()?;
    let (src, dst) = (pool.try_alloc()?, pool.try_alloc()?);
    src.extend_from_slice(b"abc")?;
    let there = remote.buf(8192..8200)?;
    let done = workq.block_on(async {
        dma.copy(&src, &dst).await?;
        one.write(&src, &there).await
    });
    assert_eq!(done?, 3);
    Ok(())
}

/// Lets the n-th call of the setup fail, for each n: the error names the call, and nothing is left
/// behind.
#[test]
fn each_step_of_the_set_up_may_fail() {
    for (kind, errno) in [
        (Description::roce as fn(&str) -> Description, libc::ENOMEM),
        (Description::infiniband, libc::EAGAIN),
        (Description::soft_roce, libc::EIO),
    ] {
        let mut failed = Vec::new();
        for nth in 1.. {
            let world = World::new([kind("fake0")]);
            let verbs = provider(&world);
            world.faults().fail_any(nth, errno);
            let result = everything(&verbs);
            let fired = world.faults().clear();
            let Some(&call) = fired.first() else {
                result.unwrap();
                assert!(nth > 15, "{nth} calls are not all");
                break;
            };
            match result {
                // Two failures are tolerated: an address that cannot be queried counts as an empty
                // entry, and a queue pair that cannot have inline data is made without it.
                Ok(()) => assert!(
                    ["ibv_query_gid_ex", "ibv_create_qp"].contains(&call),
                    "{nth}: {call}"
                ),
                Err(error) => {
                    let text = error.to_string();
                    let says = text.contains(call) || error.call() == Some("test");
                    assert!(
                        says,
                        "{nth}: {call} failed with {errno}, and this was told: {text}"
                    );
                }
            }
            failed.push(call);
            drop(verbs);
            world.wait_until_empty();
        }
        for call in [
            "ibv_open_device",
            "ibv_alloc_pd",
            "ibv_reg_mr",
            "ibv_create_cq",
            "ibv_create_qp",
            "ibv_modify_qp",
        ] {
            assert!(failed.contains(&call), "{call} was never called");
        }
    }
}

/// Adapters lock memory: an error for lack of memory names the limit of locked memory.
#[test]
fn what_there_is_no_memory_for_names_the_limit_of_locked_memory() {
    let (_, hard) = getrlimit(Resource::RLIMIT_MEMLOCK).unwrap();
    // The fake locks no memory, and no other test of this process sets this limit.
    setrlimit(Resource::RLIMIT_MEMLOCK, hard.min(1 << 40), hard).unwrap();
    for call in ["ibv_reg_mr", "ibv_create_cq", "ibv_create_qp"] {
        let world = World::new([Description::roce("fake0")]);
        let verbs = provider(&world);
        world.faults().fail_always(call, libc::ENOMEM);
        let text = rejected(everything(&verbs), ErrorKind::NoMemory);
        assert!(text.contains(call) && text.contains("ulimit -l"), "{text}");
    }
}

#[test]
fn a_subscriber_that_hears_of_a_failed_reset_may_use_the_rdma() {
    on_a_thread("an Rdma after a failed reset", || {
        let world = World::new([Description::roce("fake0")]);
        let device = open(&provider(&world), "fake0");
        let workq = WorkQ::builder().build().unwrap();
        let rdma = Arc::new(Rdma::builder(&device).attach(&workq).unwrap());
        let (same, (tell, told)) = (Arc::clone(&rdma), mpsc::channel());
        let uses = OnEvent::new(move |level| {
            if level == tracing::Level::ERROR {
                rejected(same.export(), ErrorKind::BadState);
                same.reset().unwrap();
                tell.send(same.state()).unwrap();
            }
        });
        world.faults().fail("ibv_modify_qp", 1, libc::EIO);
        let guard = tracing::subscriber::set_default(uses);
        rdma.reset().unwrap();
        drop(guard);
        assert_eq!(told.try_recv(), Ok(RdmaState::Init));
    });
}

#[test]
fn no_devices_have_a_reason() {
    let world = World::new([]);
    let none = provider(&world);
    assert!(none.devices().unwrap().is_empty());
    let text = none.unavailable().expect("a reason").to_string();
    assert!(text.contains("no RDMA device"), "{text}");
    for (errno, word) in [
        (libc::ENOSYS, "modprobe"),
        (libc::EPERM, "may not"),
        (libc::ENOENT, "/dev/infiniband"),
    ] {
        world.faults().fail_always("ibv_get_device_list", errno);
        assert!(none.devices().unwrap().is_empty());
        let text = none.unavailable().expect("a reason").to_string();
        assert!(text.contains(word), "{text}");
        world.faults().clear();
    }
}

#[test]
fn a_device_that_does_not_open_hides_no_other() {
    let world = World::new([Description::roce("fake0"), Description::roce("fake1")]);
    let verbs = provider(&world);
    world.faults().fail("ibv_open_device", 1, libc::EACCES);
    let infos = verbs.devices().unwrap();
    let names: Vec<&str> = infos.iter().map(|info| info.name()).collect();
    assert_eq!(
        (names, infos[0].pci_addr(), verbs.unavailable().is_none()),
        (vec!["fake1"], None, true)
    );
    let device = verbs.open(&infos[0]).unwrap();
    assert_eq!(
        verbs.open(&infos[0]).unwrap(),
        device,
        "opened twice it is the same"
    );
}

/// A program without this library would not notice the end of an idle connection, so its address is
/// accepted as a peer only if the application asks for that.
#[test]
fn a_stranger_does_not_pass_for_a_program_without_this_library() {
    let world = World::new([Description::roce("fake0")]);
    let device = open(&provider(&world), "fake0");
    let setup = Setup::new(false, Mode::EventDriven);
    let (here, there) = sides(&device, setup);
    let address = Address::of(&there.rdma.export().unwrap()).unwrap();
    let blob = address.to_blob().unwrap();
    for flag in [0, 1 << 31] {
        let (mut stream, mut stranger) = tokio::io::duplex(4096);
        let len = (blob.len() as u32 | flag).to_be_bytes();
        let said = [&len[..], &blob, &[1]].concat();
        let shaken = run(async {
            stranger.write_all(&said).await.unwrap();
            match flag {
                0 => here.rdma.handshake_accept(&mut stream).await,
                _ => here.rdma.handshake(&mut stream).await,
            }
        });
        let text = rejected(shaken, ErrorKind::InvalidValue);
        assert!(text.contains("Rdma::connect"), "{text}");
    }
    here.rdma.connect(&blob).wait().unwrap();
}

/// If the first of a connection's two steps fails, it can be repeated; once the second one has
/// begun, the attempt cannot be undone.
#[test]
fn a_connection_may_fail_half_way() {
    each(Description::roce, async |world, _, device, mode| {
        let (one, other) = sides(device, setup(mode));
        let blob = other.rdma.export().unwrap();
        for nth in [1, 2] {
            world.faults().fail("ibv_modify_qp", nth, libc::EINVAL);
            let error = one.rdma.connect(&blob).await.unwrap_err();
            assert!(error.to_string().contains("ibv_modify_qp"), "{error}");
            assert_eq!(world.faults().clear(), ["ibv_modify_qp"]);
            let state = one.rdma.state();
            assert_eq!(matches!(state, RdmaState::Error(_)), nth == 2, "{state:?}");
        }
        again(&one, &other);
        works(&one, &other).await;
    });
}

/// The subnet manager changes the port's address and the network its MTU: later connections use the
/// new values.
#[test]
fn a_port_that_has_changed_is_asked_anew() {
    each(Description::infiniband, async |_, fake, device, mode| {
        let (one, other) = pair(device, setup(mode));
        let copies = Copies::new(device, mode);
        works(&one, &other).await;
        copies.works().await;
        fake.change_port(|port| {
            (port.link, port.mtu) = (Link::InfiniBand(port.lid() + 7000), IBV_MTU_512);
        });
        again(&one, &other);
        works(&one, &other).await;
        // The queue pair of the copies still has the old address.
        assert!(in_time("an end", copies.copy(3)).await.is_err());
        copies.works().await;
    });
}

/// The capacity of a send queue depends on the size of its entries: if it gets fewer entries than
/// requested, jobs wait for one.
#[test]
fn send_queues_are_as_long_as_they_can_be() {
    fn short(name: &str) -> Description {
        Description {
            send_bytes: 1 << 16,
            ..Description::roce(name)
        }
    }
    each(short, async |_, _, device, mode| {
        let caps = device.info().caps().clone();
        let depth = caps.max_depth;
        let workq = WorkQ::builder().depth(depth).mode(mode).build().unwrap();
        let dma = Dma::builder(device).attach(&workq).unwrap();
        let mmap = Mmap::builder().device(device).alloc(1 << 20).unwrap();
        let pool = BufPool::builder(&mmap).element_size(512).build().unwrap();
        let copies = (0..500).map(async |_| {
            let (src, dst) = (pool.try_alloc().unwrap(), pool.try_alloc().unwrap());
            src.extend_from_slice(&[1; 100]).unwrap();
            dma.copy(&src, &dst).await
        });
        let copied = futures::future::try_join_all(copies);
        in_time("copies", copied).await.unwrap();
        let queue = caps.rdma.unwrap().max_send_queue_size;
        assert!(queue * 64 > 1 << 16);
        let [one, other] = [(); 2].map(|()| {
            let rdma = tokio_doca::Rdma::builder(device).send_queue_size(queue);
            let workq = WorkQ::builder().depth(depth).mode(mode).build().unwrap();
            rdma.attach(&workq).unwrap()
        });
        connect(&one, &other);
        // More sends than the queue has entries.
        let sends = (0..1000).map(|number| one.send_imm((), number));
        let sends = futures::future::try_join_all(sends);
        let receives = async {
            for number in 0..1000 {
                let received = other.recv(()).await.unwrap();
                assert_eq!(received.immediate, Some(number));
            }
        };
        let (sent, ()) = in_time("messages pass", async { tokio::join!(sends, receives) }).await;
        sent.unwrap();
    });
}

/// Connections are monitored by reads: an adapter without reads offers no connections, and no
/// exports.
#[test]
fn an_adapter_without_reads_has_no_rdma() {
    fn deaf(name: &str) -> Description {
        Description {
            max_rd_atomic: 0,
            ..Description::roce(name)
        }
    }
    each(deaf, async |_, _, device, mode| {
        let caps = device.info().caps();
        assert!(caps.rdma.is_none() && !caps.share_rdma);
        let workq = WorkQ::builder().mode(mode).build().unwrap();
        let refused = tokio_doca::Rdma::builder(device).attach(&workq);
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::NotSupported);
        let access = Access::LOCAL_READ_WRITE | REMOTE;
        let mmap = Mmap::builder().device(device).access(access);
        let refused = mmap.alloc(ELEMENT).unwrap().export_rdma(device);
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::NotSupported);
        Copies::new(device, mode).works().await;
    });
}

/// If completion queues cannot be resized, a WorkQ has capacity for some contexts, and reports an
/// error for the next one.
#[test]
fn a_completion_queue_that_cannot_grow_has_room_for_some() {
    fn fixed(name: &str) -> Description {
        Description {
            resizes: false,
            ..Description::roce(name)
        }
    }
    each(fixed, async |_, _, device, mode| {
        let (one, other) = pair(device, setup(mode));
        works(&one, &other).await;
        let workq = WorkQ::builder().mode(mode).build().unwrap();
        let attach = || tokio_doca::Rdma::builder(device).attach(&workq);
        let mut rdmas = Vec::new();
        let error = loop {
            match attach() {
                Ok(rdma) => rdmas.push(rdma),
                Err(error) => break error,
            }
        };
        assert!(rdmas.len() >= 10, "{}", rdmas.len());
        assert_eq!(error.kind(), ErrorKind::NoMemory);
        assert!(error.to_string().contains("recv_queue_size"), "{error}");
        // Entries that one context has returned are available to another.
        rdmas.pop();
        attach().unwrap();
    });
}

/// Memory, and a flag that is set when it is dropped.
struct Owner(Box<[u8]>, Arc<AtomicBool>);

impl AsMut<[u8]> for Owner {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.1.store(true, SeqCst);
    }
}

/// An export that cannot be deregistered may still be written by peers, so its memory is never
/// released.
#[test]
fn memory_that_peers_may_still_reach_is_kept() {
    let errnos = [(0, false), (libc::EBUSY, true), (libc::EIO, true)];
    let cases = errnos.into_iter().flat_map(|it| [(it, false), (it, true)]);
    for ((errno, kept), stopped) in cases {
        let mut world = World::new([Description::roce("fake0")]);
        if kept {
            world.expect_leaks();
        }
        let device = open(&provider(&world), "fake0");
        let dropped = Arc::new(AtomicBool::new(false));
        let owner = Owner(vec![0; ELEMENT].into(), Arc::clone(&dropped));
        let access = Access::LOCAL_READ_WRITE | REMOTE;
        let builder = Mmap::builder().device(&device).access(access);
        let mmap = builder.from_owner(owner).unwrap();
        mmap.export_rdma(&device).unwrap();
        if errno != 0 {
            // The first memory region to be deregistered is that of the export.
            world.faults().fail("ibv_dereg_mr", 1, errno);
        }
        if stopped {
            mmap.stop().unwrap();
        }
        drop(mmap);
        assert_eq!(dropped.load(SeqCst), !kept, "{errno}");
    }
}

/// Objects that the adapter cannot destroy end all the same. Only their memory stays in use for
/// ever.
#[test]
fn what_an_adapter_does_not_let_go_of_ends_and_keeps_its_memory() {
    for mode in MODES {
        let mut world = World::new([Description::roce("fake0")]);
        world.expect_leaks();
        let device = open(&provider(&world), "fake0");
        let fake = world.fake("fake0");
        run(async {
            let (one, other) = pair(&device, setup(mode));
            let copies = Copies::new(&device, mode);
            let kept = (Reason::MemoryKept, None);
            let hold = fake.hold();
            world.faults().end_with(1, IBV_WC_REM_OP_ERR, 0);
            world.faults().fail("ibv_destroy_qp", 1, libc::EBUSY);
            let (copied, ()) = tokio::join!(copies.copy(1), async { drop(hold) });
            assert_eq!(failed(copied), kept);
            copies.works().await;
            // One buffer is the source and one is the destination.
            assert_eq!(free_bufs(&copies.pool), copies.pool.elements() - 2);
            in_time("shutdown", copies.workq.shutdown()).await.unwrap();

            let remote = one.import(&other.memory()).buf(..8).unwrap();
            let (into, room, later) = (one.empty(), one.empty(), one.empty());
            let receive = one.rdma.recv(&room).start().unwrap();
            let forgotten = one.rdma.recv(&later).start().unwrap();
            let hold = fake.hold();
            let read = one.rdma.read(&remote, &into).start().unwrap();
            drop(forgotten);
            world.faults().fail("ibv_destroy_qp", 1, libc::EBUSY);
            one.rdma.reset().unwrap();
            assert_eq!(failed(in_time("the read", read).await), kept);
            assert_eq!(failed(in_time("the receive", receive).await), kept);
            assert_eq!(one.failed().await.reason(), Reason::MemoryKept);
            for buf in [&into, &room, &later] {
                let error = buf.reset_data_len().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InUse);
            }
            let elements = one.pool.elements();
            drop((into, room, later));
            assert_eq!(free_bufs(&one.pool), elements - 3);
            // New jobs are refused, and nothing hangs.
            let late = one.send(b"late").await;
            assert_eq!(failed(late), (Reason::Flushed, Some(Reason::MemoryKept)));
            one.rdma.reset().unwrap();
            assert!(matches!(one.rdma.state(), RdmaState::Error(_)));
            in_time("shutdown", one.workq.shutdown()).await.unwrap();
            // The adapter continues to read memory that nothing else uses.
            drop(one);
            let before = world.carried_out();
            drop(hold);
            until("the read is carried out", || world.carried_out() > before).await;
        });
    }
}

/// An idle queue pair for copies fails by itself and cannot be destroyed: later copies use another
/// one.
#[test]
fn idle_copies_that_fail_and_stay_are_followed_by_others() {
    for mode in MODES {
        let mut world = World::new([Description::roce("fake0")]);
        world.expect_leaks();
        let device = open(&provider(&world), "fake0");
        run(async {
            let copies = Copies::new(&device, mode);
            world.faults().fail("ibv_destroy_qp", 1, libc::EBUSY);
            world.fake("fake0").fail_queue_pairs(false);
            let tried = || world.calls("ibv_destroy_qp") > 0;
            until("it was to be destroyed", || {
                copies.workq.progress(|_, _| ());
                tried()
            })
            .await;
            copies.works().await;
            in_time("shutdown", copies.workq.shutdown()).await.unwrap();
        });
    }
}

/// If the adapter cannot reach itself, all copies fail together instead of one after the other.
#[test]
fn copies_that_reach_nobody_fail_together() {
    each(Description::roce, async |world, fake, device, mode| {
        let copies = Copies::new(device, mode);
        let hold = fake.hold();
        world.faults().end_with(1, IBV_WC_RETRY_EXC_ERR, 0);
        let (a, b, c, ()) = tokio::join!(copies.copy(2), copies.copy(2), copies.copy(2), async {
            drop(hold)
        });
        let code = Some(u64::from(IBV_WC_RETRY_EXC_ERR) << 32);
        assert_eq!([a, b, c].map(|it| it.unwrap_err().vendor_code()), [code; 3]);
        copies.works().await;
    });
}

/// With this variable set, libibverbs reports resources as destroyed that a removed adapter may
/// still use.
#[test]
fn an_environment_in_which_destroying_proves_nothing_is_refused() {
    const NAME: &str = "RDMAV_ALLOW_DISASSOC_DESTROY";
    const TEST: &str = test_name!(an_environment_in_which_destroying_proves_nothing_is_refused);
    if std::env::var_os(NAME).is_none() {
        let mut again = programs::this_program();
        let output = again.args(["--exact", TEST]).env(NAME, "1").output();
        let output = output.unwrap();
        assert!(output.status.success(), "{output:?}");
        return;
    }
    let world = World::new([Description::roce("fake0")]);
    let verbs = provider(&world);
    assert!(verbs.devices().unwrap().is_empty());
    let why = verbs.unavailable().unwrap().to_string();
    assert!(why.contains(NAME), "{why}");
}

/// An adapter is removed while a thread destroys a queue pair and holds the lock of an endpoint
/// that the watcher checks meanwhile.
#[test]
fn a_removal_is_heard_of_by_who_destroys_a_queue_pair() {
    for silent in [false, true] {
        let mut world = World::new([Description {
            removed_in_silence: silent,
            ..Description::roce("fake0")
        }]);
        world.expect_leaks();
        let device = open(&provider(&world), "fake0");
        let fake = world.fake("fake0");
        run(async {
            let rnr = Duration::from_millis(20);
            let (one, other) = pair(&device, setup(Mode::BusyPoll).rnr(rnr));
            let hold = fake.hold();
            let empty = one.filled(b"waits");
            let begun = Instant::now();
            let send = one.rdma.send(&empty).start().unwrap();
            // The kernel fails all commands with `EIO` before it closes the event descriptor.
            world.faults().fail_always("ibv_destroy_qp", libc::EIO);
            world.faults().fail_always("ibv_query_device", libc::EIO);
            let is_in_time = std::thread::scope(|scope| {
                let reset = scope.spawn(|| one.rdma.reset());
                let tried = || world.calls("ibv_destroy_qp") > 0;
                block_until("it is being destroyed", tried);
                let is_in_time = begun.elapsed() < rnr;
                // Waits long enough for the watcher to check the time limits.
                let before = Instant::now();
                while before.elapsed() < Duration::from_millis(60) {
                    std::thread::yield_now();
                }
                fake.remove();
                let _ = reset.join().unwrap();
                is_in_time
            });
            let (reason, _) = failed(in_time("the send", send).await);
            // If the reset came late, the send had already failed for lack of a receive.
            let late = !is_in_time && reason == Reason::NoReceive;
            assert!(
                reason == Reason::Flushed || late,
                "its memory is given back: {reason:?}"
            );
            drop((hold, other));
        });
    }
}

/// A child of fork(2) has copies of all handles. What it drops stays in use by its parent.
#[test]
fn a_child_of_fork_destroys_nothing() {
    const TEST: &str = test_name!(a_child_of_fork_destroys_nothing);
    if !alone(TEST) {
        return;
    }
    let world = World::new([Description::roce("fake0"), Description::roce("fake1")]);
    let verbs = provider(&world);
    let device = open(&verbs, "fake0");
    // The child drops the last handles of `bare`, a device without queues.
    let bare = open(&verbs, "fake1");
    let (one, other) = pair(&device, setup(Mode::BusyPoll));
    let blob = other.memory();
    let destroyed = || {
        let calls = ["qp", "cq", "comp_channel"].map(|name| format!("ibv_destroy_{name}"));
        let destroyed: u64 = calls.iter().map(|call| world.calls(call)).sum();
        destroyed + world.calls("ibv_dereg_mr") + world.calls("ibv_close_device")
    };
    let before = destroyed();
    // The child drops its handles and reads the fake's counters.
    match world.fork() {
        0 => {
            drop((one, other, device, bare));
            let same = destroyed() == before;
            // SAFETY: ends the child process only.
            unsafe { libc::_exit(if same { 7 } else { 8 }) }
        }
        pid => {
            use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
            let pid = nix::unistd::Pid::from_raw(pid);
            let mut ended = WaitStatus::StillAlive;
            block_until("the child ends", || {
                ended = waitpid(pid, Some(WaitPidFlag::WNOHANG)).unwrap();
                ended != WaitStatus::StillAlive
            });
            assert_eq!(ended, WaitStatus::Exited(pid, 7));
        }
    }
    run(async {
        works(&one, &other).await;
        let there = one.import(&blob).buf(..4).unwrap();
        let here = one.filled(b"here");
        let written = in_time("a write", one.rdma.write(&here, &there));
        assert_eq!(written.await, Ok(4));
    });
}

/// The adapter locks memory: if the limit is too low, the error names it.
#[test]
fn the_limit_of_locked_memory_is_named() {
    each(Description::roce, async |world, _, device, _| {
        world.faults().fail("ibv_reg_mr", 1, libc::ENOMEM);
        let error = Mmap::builder().device(device).alloc(ELEMENT).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoMemory);
        assert!(
            error.to_string().contains("ibv_reg_mr of 4096 bytes"),
            "{error}"
        );
    });
}

/// The adapter takes some requests of a list and refuses the next: the copy that the refused
/// request belongs to fails, and the other copies complete.
#[test]
fn a_copy_of_which_a_request_is_refused_fails_alone() {
    each(Description::roce, async |world, fake, device, mode| {
        let copies = Copies::new(device, mode);
        for refused in 1..=12 {
            let hold = fake.hold();
            world.faults().fail("ibv_post_send", refused, libc::EINVAL);
            let (a, b, c, ()) =
                tokio::join!(copies.copy(5), copies.copy(5), copies.copy(5), async {
                    drop(hold)
                });
            assert_eq!(world.faults().clear(), ["ibv_post_send"]);
            let results = [a, b, c];
            let failed: Vec<_> = results.iter().filter_map(|result| result.err()).collect();
            assert_eq!(failed.len(), 1, "request {refused}: {results:?}");
            let number = (refused as usize - 1) / 5;
            assert_eq!(
                results[number].map_err(|error| error.kind()),
                Err(ErrorKind::InvalidValue)
            );
            copies.works().await;
        }
    });
}

/// If the adapter refuses a remote operation, it has never seen that operation, and the connection
/// stays usable.
#[test]
fn an_operation_that_is_refused_leaves_the_connection() {
    each(Description::roce, async |world, _, device, mode| {
        let (one, other) = pair(device, setup(mode));
        let remote = one.import(&other.memory());
        let there = remote.buf(..100).unwrap();
        for errno in [libc::EINVAL, libc::EIO] {
            let full = one.filled(&pattern(3, 100));
            world.faults().fail("ibv_post_send", 1, errno);
            let refused = one.rdma.write(&full, &there).await.unwrap_err();
            assert_eq!(
                (refused.reason(), refused.vendor_code()),
                (Reason::Device, Some(errno as u64))
            );
            assert_eq!(other.bytes(0, 100), [0; 100]);
            assert_eq!(one.rdma.state(), RdmaState::Connected);
            world.faults().fail("ibv_post_recv", 1, errno);
            let refused = one.rdma.recv(()).start().unwrap_err();
            assert_eq!(refused.error().vendor_code(), Some(errno as u64));
            works(&one, &other).await;
        }
        assert_eq!(
            one.rdma.write(&one.filled(&pattern(3, 100)), &there).await,
            Ok(100)
        );
        assert_eq!(other.bytes(0, 100), pattern(3, 100));
        one.all_back().await;
        other.all_back().await;
    });
}

/// On iWARP a peer answers a read with a write: it may write to the read's destination while the
/// read is in flight, and nowhere else.
#[test]
fn peers_may_write_where_a_read_does_for_as_long_as_it_takes() {
    each(Description::iwarp, async |world, fake, device, mode| {
        let (one, other) = pair(device, setup(mode));
        let remote = one.import(&other.memory());
        let there = remote.buf(..100).unwrap();
        let writable = || {
            let flag = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
            let all = fake.regions().into_iter();
            let lens = all.filter(|it| it.access & flag != 0).map(|it| it.len);
            let mut lens: Vec<u64> = lens.collect();
            lens.sort();
            lens
        };
        let (before, mut during) = (writable(), writable());
        during.push(100);
        during.sort();
        let hold = fake.hold();
        let read = one.rdma.read(&there, one.empty()).start().unwrap();
        assert_eq!(writable(), during);
        drop(hold);
        assert_eq!(read.await, Ok(100));
        assert_eq!(writable(), before);
        let hold = fake.hold();
        let read = one.rdma.read(&there, one.empty()).start().unwrap();
        one.rdma.reset().unwrap();
        assert_eq!(writable(), before, "a reset ends it too");
        drop(hold);
        assert!(read.await.is_err());
        again(&one, &other);
        for call in ["ibv_reg_mr", "ibv_post_send"] {
            world.faults().fail(call, 1, libc::ENOMEM);
            let refused = one.rdma.read(&there, one.empty()).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::NoMemory, "{call}");
            assert_eq!(writable(), before, "{call}");
        }
        assert_eq!(one.rdma.read(&there, one.empty()).await, Ok(100));
        one.all_back().await;
        other.all_back().await;
    });
}

/// Memory that a peer may still write after its read has completed stays in use.
#[test]
fn memory_of_a_read_that_stays_writable_is_kept() {
    let mut world = World::new([Description::iwarp("fake0")]);
    world.expect_leaks();
    let device = open(&provider(&world), "fake0");
    let (one, other) = pair(&device, setup(Mode::EventDriven));
    let remote = one.import(&other.memory());
    run(async {
        let buf = one.empty();
        world.faults().fail("ibv_dereg_mr", 1, libc::EBUSY);
        let read = one.rdma.read(&remote.buf(..100).unwrap(), &buf).await;
        assert_eq!(read.unwrap_err().reason(), Reason::MemoryKept);
        assert!(buf.data().is_err(), "it is in use for ever");
    });
}

/// Runs `story` with two sides on an iWARP adapter that cannot revoke the peer's permission to
/// write to a read's destination.
fn stuck_sinks(story: impl AsyncFn(&World, &Side, &Side)) {
    for mode in MODES {
        eprintln!("{mode:?}");
        let mut world = World::new([Description {
            max_sge_rd: 2,
            ..Description::iwarp("fake0")
        }]);
        world.expect_leaks();
        let device = open(&provider(&world), "fake0");
        let (one, other) = pair(&device, setup(mode));
        run(story(&world, &one, &other));
    }
}

/// After a read whose destination the peer may still write, a reset keeps only that memory, and
/// creates a new queue pair.
#[test]
fn a_reset_keeps_the_memory_of_a_read_that_stays_writable_and_nothing_else() {
    stuck_sinks(async |world, one, other| {
        let remote = one.import(&other.memory());
        let (there, elsewhere) = (remote.buf(..100).unwrap(), remote.buf(100..101).unwrap());
        let (buf, full) = (one.empty(), one.filled(&[1]));
        let hold = world.fake("fake0").hold();
        let read = one.rdma.read(&there, &buf).start().unwrap();
        let write = one.rdma.write(&full, &elsewhere).start().unwrap();
        world.faults().fail("ibv_dereg_mr", 1, libc::EBUSY);
        one.rdma.reset().unwrap();
        drop(hold);
        assert_eq!(failed(read.await), (Reason::MemoryKept, None));
        let flushed = (Reason::Flushed, Some(Reason::Reset));
        assert_eq!(failed(write.await), flushed);
        assert!(buf.data().is_err(), "it is in use for ever");
        assert_eq!(bytes(&full), [1]);
        let refused = in_time("a send without a peer", one.send(b"x")).await;
        assert_eq!(refused.unwrap_err().reason(), Reason::NotConnected);
        again(one, other);
        works(one, other).await;
    });
}

/// Memory that a peer may still write stays in use, even if no WorkQ is left to reap the read's
/// completion.
#[test]
fn memory_of_a_read_that_stays_writable_outlives_its_workq() {
    stuck_sinks(async |world, one, other| {
        let dropped = Arc::new(AtomicBool::new(false));
        let owner = Owner(vec![0; ELEMENT].into(), Arc::clone(&dropped));
        let mmap = Mmap::builder().device(&one.device).from_owner(owner);
        let mmap = mmap.unwrap();
        let buf = BufInventory::with_capacity(1).buf(&mmap, ..).unwrap();
        let reader = Side::on(
            &one.device,
            &WorkQ::builder()
                .depth(32)
                .mode(one.workq.mode())
                .build()
                .unwrap(),
            setup(one.workq.mode()),
        );
        other.rdma.reset().unwrap();
        connect(&reader.rdma, &other.rdma);
        let there = reader.import(&other.memory()).buf(..100).unwrap();
        let _hold = world.fake("fake0").hold();
        drop(reader.rdma.read(&there, &buf).start().unwrap());
        drop((buf, mmap));
        world.faults().fail("ibv_dereg_mr", 1, libc::EBUSY);
        // Drops these first: the rest of the side has memory too.
        drop((reader.rdma, reader.workq));
        assert!(!dropped.load(SeqCst));
    });
}

/// A refused read whose memory the peer may still write fails together with its connection.
#[test]
fn memory_of_a_refused_read_that_stays_writable_is_kept() {
    stuck_sinks(async |world, one, other| {
        let remote = one.import(&other.memory());
        let there = remote.buf(..100).unwrap();
        // Either the read is not posted, or the second piece of its list is not registered.
        for (call, number) in [("ibv_post_send", 1), ("ibv_reg_mr", 2)] {
            let (pieces, list) = ([one.empty(), one.empty()], BufChain::with_capacity(2));
            for buf in &pieces {
                buf.set_data(ELEMENT - 50, 0).unwrap();
                list.push(buf).unwrap();
            }
            world.faults().fail(call, number, libc::ENOMEM);
            world.faults().fail("ibv_dereg_mr", 1, libc::EBUSY);
            let read = in_time("a read", one.rdma.read(&there, &list)).await;
            assert_eq!(failed(read), (Reason::MemoryKept, None), "{call}");
            drop(list);
            assert!(
                pieces.iter().all(|buf| buf.data().is_err()),
                "in use for ever"
            );
            assert_eq!(one.failed().await.reason(), Reason::MemoryKept);
            again(one, other);
            works(one, other).await;
        }
    });
}

/// A stream posts several receives in one call. It takes the messages of those that the adapter
/// accepted before it refused one, and then ends with the refusal.
#[test]
fn a_stream_ends_with_the_refusal_of_one_of_its_receives() {
    each(Description::roce, async |world, _, device, mode| {
        let (one, other) = pair(device, setup(mode));
        let mut stream = other.rdma.recv_stream(&other.pool, 4);
        world.faults().fail("ibv_post_recv", 3, libc::EIO);
        let lists = world.calls("lists of receives");
        assert!(stream.next().now_or_never().is_none());
        assert_eq!(world.calls("lists of receives") - lists, 1, "one doorbell");
        for len in [1, 2] {
            one.send(&vec![7; len]).await.unwrap();
            let message = stream.next().await.unwrap().unwrap();
            assert_eq!(message.received.len, len);
        }
        let refused = stream.next().await.unwrap().unwrap_err();
        assert_eq!(refused.vendor_code(), Some(libc::EIO as u64));
        assert!(stream.next().await.is_none());
        drop(stream);
        works(&one, &other).await;
        one.all_back().await;
        other.all_back().await;
    });
}

/// A copy that the adapter completes with an error fails with the adapter's code; other copies in
/// flight are submitted again.
#[test]
fn a_copy_that_fails_leaves_the_others() {
    each(Description::roce, async |world, fake, device, mode| {
        let copies = Copies::new(device, mode);
        for number in 1..=15 {
            let hold = fake.hold();
            world.faults().end_with(number, IBV_WC_REM_OP_ERR, 0x55);
            let (a, b, c, ()) =
                tokio::join!(copies.copy(5), copies.copy(5), copies.copy(5), async {
                    drop(hold)
                });
            let results = [a, b, c];
            let failed: Vec<_> = results.iter().filter_map(|result| result.err()).collect();
            assert_eq!(failed.len(), 1, "request {number}: {results:?}");
            let error = results[(number as usize - 1) / 5].unwrap_err();
            let code = u64::from(IBV_WC_REM_OP_ERR) << 32 | 0x55;
            assert_eq!(
                (error.kind(), error.vendor_code()),
                (ErrorKind::IoFailed, Some(code))
            );
            copies.works().await;
        }
        assert_eq!(copies.workq.in_flight(), 0);
    });
}

/// All jobs behind a failed one are flushed with the first cause, whatever their own completions
/// say, and so are this side's receives.
#[test]
fn what_is_flushed_keeps_the_first_cause() {
    each(Description::roce, async |world, fake, device, mode| {
        let (one, other) = pair(device, setup(mode));
        let remote = one.import(&other.memory());
        let there = [0, 8, 16, 24].map(|at| remote.buf(at..at + 8).unwrap());
        let receive = other.rdma.recv(()).start().unwrap();
        let own = one.rdma.recv(()).start().unwrap();
        let hold = fake.hold();
        world.faults().end_with(2, IBV_WC_RETRY_EXC_ERR, 0x81);
        let full = one.filled(&[1; 8]);
        let write = |at: usize| one.rdma.write(&full, &there[at]);
        let (a, b, c, d, ()) =
            tokio::join!(write(0), write(1), write(2), write(3), async { drop(hold) });
        assert_eq!(a, Ok(8));
        assert_eq!(failed(b), (Reason::PeerSilent, None));
        let flushed = (Reason::Flushed, Some(Reason::PeerSilent));
        assert_eq!([failed(c), failed(d)], [flushed; 2]);
        assert_eq!(failed(in_time("its own receive", own).await), flushed);
        assert_eq!(one.failed().await.reason(), Reason::PeerSilent);
        assert_eq!(failed(write(0).await), flushed);
        // The peer has not noticed the failure: its receive ends only when it is reset.
        again(&one, &other);
        assert_eq!(
            failed(in_time("the receive", receive).await),
            (Reason::Flushed, Some(Reason::Reset))
        );
        works(&one, &other).await;
    });
}

/// Each error status of a completion fails its job, and the connection can be set up again.
#[test]
fn each_status_is_told_and_the_connection_begins_anew() {
    each(Description::roce, async |world, _, device, mode| {
        let (one, other) = pair(device, setup(mode));
        for status in (1..=23).filter(|&status| status != IBV_WC_WR_FLUSH_ERR) {
            world.faults().end_with(1, status, 7);
            let remote = one.import(&other.memory());
            let result = in_time(
                "a write",
                one.rdma.write(&one.filled(&[1]), &remote.buf(..1).unwrap()),
            )
            .await;
            let error = result.expect_err("it was ended so");
            assert_ne!(error.reason(), Reason::Flushed, "status {status}: {error}");
            assert_eq!(one.failed().await, error, "status {status}");
            again(&one, &other);
        }
        works(&one, &other).await;
    });
}

/// The completion queue fails, either by an event or when it is polled.
#[test]
fn a_completion_queue_that_fails_takes_its_workq_with_it_and_no_other() {
    for by_event in [true, false] {
        each(Description::roce, async |world, fake, device, mode| {
            let (one, other) = pair(device, setup(mode));
            let copies = Copies::new(device, mode);
            let receive = other.rdma.recv(()).start().unwrap();
            let hold = fake.hold();
            let full = one.filled(&[1; 8]);
            let remote = one.import(&other.memory());
            let there = remote.buf(..8).unwrap();
            let (copied, written, ()) = tokio::join!(
                in_time("the copy", copies.copy(3)),
                in_time("the write", one.rdma.write(&full, &there)),
                async {
                    tokio::task::yield_now().await;
                    if by_event {
                        fake.fail_completion_queues();
                    } else {
                        world.faults().fail_always("ibv_poll_cq", libc::EIO);
                        fake.spurious_events(1);
                    }
                }
            );
            drop(hold);
            assert_eq!(copied.unwrap_err().reason(), Reason::QueueFailed);
            assert_eq!(
                failed(written),
                (Reason::Flushed, Some(Reason::QueueFailed))
            );
            assert_eq!(
                failed(in_time("the receive", receive).await),
                (Reason::Flushed, Some(Reason::QueueFailed))
            );
            world.faults().clear();
            assert_eq!(
                in_time("another", copies.copy(3))
                    .await
                    .unwrap_err()
                    .reason(),
                Reason::QueueBroken
            );
            assert_eq!(device.liveness(), Liveness::Alive);
            // Another WorkQ of the device still works.
            Copies::new(device, mode).works().await;
        });
    }
}

/// An adapter is removed while jobs are in flight and receives are posted: all of them complete
/// with errors, and later ones are refused.
#[test]
fn a_device_that_is_removed_fails_everything() {
    each(Description::roce, async |_, fake, device, mode| {
        let (one, other) = pair(device, setup(mode));
        let copies = Copies::new(device, mode);
        let receive = other.rdma.recv(()).start().unwrap();
        let remote = one.import(&other.memory());
        let there = remote.buf(..8).unwrap();
        let full = one.filled(&[1; 8]);
        let hold = fake.hold();
        let (copied, written, sent, ()) = tokio::join!(
            in_time("the copy", copies.copy(3)),
            in_time("the write", one.rdma.write(&full, &there)),
            in_time("the message", other.rdma.send(&full)),
            async {
                tokio::task::yield_now().await;
                fake.remove();
            }
        );
        drop(hold);
        let gone = (Reason::Flushed, Some(Reason::DeviceGone));
        assert_eq!(copied.unwrap_err().reason(), Reason::DeviceGone);
        assert_eq!([failed(written), failed(sent)], [gone; 2]);
        assert_eq!(failed(in_time("the receive", receive).await), gone);
        assert_eq!(one.failed().await.reason(), Reason::DeviceGone);
        assert_eq!(device.liveness(), Liveness::Dead);
        let late = in_time("a copy", copies.copy(3)).await.unwrap_err();
        assert_eq!(late.reason(), Reason::DeviceGone);
        assert!(Mmap::builder().device(device).alloc(ELEMENT).is_err());
        assert!(
            Dma::builder(device)
                .attach(&WorkQ::builder().build().unwrap())
                .is_err()
        );
    });
}

/// All queue pairs fail by themselves: connections are notified, and copies continue on new ones.
#[test]
fn queue_pairs_that_fail_are_told_and_copies_go_on() {
    for (flushes, idle) in [(true, true), (true, false), (false, true), (false, false)] {
        queue_pairs_fail(flushes, idle);
    }
}

fn queue_pairs_fail(flushes: bool, idle: bool) {
    each(Description::roce, async |_, fake, device, mode| {
        let (one, other) = pair(device, setup(mode));
        let copies = Copies::new(device, mode);
        let (own, receive) = (
            one.rdma.recv(()).start().unwrap(),
            other.rdma.recv(()).start().unwrap(),
        );
        let hold = fake.hold();
        let mut copy = pin!(copies.copy(3));
        if !idle {
            poll_pending(copy.as_mut());
        }
        fake.fail_queue_pairs(flushes);
        drop(hold);
        for (side, receive) in [(&one, own), (&other, receive)] {
            let cause = side.failed().await;
            assert!(
                [Reason::Device, Reason::PeerFailed].contains(&cause.reason()),
                "{cause}"
            );
            let flushed = failed(in_time("a receive", receive).await);
            assert_eq!(flushed, (Reason::Flushed, Some(cause.reason())));
        }
        // The copy whose completion reports that the queue pair has failed fails too. Other copies
        // are submitted again, to a new queue pair.
        let copied = in_time("the copy", copy).await;
        assert!(copied.is_err() || idle, "{copied:?}");
        copies.works().await;
        again(&one, &other);
        works(&one, &other).await;
    });
}

/// The connections of the port fail at once, and their peers notice the silence within the
/// transport's time limit.
#[test]
fn a_port_that_goes_down_ends_its_connections() {
    for mode in MODES {
        let world = World::new(["fake0", "fake1"].map(Description::roce));
        let verbs = provider(&world);
        let fake = world.fake("fake0");
        let side = |name| {
            let workq = WorkQ::builder().depth(32).mode(mode).build().unwrap();
            Side::on(&open(&verbs, name), &workq, setup(mode))
        };
        run(async {
            let (one, other, idle) = (side("fake0"), side("fake1"), side("fake0"));
            connect(&one.rdma, &other.rdma);
            let remote = other.import(&one.memory());
            let message = one.empty();
            let receive = one.rdma.recv(&message).start().unwrap();
            fake.set_port(false);
            let start = Instant::now();
            assert_eq!(one.failed().await.reason(), Reason::PortDown);
            let flushed = failed(in_time("a receive", receive).await);
            assert_eq!(flushed, (Reason::Flushed, Some(Reason::PortDown)));
            // A side without a peer stays as it is.
            assert_eq!(idle.rdma.state(), RdmaState::Init);
            let (src, dst) = (other.filled(&[1]), remote.buf(..1).unwrap());
            let written = in_time("a write", other.rdma.write(&src, &dst)).await;
            assert_eq!(failed(written), (Reason::PeerSilent, None));
            let limit = Duration::from_secs(5);
            assert_quick("the transport's last try", start.elapsed(), limit);
            fake.set_port(true);
            again(&one, &other);
            works(&one, &other).await;
        });
    }
}

/// A side that only waits notices that its peer is gone once the transport enables probes, and
/// never notices if probes are disabled.
#[test]
fn an_idle_peer_is_asked_as_the_transport_says() {
    let world = World::new(["fake0", "fake1"].map(Description::roce));
    let verbs = provider(&world);
    let devices = ["fake0", "fake1"].map(|name| open(&verbs, name));
    let workq = WorkQ::builder().build().unwrap();
    let pair = |probe_interval| {
        let mut transport = Transport::default();
        transport.ack_timeout = Some(Duration::from_millis(5));
        transport.probe_interval = probe_interval;
        let rdma = |device| Rdma::builder(device).transport(transport).attach(&workq);
        let pair = [0, 1].map(|side: usize| rdma(&devices[side]).unwrap());
        connect(&pair[0], &pair[1]);
        pair
    };
    let left_alone = pair(None);
    let usual = pair(Transport::default().probe_interval);
    let asked = pair(Some(Duration::from_millis(10)));
    run(async {
        let six = async {
            while world.carried_out() < 6 {
                tokio::task::yield_now().await;
            }
        };
        in_time("six probes", six).await;
        let start = Instant::now();
        let watches = [&asked[0], &usual[0]].map(Rdma::watch);
        world.fake("fake1").set_port(false);
        for (mut watch, limit) in watches.into_iter().zip([500, 2000]) {
            let changed = in_time("silence", watch.changed()).await;
            let Some(RdmaState::Error(cause)) = changed else {
                panic!("{changed:?}");
            };
            assert_eq!(cause.reason(), Reason::PeerSilent);
            assert_quick("silence", start.elapsed(), Duration::from_millis(limit));
        }
    });
    assert_eq!(left_alone[0].state(), RdmaState::Connected);
}

/// A side that receives messages does not also probe their sender. (Soft-RoCE of Linux before 6.3
/// fails a connection whose probe is repeated, as may happen with a busy peer.)
#[test]
fn a_peer_whose_messages_come_is_not_asked() {
    const INTERVAL: Duration = Duration::from_millis(50);
    let world = World::new([Description::roce("fake0")]);
    let verbs = provider(&world);
    let device = open(&verbs, "fake0");
    let mut transport = Transport::default();
    transport.probe_interval = Some(INTERVAL);
    let (mut from, mut to) = sides(&device, setup(Mode::EventDriven));
    for side in [&mut from, &mut to] {
        let rdma = Rdma::builder(&device).transport(transport);
        side.rdma = rdma.attach(&side.workq).unwrap();
    }
    connect(&from.rdma, &to.rdma);
    run(async {
        let (mut sent, mut allowed) = (0, 0);
        let start = Instant::now();
        let mut last = start;
        while start.elapsed() < 20 * INTERVAL {
            let both = async { tokio::join!(from.send(b"news"), to.recv()) };
            assert_eq!(
                in_time("a message", both).await,
                (Ok(()), Ok(b"news".to_vec()))
            );
            sent += 1;
            // On a machine that stalls, probes are allowed.
            let gap = last.elapsed();
            last = Instant::now();
            if gap > INTERVAL / 2 {
                allowed += 2 + 2 * gap.as_millis() / INTERVAL.as_millis();
            }
        }
        let probes = world.carried_out() - sent;
        assert!(
            u128::from(probes) <= allowed,
            "{probes} of {allowed}, {sent} messages"
        );
    });
}

/// The adapter gets the settings of a `Transport`, and what it accepted can be read back.
#[test]
fn packets_travel_as_the_transport_says() {
    let description = Description {
        pkeys: 4,
        max_inline: 80,
        ..Description::roce("fake0")
    };
    let address = Ipv6Addr::from(description.gids[5].as_ref().unwrap().raw);
    let world = World::new([description]);
    let verbs = provider(&world);
    let device = open(&verbs, "fake0");
    assert_eq!(
        device.info().caps().rdma.as_ref().unwrap().pkey_table_size,
        4
    );
    let mut transport = Transport::default();
    transport.traffic_class = 104;
    transport.service_level = 3;
    transport.pkey_index = 2;
    transport.hop_limit = 7;
    transport.gid = Some(address);
    transport.ack_timeout = Some(Duration::from_millis(5));
    transport.retry_count = 4;
    transport.probe_interval = Some(Duration::from_millis(10));
    let workq = WorkQ::builder().build().unwrap();
    let rdma = |transport| Rdma::builder(&device).transport(transport).attach(&workq);
    let pair = [(); 2].map(|()| rdma(transport).unwrap());
    connect(&pair[0], &pair[1]);
    let mut connected = world.fake("fake0").connected();
    // The queue pair of the copies, which has no inline data, is connected as well.
    connected.retain(|&(_, inline)| inline > 0);
    assert_eq!(connected.len(), 2);
    for (attr, inline) in connected {
        let path = attr.ah_attr;
        assert_eq!(
            (path.grh.traffic_class, path.sl, path.grh.hop_limit),
            (104, 3, 7)
        );
        assert_eq!((attr.pkey_index, attr.retry_cnt), (2, 4));
        // Two entries have that address; this index is the one for RoCE v2.
        assert_eq!(path.grh.sgid_index, 5);
        // 4.096 us doubled 11 times are 8.4 ms.
        assert_eq!(attr.timeout, 11);
        // The fake refused the default of 128 inline bytes.
        assert_eq!(inline, 64);
    }
    let taken = pair[0].transport();
    assert_eq!((taken.inline_size, taken.traffic_class), (64, 104));
    assert_eq!(taken.ack_timeout, Some(Duration::from_nanos(4096 << 11)));
    assert_eq!(taken.probe_interval, transport.probe_interval);

    // Wrong settings are named in the error.
    let refused = |change: fn(&mut Transport), word: &str| {
        let mut wrong = transport;
        change(&mut wrong);
        let text = rejected(rdma(wrong), ErrorKind::InvalidValue);
        assert!(text.contains(word), "{text}");
    };
    refused(|it| it.service_level = 16, "service_level of 16");
    refused(|it| it.hop_limit = 0, "hop_limit of 0");
    refused(|it| it.retry_count = 8, "retry_count of 8");
    refused(|it| it.pkey_index = 4, "4 partition keys");
    refused(
        |it| it.ack_timeout = Some(Duration::from_micros(10)),
        "1 ms to 17 s",
    );
    refused(
        |it| it.probe_interval = Some(Duration::from_secs(61)),
        "10 ms to 60 s",
    );
    let mut elsewhere = transport;
    elsewhere.gid = Some(Ipv6Addr::LOCALHOST);
    let text = rejected(rdma(elsewhere).unwrap().export(), ErrorKind::NotFound);
    assert!(text.contains("::1"), "{text}");
}

/// Many unrequested events, each of them twice.
#[test]
fn events_that_mean_nothing_are_read_and_acknowledged() {
    each(Description::roce, async |world, fake, device, mode| {
        let (one, other) = pair(device, setup(mode));
        let copies = Copies::new(device, mode);
        world.faults().double_events(true);
        for _ in 0..50 {
            works(&one, &other).await;
            copies.works().await;
        }
        world.faults().double_events(false);
        fake.spurious_events(1000);
        let message = other.empty();
        let receive = other.rdma.recv(&message).start().unwrap();
        for _ in 0..10 {
            copies.works().await;
        }
        one.send(b"after the storm").await.unwrap();
        assert_eq!(in_time("the receive", receive).await.unwrap().len, 15);
    });
}

/// Completions without a posted request: of an unknown queue pair, with an unknown number, or of a
/// job that has completed.
#[test]
fn completions_of_what_nobody_posted_are_dropped() {
    each(Description::soft_roce, async |world, fake, device, mode| {
        let (one, other) = pair(device, setup(mode));
        let copies = Copies::new(device, mode);
        let own = fake.queue_pairs();
        let message = other.empty();
        let receive = other.rdma.recv(&message).start().unwrap();
        for round in 0..10u64 {
            // These numbers look like those of a job or a receive, but were never issued.
            let wr_id = (u64::MAX - 7) - (round << 32) - ((round % 3) << 20);
            let stray = |qp_num, status| Wc {
                wr_id,
                qp_num,
                status,
                opcode: 200,
                byte_len: u32::MAX,
                ..Wc::default()
            };
            for &qp_num in &own {
                fake.stray(stray(qp_num, IBV_WC_SUCCESS));
            }
            for qp_num in [0, 0x00ff_fff0] {
                for status in [IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR, IBV_WC_GENERAL_ERR] {
                    fake.stray(stray(qp_num, status));
                }
            }
            assert_eq!(
                in_time(
                    "a write",
                    one.rdma.write(
                        &one.filled(&[1; 8]),
                        &one.import(&other.memory()).buf(..8).unwrap()
                    )
                )
                .await,
                Ok(8)
            );
            copies.works().await;
        }
        one.send(b"still here").await.unwrap();
        assert_eq!(in_time("the receive", receive).await.unwrap().len, 10);
        assert_eq!(world.sins(), Vec::<String>::new());
    });
}

/// The adapter refuses to arm a notification: waiting tasks still complete.
#[test]
fn a_notification_that_is_refused_is_not_slept_through() {
    each(Description::roce, async |world, _, device, mode| {
        let copies = Copies::new(device, mode);
        world.faults().fail("ibv_req_notify_cq", 1, libc::EIO);
        let ended = in_time("a copy", copies.copy(3)).await;
        assert!(
            ended == Ok(100) || ended.is_err_and(|error| error.reason() == Reason::QueueFailed),
            "{ended:?}"
        );
    });
}

/// A write permission for copies gives peers no access: none of the keys of the shared protection
/// domain reaches private memory.
#[test]
fn no_key_that_peers_could_guess_reaches_private_memory() {
    each(Description::roce, async |_, fake, device, mode| {
        const REMOTE_FLAGS: u32 = 2 | 4 | 8;
        let (one, other) = pair(device, setup(mode));
        let copies = Copies::new(device, mode);
        copies.works().await;
        let peers = device.adapter().pd().expect("the shared domain").as_ptr() as usize;
        let regions = fake.regions();
        assert!(
            regions
                .iter()
                .any(|region| region.pd != peers && region.access & 2 != 0),
            "copies are written by key"
        );
        let exported: Vec<_> = regions
            .iter()
            .filter(|region| region.pd == peers && region.access & REMOTE_FLAGS != 0)
            .collect();
        assert!(exported.is_empty(), "nothing is exported yet: {exported:?}");
        let blobs = [one.memory(), other.memory()];
        let regions = fake.regions();
        let exported = regions
            .iter()
            .filter(|region| region.pd == peers && region.access & REMOTE_FLAGS != 0);
        let lens: Vec<u64> = exported.map(|region| region.len).collect();
        assert_eq!(
            lens,
            [support::rdma::SHARED as u64; 2],
            "what was exported, and nothing else"
        );
        drop(blobs);
    });
}
