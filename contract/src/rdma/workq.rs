//! Checks of all duties together: each endpoint under a WorkQ, through the crate, in both modes.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures::future::join;
use tokio::runtime::Builder;

use super::memory::{ALL, Memory, REMOTE};
use super::{Peers, watched};
use crate::rig::wait_for;
use tokio_doca::device::RecvOpcode;
use tokio_doca::error::Reason;
use tokio_doca::{Buf, BufPool, Mmap, Mode, Rdma, WorkQ, rdma::RdmaState};

const ELEMENT: usize = 256;
const ROUNDS: usize = 100;

/// One side: an Rdma on a WorkQ of its own, and memory.
pub(super) struct Bench {
    deadline: Duration,
    pub(super) workq: WorkQ,
    pub(super) rdma: Rdma,
    pool: BufPool,
}

impl Bench {
    pub(super) fn new(peers: &Peers, side: usize, mode: Mode, recv_chain_len: u32) -> Bench {
        let workq = WorkQ::builder().depth(peers.depth(8)).mode(mode).build();
        let workq = workq.expect("a WorkQ");
        Bench::on(peers, side, workq, recv_chain_len)
    }

    fn on(peers: &Peers, side: usize, workq: WorkQ, recv_chain_len: u32) -> Bench {
        let (device, caps) = (&peers.devices[side], peers.caps(side));
        let mmap = Mmap::builder().device(device).alloc(64 * ELEMENT);
        let pool = BufPool::builder(&mmap.expect("memory"))
            .element_size(ELEMENT)
            .build();
        let rdma = Rdma::builder(device)
            .permissions(REMOTE)
            .send_queue_size(1 << caps.max_send_queue_size.min(8).ilog2())
            .recv_queue_size(1 << caps.max_recv_queue_size.min(8).ilog2())
            .recv_chain_len(recv_chain_len)
            .rnr_timeout(2 * peers.deadline)
            .attach(&workq);
        Bench {
            deadline: peers.deadline,
            rdma: rdma.expect("within the capabilities"),
            workq,
            pool: pool.expect("a pool"),
        }
    }

    /// Makes another Rdma on the same WorkQ.
    fn beside(&self, peers: &Peers, side: usize) -> Bench {
        Bench::on(peers, side, self.workq.clone(), 1)
    }

