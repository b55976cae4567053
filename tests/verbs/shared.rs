//! Shared receive queues: behavior of adapters that the provider contract does not show.
#![expect(
    unsafe_code,
    reason = "a provider over functions that are no libibverbs"
)]

use std::pin::pin;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::Context;
use std::time::{Duration, Instant};

use futures::{Future, FutureExt, StreamExt};
use support::rdma::{Setup, Side, connect, context};
use support::stream::{Net, bytes as stream_bytes, small};
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_doca::error::Reason;
use tokio_doca::rdma::{RdmaState, RecvPool, RecvStream};
use tokio_doca::verbs::Verbs;
use tokio_doca::{BufPool, Device, ErrorKind, Mmap, Mode, Rdma, WorkQ};

use crate::adapters::{open, provider};
use crate::fake_verbs::{Description, Fake, World};
use crate::program;

const ROOM: usize = 4096;
/// The number of receives of `ROOM` bytes that are posted at first.
const FIRST: usize = 64;

/// A server with one receive pool, whose clients share another WorkQ.
struct Server {
    device: Device,
    pool: RecvPool,
    workq: WorkQ,
    rdmas: Vec<Rdma>,
    client: Side,
    clients: Vec<Rdma>,
    fake: Fake,
}

fn setup() -> Setup {
    Setup::new(false, Mode::EventDriven)
}

impl Server {
    fn new(world: &World, connections: usize, credits: u32, mode: Mode) -> Server {
        let device = open(&provider(world), "fake0");
        let mmap = Mmap::builder().device(&device).alloc(8 * ROOM).unwrap();
        let pool = BufPool::builder(&mmap).element_size(ROOM).build().unwrap();
        let workq = |mode| WorkQ::builder().depth(64).mode(mode).build().unwrap();
        let clients = workq(Mode::EventDriven);
        let mut server = Server {
            pool: RecvPool::new(&pool).credits(credits),
            workq: workq(mode),
            rdmas: Vec::new(),
            client: Side::on(&device, &clients, setup()),
            clients: Vec::new(),
            fake: world.fake("fake0"),
            device,
        };
        for _ in 0..connections {
            let rdma = Rdma::builder(&server.device).recv_pool(&server.pool);
            server.rdmas.push(rdma.attach(&server.workq).unwrap());
            let client = context(&server.device, &clients, setup());
            server.clients.push(client);
            server.connect(server.rdmas.len() - 1);
        }
        server
    }

    fn connect(&self, at: usize) {
        connect(&self.rdmas[at], &self.clients[at]);
    }

    async fn send(&self, client: usize, bytes: &[u8]) {
        let sent = self.clients[client].send(self.client.filled(bytes));
        in_time("a send", sent).await.unwrap();
    }
}

async fn next(stream: &mut RecvStream) -> Vec<u8> {
    let message = in_time("a message", stream.next()).await.unwrap().unwrap();
    message.buf.as_ref().map_or_else(Vec::new, bytes)
}

/// Nothing polls the server's queue: the adapter's limit event tells that few receives are left.
#[test]
fn memory_is_added_when_the_adapter_says_that_few_receives_are_left() {
    let world = World::new([Description::roce("fake0")]);
    let server = Server::new(&world, 20, 16, Mode::BusyPoll);
    assert_eq!(server.fake.shared_receives(), FIRST);
    run(async {
        for client in 0..20 {
            for number in 0..16 {
                server.send(client, &pattern(number, 100)).await;
            }
        }
    });
    assert!(server.fake.shared_receives() <= 2 * FIRST);
    for rdma in &server.rdmas {
        server.workq.block_on(async {
            let mut stream = rdma.messages();
            for number in 0..16 {
                let message = stream.next().await.unwrap().unwrap();
                assert_eq!(bytes(&message.buf.unwrap()), pattern(number, 100));
            }
        });
    }
    assert_eq!(server.fake.shared_receives(), 20 * 16);
}

/// If the adapter refuses to raise limit events, memory is added when completions show that few
/// receives are left.
#[test]
fn memory_is_added_when_completions_say_that_few_receives_are_left() {
    let world = World::new([Description::roce("fake0")]);
    world.faults().fail_always("ibv_modify_srq", libc::EINVAL);
    let server = Server::new(&world, 20, 16, Mode::EventDriven);
    run(async {
        // A task that waits for a message reaps the completions of all connections.
        let mut last = server.rdmas[19].messages();
        for client in 0..19 {
            for number in 0..16 {
                server.send(client, &pattern(number, 10)).await;
                assert!(last.next().now_or_never().is_none());
            }
        }
        server.send(19, b"last").await;
        assert_eq!(next(&mut last).await, b"last");
    });
}

