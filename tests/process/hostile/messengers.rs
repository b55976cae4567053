//! Hostile clients of a service that calls `Rdma::handshake_accept`: they connect by TCP, send the
//! service's expected first bytes, shake hands, and send messages.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::Duration;

use futures::future::join_all;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_doca::rdma::RdmaState;
use tokio_doca::{BufPool, Device, Mmap, Rdma, WorkQ};

use super::bystander::Attack;
use super::handshakes::{ghost, nobodies};

/// The number of hostile clients at once.
pub(crate) const CLIENTS: usize = 40;
/// The number of silent clients: more than the examples have places for.
pub(crate) const SILENT: usize = 100;
const ROOM: usize = 32 << 10;
const PACE: Duration = Duration::from_millis(5);
/// The time limit of one client's life.
const SHORT: Duration = Duration::from_secs(2);

/// The device, WorkQ and memory that the hostile clients share.
struct Kit {
    device: Device,
    workq: WorkQ,
    pool: BufPool,
}

impl Kit {
    fn new() -> Kit {
        let device = Device::open_default().unwrap();
        let builder = Mmap::builder().device(&device);
        let memory = builder.alloc(2 * CLIENTS * ROOM).unwrap();
        Kit {
            pool: BufPool::builder(&memory)
                .element_size(ROOM)
                .build()
                .unwrap(),
            workq: WorkQ::builder().depth(1024).build().unwrap(),
            device,
        }
    }

    async fn comes(&self, addr: SocketAddr, first: &[u8]) -> std::io::Result<Rdma> {
        let builder = Rdma::builder(&self.device).rnr_timeout(Duration::from_millis(300));
        let rdma = builder.attach(&self.workq)?;
        let mut stream = TcpStream::connect(addr).await?;
        stream.write_all(first).await?;
        rdma.handshake_connect(&mut stream).await?;
        Ok(rdma)
    }

    async fn send(&self, rdma: &Rdma, message: &[u8]) -> std::io::Result<()> {
        let buf = self.pool.alloc().await;
        buf.extend_from_slice(message)?;
        rdma.send(&buf).await?;
        Ok(())
    }

    /// Sends requests again and again, and posts no receive for an answer.
    async fn asks(
        &self,
        addr: SocketAddr,
        first: &[u8],
        ask: &[u8],
        attack: &Attack,
    ) -> std::io::Result<()> {
        let rdma = self.comes(addr, first).await?;
        self.send(&rdma, ask).await?;
        attack.strikes();
        while attack.goes_on() && rdma.state() == RdmaState::Connected {
            sleep(PACE).await;
        }
        Ok(())
    }
}

/// Runs clients that send `ask` and take no answer, beside an honest client.
pub(crate) async fn take_no_answer(addr: SocketAddr, first: &[u8], ask: &[u8], attack: &Attack) {
    let kit = Kit::new();
    let again = async || {
        while attack.goes_on() {
            _ = timeout(SHORT, kit.asks(addr, first, ask, attack)).await;
            sleep(PACE).await;
        }
    };
    join_all((0..CLIENTS).map(|_| again())).await;
}

/// Sends broken messages: `ask` with one byte changed, or cut short.
pub(crate) async fn talk_nonsense(addr: SocketAddr, first: &[u8], ask: &[u8], attack: &Attack) {
    let kit = Kit::new();
    let mut turn = 0_usize;
    while attack.goes_on() {
        turn += 1;
        let mut message = ask.to_vec();
        match turn % 4 {
            0 => message = vec![turn as u8; [0, 1, 15, 300, ROOM][turn / 4 % 5]],
            1 => message.truncate(turn / 4 % ask.len()),
            _ => message[turn / 4 % ask.len()] ^= 1 << (turn % 8),
        }
        let talk = async {
            let rdma = kit.comes(addr, first).await?;
            kit.send(&rdma, &message).await?;
            kit.send(&rdma, &message).await
        };
        _ = timeout(SHORT, talk).await;
        attack.strikes();
        sleep(PACE).await;
    }
}

/// Runs clients that come by TCP only.
pub(crate) async fn haunt(addr: SocketAddr, first: &'static [u8], attack: &Attack) {
    let nobodies = nobodies();
    for blob in nobodies.iter().cycle() {
        if !attack.goes_on() {
            return;
        }
        let blob = blob.clone();
        let come = tokio::task::spawn_blocking(move || ghost(addr, first, &blob));
        assert_eq!(come.await.unwrap().unwrap(), 0, "it has not come");
        attack.strikes();
    }
}

/// Connects more clients than a service has places for. They send `first`, and then nothing.
pub(crate) async fn say_nothing<S: Write>(
    connect: impl Fn() -> io::Result<S>,
    first: &[u8],
    attack: &Attack,
) {
    let connect = |_| {
        let mut socket = connect().unwrap();
        socket.write_all(first).unwrap();
        attack.strikes();
        socket
    };
    let _held: Vec<S> = (0..SILENT).map(connect).collect();
    while attack.goes_on() {
        sleep(PACE).await;
    }
}

/// Opens more silent sockets than the service has descriptors for.
pub(crate) async fn flood(addr: SocketAddr, sockets: usize, attack: &Attack) {
    let mut held = std::collections::VecDeque::new();
    while attack.goes_on() {
        if let Ok(Ok(socket)) = timeout(SHORT, TcpStream::connect(addr)).await {
            held.push_back(socket);
            attack.strikes();
        }
        if held.len() > sockets {
            held.pop_front();
        }
        sleep(PACE / 5).await;
    }
}