    /// Connects two sides that are in the state Init.
    pub(super) fn connect(pair: &[Bench; 2]) {
        let blobs = pair
            .each_ref()
            .map(|one| one.rdma.export().expect("it exports in the state Init"));
        for (one, blob) in pair.iter().zip([&blobs[1], &blobs[0]]) {
            let connected = one.rdma.connect(blob).timeout(one.deadline).wait();
            connected.expect("two endpoints of the provider connect");
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        self.rdma.state() == RdmaState::Connected
    }

    pub(super) fn filled(&self, bytes: &[u8]) -> Buf {
        let buf = self.pool.try_alloc().expect("enough");
        buf.extend_from_slice(bytes).expect("it fits");
        buf
    }

    /// Runs a future of this side without a runtime, in `Mode::BusyPoll`. Polls the other WorkQ as
    /// well.
    pub(super) fn block_on<F: Future>(&self, other: &Bench, future: F) -> F::Output {
        let both = (future, async {});
        block_on_both(self, other, both).0
    }
}

/// Runs one future of each side without a runtime, and polls both WorkQs in turn.
pub(super) fn block_on_both<A: Future, B: Future>(
    one: &Bench,
    other: &Bench,
    (a, b): (A, B),
) -> (A::Output, B::Output) {
    let mut both = pin!(join(a, b));
    let mut cx = Context::from_waker(Waker::noop());
    let mut found = None;
    wait_for(one.deadline, "duty 1: each operation ends", || {
        if let Poll::Ready(both) = both.as_mut().poll(&mut cx) {
            found = Some(both);
        }
        for bench in [one, other] {
            bench.workq.progress(|_, _| {});
        }
        found.is_some()
    });
    found.expect("it was waited for")
}

/// Drives endpoints through WorkQs in [`Mode::BusyPoll`], without a runtime: all operations,
/// receives that are dropped, several Rdmas on a WorkQ, a reset and a shutdown.
///
/// # Panics
///
/// Panics if an operation fails, never ends or has a wrong effect, or if a message is lost.
pub fn rdma_busy_polls(peers: impl Into<Peers>) {
    watched("Mode::BusyPoll", peers, |peers| {
        let pair = Arc::new([0, 1].map(|side| Bench::new(peers, side, Mode::BusyPoll, 1)));
        let [here, there] = &*pair;
        block_on_both(here, there, (traffic(peers, Arc::clone(&pair)), async {}));
        let both = (here.workq.shutdown(), there.workq.shutdown());
        let both = block_on_both(here, there, both);
        assert!(both.0.is_ok() && both.1.is_ok(), "{both:?}");
    });
}

/// Drives endpoints as [`rdma_busy_polls`] does, but in [`Mode::EventDriven`], with each side in a
/// task of its own on a Tokio runtime.
///
/// # Panics
///
/// Panics as [`rdma_busy_polls`] does.
pub fn rdma_sleeps_and_wakes(peers: impl Into<Peers>) {
    watched("Mode::EventDriven", peers, |peers| {
        let runtime = Builder::new_current_thread().enable_io().build();
        runtime.expect("a runtime with I/O").block_on(async {
            let pair = [0, 1].map(|side| Bench::new(peers, side, Mode::EventDriven, 1));
            let pair = Arc::new(pair);
            traffic(peers, Arc::clone(&pair)).await;
            for bench in &*pair {
                bench.workq.shutdown().await.expect("nothing hinders it");
                assert_eq!(bench.workq.in_flight(), 0, "in flight after shutdown");
            }
        });
    });
}

async fn traffic(peers: &Peers, pair: Arc<[Bench; 2]>) {
    let [here, there] = &*pair;
    let (mut one, mut other) = tokio::io::duplex(4096);
    let shaken = join(
        here.rdma.handshake(&mut one),
        there.rdma.handshake_accept(&mut other),
    )
    .await;
    assert_eq!(
        (shaken.0.is_ok(), shaken.1.is_ok()),
        (true, true),
        "{shaken:?}"
    );
    operations(peers, here, there).await;
    messages(peers, here, there).await;
    join(ping(peers, here, true), ping(peers, there, false)).await;
    dropped_receives(peers, here, there).await;
    // Earlier receives are flushed, and their memory returns to the pool.
    let waiting = there
        .rdma
        .recv(there.pool.alloc().await)
        .start()
        .expect("a place");
    there.rdma.reset().expect("it is open");
    let error = waiting.await.expect_err("it was reset");
    assert_eq!(error.reason(), Reason::Flushed, "endpoint duty 3: {error}");
    here.rdma.reset().expect("it is open");
    Bench::connect(&pair);
    // Adds more Rdmas on the same WorkQs.
    let more = [(); 3].map(|()| [0, 1].map(|side| pair[side].beside(peers, side)));
    for pair in &more {
        Bench::connect(pair);
    }
    let all = more
        .iter()
        .map(|[here, there]| messages(peers, here, there));
    join(futures::future::join_all(all), messages(peers, here, there)).await;
    for bench in pair.iter().chain(more.iter().flatten()) {
        assert!(bench.is_connected(), "nothing has failed");
    }
}

const OPERATES: &str = "an operation does what it says";

/// Sends a message, with or without an immediate, and an empty one.
async fn send_and_receive(peers: &Peers, here: &Bench, there: &Bench, immediate: Option<u32>) {
    let (a, b) = (&here.rdma, &there.rdma);
    let (len, what) = (peers.within(5), OPERATES);
    let part = |bytes: &[u8]| here.filled(&bytes[..len]);
    let dst = there.pool.alloc().await;
    let send = async {
        match immediate {
            None => a.send(part(b"hello")).await,
            Some(immediate) => a.send_imm(part(b"hello"), immediate).await,
        }
    };
    let (sent, received) = join(send, b.recv(&dst)).await;
    let received = received.expect("a message comes");
    let opcode = if immediate.is_some() {
        RecvOpcode::SendImm
    } else {
        RecvOpcode::Send
    };
    assert_eq!((sent, received.len), (Ok(len), len), "{what}");
    assert_eq!(
        (received.opcode, received.immediate),
        (opcode, immediate),
        "{what}"
    );
    assert_eq!(
        dst.data().expect("it is over")[..],
        b"hello"[..len],
        "{what}"
    );
    let empty = async {
        match immediate {
            None => a.send(()).await,
            Some(immediate) => a.send_imm((), immediate).await,
        }
    };
    let (sent, received) = join(empty, b.recv(())).await;
    assert_eq!(
        (sent, received.map(|it| it.immediate)),
        (Ok(0), Ok(immediate)),
        "{what}"
    );
}

/// Runs all eight operations, one after the other.
async fn operations(peers: &Peers, here: &Bench, there: &Bench) {
    let (a, b) = (&here.rdma, &there.rdma);
    let memory = Memory::new(peers, 1, ELEMENT, ALL);
    let remote = memory.remote().buf(..64).expect("a piece");
    let (len, what) = (peers.within(5), OPERATES);
    let part = |bytes: &[u8]| here.filled(&bytes[..len]);
    let send_imm = peers.both(|caps| caps.send_imm);
    for immediate in [None].into_iter().chain(send_imm.then_some(Some(7))) {
        send_and_receive(peers, here, there, immediate).await;
    }
    assert_eq!(a.write(part(b"12345"), &remote).await, Ok(len), "{what}");
    assert_eq!(memory.read(0, len), b"12345"[..len], "{what}");
    let back = here.pool.alloc().await;
    assert_eq!(
        a.read(remote.slice(..len).expect("its"), &back).await,
        Ok(len),
        "{what}"
    );
    assert_eq!(
        back.data().expect("it is over")[..],
        b"12345"[..len],
        "{what}"
    );
    assert_eq!(
        (a.write((), ()).await, a.read((), ()).await),
        (Ok(0), Ok(0)),
        "{what}"
    );
    if peers.caps(0).write_imm {
        let (sent, received) = join(a.write_imm(part(b"abcde"), &remote, 9), b.recv(())).await;
        let received = received.expect("an immediate comes");
        assert_eq!((sent, received.immediate), (Ok(len), Some(9)), "{what}");
        assert_eq!(
            (received.opcode, received.len),
            (RecvOpcode::WriteImm, len),
            "{what}"
        );
        assert_eq!(memory.read(0, len), b"abcde"[..len], "{what}");
    }
    if peers.caps(0).atomics {
        memory.write(0, &7_u64.to_ne_bytes());
        assert_eq!(a.fetch_add(&remote, 5).await, Ok(7), "{what}");
        assert_eq!(a.compare_swap(&remote, 7, 1).await, Ok(12), "{what}");
        assert_eq!(a.compare_swap(&remote, 12, 1).await, Ok(12), "{what}");
        assert_eq!(memory.read(0, 8), 1_u64.to_ne_bytes(), "{what}");
    }
}

/// Sends many messages in both directions at once, more than there are receives and slots.
async fn messages(peers: &Peers, here: &Bench, there: &Bench) {
    let send = |from: &Bench, seed: usize| {
        let rdma = from.rdma.clone();
        let pool = from.pool.clone();
        async move {
            for round in 0..ROUNDS {
                let buf = pool.alloc().await;
                buf.extend_from_slice(&text(peers, round + seed))
                    .expect("it fits");
                assert_eq!(
                    rdma.send(&buf).await,
                    Ok(buf.data_len()),
                    "a message is sent"
                );
            }
        }
    };
    let receive = |to: &Bench, seed: usize| {
        let (rdma, pool) = (to.rdma.clone(), to.pool.clone());
        async move {
            for round in 0..ROUNDS {
                let buf = pool.alloc().await;
                rdma.recv(&buf).await.expect("a message comes");
                let found = buf.data().expect("it is over").to_vec();
                assert!(
                    found == text(peers, round + seed),
                    "message {round} is another one"
                );
            }
        }
    };
    let one = join(send(here, 0), receive(there, 0));
    let other = join(send(there, 50), receive(here, 50));
    join(one, other).await;
}

fn text(peers: &Peers, seed: usize) -> Vec<u8> {
    let len = peers.within(1 + seed * 37 % ELEMENT);
    (0..len).map(|i| (i * 31 + seed * 7) as u8).collect()
}

/// Sends one message at a time, there and back. Each side sleeps until the message comes. The
/// receive is posted before the peer sends, so that no time limit of the connection applies on a
/// slow machine.
async fn ping(peers: &Peers, bench: &Bench, begins: bool) {
    let post = async || {
        let dst = bench.pool.alloc().await;
        let posted = bench.rdma.recv(dst.clone()).owned().start();
        (posted.expect("a place"), dst)
    };
    let send = async |round: usize| {
        let src = bench.filled(&text(peers, round));
        let sent = bench.rdma.send(&src).await;
        assert!(sent.is_ok(), "round {round}: {sent:?}");
    };
    let mut next = Some(post().await);
    for round in 0..ROUNDS {
        if begins {
            send(round).await;
        }
        let (posted, dst) = next.take().expect("it was posted in the round before");
        posted.await.expect("an answer comes");
        let found = dst.data().expect("it is over").to_vec();
        assert!(found == text(peers, round), "round {round}");
        if round + 1 < ROUNDS {
            next = Some(post().await);
        }
        if !begins {
            send(round).await;
        }
    }
}

/// Checks that dropping a receive loses no message.
async fn dropped_receives(peers: &Peers, here: &Bench, there: &Bench) {
    for round in 0..ROUNDS {
        for _ in 0..round % 3 {
            let dst = there.pool.alloc().await;
            drop(there.rdma.recv(&dst).start());
        }
        let sent = here.filled(&text(peers, round));
        let dst = there.pool.alloc().await;
        let (sent, received) = join(here.rdma.send(&sent), there.rdma.recv(&dst)).await;
        assert!(sent.is_ok(), "{sent:?}");
        received.expect("a message comes");
        let found = dst.data().expect("it is over").to_vec();
        assert!(
            found == text(peers, round),
            "a message was lost with a receive that was dropped"
        );
    }
}