/// A peer has taken all receives with messages that the server does not read: its connection is
/// ended, and the other one continues.
#[test]
fn a_peer_that_has_more_than_its_credits_is_ended_when_others_have_none() {
    let world = World::new([Description::roce("fake0")]);
    let server = Server::new(&world, 2, 4, Mode::EventDriven);
    run(async {
        for number in 0..8 {
            server.send(0, &pattern(number, 100)).await;
        }
        let mut other = server.rdmas[1].messages();
        let mut watch = server.rdmas[0].watch();
        let greedy = watch.wait_for(|state| matches!(state, RdmaState::Error(_)));
        let (sent, got, error) = futures::join!(server.send(1, b"mine"), next(&mut other), greedy);
        assert_eq!((sent, &*got), ((), &b"mine"[..]));
        let Some(RdmaState::Error(error)) = error else {
            panic!("{error:?}");
        };
        assert_eq!(error.reason(), Reason::CreditsExceeded);
        assert!(error.to_string().contains("4 credits"), "{error}");
        let mut rest = server.rdmas[0].messages();
        assert!(rest.next().await.unwrap().is_err(), "they are dropped");
    });
}

/// The waker that learns of the greedy peer's end runs outside of all locks.
#[test]
fn a_waker_that_is_told_of_a_greedy_peer_may_drop_other_connections() {
    let world = World::new([Description::roce("fake0")]);
    let mut server = Server::new(&world, 2, 4, Mode::EventDriven);
    run(async {
        for number in 0..8 {
            server.send(0, &[number]).await;
        }
        // One poll is enough: it finds the messages.
        let mut other = server.rdmas[1].messages();
        assert!(other.next().now_or_never().is_none());
    });
    let other = Arc::new(Mutex::new(server.rdmas.pop()));
    let is_told = Arc::new(AtomicBool::new(false));
    let waker = {
        let (other, is_told) = (Arc::clone(&other), Arc::clone(&is_told));
        Call::waker(move || {
            drop(other.lock().unwrap().take());
            is_told.store(true, SeqCst);
        })
    };
    // Nothing polls the queue, so the watcher notifies the waker.
    let mut watch = server.rdmas[0].watch();
    let mut failed = pin!(watch.wait_for(|state| matches!(state, RdmaState::Error(_))));
    assert!(
        failed
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_pending()
    );
    block_until("the waker is told", || is_told.load(SeqCst));
    assert!(other.lock().unwrap().is_none());
}

/// A peer that uses receives which others leave free is not ended.
#[test]
fn a_peer_may_have_more_than_its_credits_while_others_need_none() {
    let world = World::new([Description::roce("fake0")]);
    let server = Server::new(&world, 2, 4, Mode::EventDriven);
    run(async {
        let mut stream = server.rdmas[0].messages();
        for number in 0..7 {
            server.send(0, &pattern(number, 100)).await;
        }
        let start = tokio::time::Instant::now();
        let mut other = server.rdmas[1].messages();
        while start.elapsed() < Duration::from_secs(3) {
            let idle = tokio::time::timeout(Duration::from_millis(100), other.next());
            assert!(idle.await.is_err());
        }
        for number in 0..7 {
            assert_eq!(next(&mut stream).await, pattern(number, 100));
        }
        assert_eq!(server.rdmas[0].state(), RdmaState::Connected);
    });
}

/// Each connection that fails in the middle of a message takes a receive with it, without a
/// completion. Connections that stay keep their receives, and new ones finally get another queue.
#[test]
fn receives_that_are_lost_with_connections_are_replaced() {
    for tells in [true, false] {
        let world = World::new([Description::roce("fake0")]);
        if !tells {
            world.faults().fail_always("ibv_modify_srq", libc::EINVAL);
        }
        lose_receives(&world);
    }
}

fn lose_receives(world: &World) {
    let server = Server::new(world, 2, 1, Mode::EventDriven);
    world.faults().lose_receives();
    run(async {
        let mut stream = server.rdmas[1].messages();
        for number in 0..50 {
            server.rdmas[0].reset().unwrap();
            server.clients[0].reset().unwrap();
            server.connect(0);
            if number % 10 == 9 {
                server.send(1, &[number]).await;
                assert_eq!(next(&mut stream).await, [number]);
            }
        }
        assert_eq!(server.fake.shared_queues(), 1);
        // Meanwhile no message arrives for the other connection.
        for _ in 0..100 {
            server.rdmas[0].reset().unwrap();
            server.clients[0].reset().unwrap();
            server.connect(0);
        }
        assert_eq!(server.fake.shared_queues(), 2);
        server.send(1, b"there").await;
        assert_eq!(next(&mut stream).await, b"there");
    });
}

/// At most half of the entries of a short queue are lost.
#[test]
fn receives_that_are_lost_leave_some_of_a_short_queue() {
    let short = Description {
        max_srq_wr: 16,
        ..Description::roce("fake0")
    };
    let world = World::new([short]);
    let server = Server::new(&world, 2, 1, Mode::EventDriven);
    world.faults().lose_receives();
    run(async {
        for _ in 0..30 {
            server.rdmas[0].reset().unwrap();
            server.clients[0].reset().unwrap();
            server.connect(0);
        }
        assert_eq!(server.fake.shared_queues(), 2);
        let mut stream = server.rdmas[1].messages();
        server.send(1, b"there").await;
        assert_eq!(next(&mut stream).await, b"there");
    });
}

/// The watcher retries after a while, and does not register memory that could not be posted.
#[test]
fn an_adapter_that_refuses_receives_is_asked_once_in_a_while() {
    let world = World::new([Description::roce("fake0")]);
    let server = Server::new(&world, 20, 16, Mode::EventDriven);
    run(async {
        world
            .faults()
            .fail_always("ibv_post_srq_recv", libc::ENOMEM);
        let calls = || ["ibv_post_srq_recv", "ibv_reg_mr"].map(|name| world.calls(name));
        let before = calls();
        let mut last = server.rdmas[19].messages();
        // The adapter reports that few receives are left, but takes no more.
        for number in 0..FIRST - 8 {
            server.send(number % 4, &[number as u8]).await;
            assert!(last.next().now_or_never().is_none());
        }
        let mut stream = server.rdmas[0].messages();
        assert_eq!(next(&mut stream).await, [0]);
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(300) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let [posted, registered] = calls();
        assert!(posted - before[0] < 50, "{}", posted - before[0]);
        assert!(registered - before[1] <= 2, "{}", registered - before[1]);
        world.faults().clear();
        for number in 0..FIRST {
            server.send(19, &[number as u8]).await;
            assert_eq!(next(&mut last).await, [number as u8]);
        }
    });
}

/// An idle queue pair with a shared queue flushes nothing: only an event reports its failure, and
/// messages that arrived before are returned first.
#[test]
fn a_queue_pair_that_fails_says_so_after_its_messages() {
    let world = World::new([Description::roce("fake0")]);
    let server = Server::new(&world, 2, 4, Mode::EventDriven);
    run(async {
        for number in 0..3 {
            server.send(0, &[number]).await;
        }
        let mut idle = server.rdmas[1].messages();
        server.fake.fail_queue_pairs(true);
        let error = in_time("the end", idle.next()).await.unwrap().unwrap_err();
        // Later errors of the same failure change nothing.
        assert_eq!(error.cause(), Some(Reason::PeerFailed), "{error}");
        let mut stream = server.rdmas[0].messages();
        for number in 0..3 {
            assert_eq!(next(&mut stream).await, [number]);
        }
        assert!(in_time("the end", stream.next()).await.unwrap().is_err());
        for at in [0, 1] {
            server.rdmas[at].reset().unwrap();
            server.clients[at].reset().unwrap();
            server.connect(at);
            server.send(at, b"anew").await;
            assert_eq!(next(&mut server.rdmas[at].messages()).await, b"anew");
        }
    });
}

/// A queue pair that cannot be destroyed may write to the receives of the queue at any time.
#[test]
fn a_queue_pair_that_stays_keeps_the_shared_queue() {
    let mut world = World::new([Description::roce("fake0")]);
    world.expect_leaks();
    let server = Server::new(&world, 1, 4, Mode::EventDriven);
    run(async { server.send(0, b"kept").await });
    world.faults().fail("ibv_destroy_qp", 1, libc::EBUSY);
    server.rdmas[0].reset().unwrap();
    assert!(matches!(server.rdmas[0].state(), RdmaState::Error(_)));
    let fake = server.fake;
    drop(server);
    assert_eq!((fake.shared_queues(), fake.shared_receives()), (1, 3));
    assert_eq!(world.sins(), Vec::<String>::new());
}

/// A call that fails is an error of `attach`, and nothing is left behind; a call that is refused
/// later is repeated.
#[test]
fn each_call_for_a_shared_queue_may_fail() {
    let world = World::new([Description::roce("fake0")]);
    let server = Server::new(&world, 0, 4, Mode::EventDriven);
    let _first = context(&server.device, &server.workq, setup());
    for call in ["ibv_create_srq", "ibv_reg_mr", "ibv_create_qp"] {
        let before = world.live_objects();
        world.faults().fail_always(call, libc::ENOMEM);
        let rdma = Rdma::builder(&server.device).recv_pool(&server.pool);
        let error = rdma.attach(&server.workq).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoMemory, "{call}: {error}");
        assert_eq!(world.live_objects(), before, "{call}");
        world.faults().clear();
    }
    drop(server);
    for call in ["ibv_post_srq_recv", "ibv_post_srq_recv(doorbell)"] {
        world.faults().fail(call, 1, libc::EIO);
        let server = Server::new(&world, 1, 4, Mode::EventDriven);
        run(async {
            let mut stream = server.rdmas[0].messages();
            for number in 0..9 {
                server.send(0, &[number]).await;
                assert_eq!(next(&mut stream).await, [number], "{call}");
            }
        });
    }
}

/// No shared queues: hardware without them, a library that is too old, and a device made of the
/// application's protection domain, whose objects the watcher must not keep.
#[test]
fn an_adapter_without_shared_queues_says_so() {
    let none = Description {
        max_srq_wr: 0,
        ..Description::roce("fake0")
    };
    let lent = Description::roce("fake2");
    let world = World::new([none, Description::roce("fake1"), lent]);
    let program = program::Side::open(&world, "fake2", program::Settings::default());
    let mut table = world.table();
    table.create_srq = None;
    // SAFETY: the fake does what the man pages say.
    let older = unsafe { Verbs::over(table) };
    let all = provider(&world);
    // SAFETY: the protection domain outlives the device.
    let lent = unsafe { all.device_from_pd(NonNull::new(program.pd).unwrap()) };
    for device in [open(&all, "fake0"), open(&older, "fake1"), lent.unwrap()] {
        let caps = device.info().caps().rdma.clone().unwrap();
        assert_eq!(caps.max_pooled_len, 0);
        let mmap = Mmap::builder().device(&device).alloc(ROOM).unwrap();
        let pool = BufPool::builder(&mmap).build().unwrap();
        let workq = WorkQ::builder().build().unwrap();
        let rdma = Rdma::builder(&device).recv_pool(&RecvPool::new(&pool));
        let error = rdma.attach(&workq).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotSupported);
    }
    program.close();
}

/// Streams share buffers in both directions, while one of them reads nothing and another has read a
/// part.
#[test]
fn streams_share_buffers_on_an_adapter() {
    for mode in [Mode::EventDriven, Mode::BusyPoll] {
        let world = World::new([Description::roce("fake0")]);
        let device = open(&provider(&world), "fake0");
        run(async {
            let net = Net::new(&device, mode, small().recv_bufs(2)).await;
            let mut pairs = Vec::new();
            for _ in 0..4 {
                pairs.push(net.pair().await);
            }
            let window = stream_bytes(0..3 * 252);
            for (here, there) in &mut pairs {
                let both = futures::join!(here.write_all(&window), there.write_all(&window));
                both.0.and(both.1).unwrap();
            }
            let mut part = [0; 100];
            in_time("a part", pairs[0].1.read_exact(&mut part))
                .await
                .unwrap();
            assert_eq!(part, window[..100]);
            let data = stream_bytes(0..20_000);
            for (here, there) in &mut pairs[2..] {
                for turned in [false, true] {
                    let (from, to) = match turned {
                        false => (&mut *here, &mut *there),
                        true => (&mut *there, &mut *here),
                    };
                    let mut came = vec![0; window.len() + data.len()];
                    let both =
                        futures::future::join(from.write_all(&data), to.read_exact(&mut came));
                    let (sent, got) = in_time("the data", both).await;
                    sent.and(got.map(drop)).unwrap();
                    assert!(came == [&window[..], &data].concat());
                }
            }
            assert_eq!(world.fake("fake0").shared_queues(), 2);
            let (mut here, mut there) = pairs.swap_remove(0);
            let mut rest = Vec::new();
            let ends = futures::future::join(here.shutdown(), there.read_to_end(&mut rest));
            let (shut, read) = in_time("the end", ends).await;
            shut.and(read.map(drop)).unwrap();
            assert!(rest == window[100..]);
        });
    }
}
