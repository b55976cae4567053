//! An honest client of a stream service is served while strangers and hostile peers connect to the
//! same listener.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use futures::future::{join_all, select};
use support::device::needs_soft;
use support::stream::{hear, offer, say};
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, oneshot};
use tokio::time::{sleep, timeout};
use tokio_doca::mem::BufInventory;
use tokio_doca::rdma::RdmaState;
use tokio_doca::soft::Soft;
use tokio_doca::stream::{Incoming, RdmaConnector, RdmaStream, StreamOptions};
use tokio_doca::{Buf, BufPool, Device, Dma, Mmap, Rdma, WorkQ};

use super::bystander::{Attack, TIMES, is_served_among, is_served_beside};
use super::streams::{Trap, forged};

pub(super) const HELLO: u8 = 0;
pub(super) const WELCOME: u8 = 1;
pub(super) const READY: [u8; 6] = *b"TDST\x02\x02";
/// The number of hostile peers at once; the service has more places.
pub(super) const PEERS: usize = 40;
/// The number of hostile peers at once that grant credits without receives.
const LIARS: usize = 256;
/// The number of silent strangers at once: more than the listener reads from at the same time.
pub(super) const STRANGERS: usize = 100;
/// Size of the service's copies in bytes: too large to be done inline.
const COPY: usize = 1 << 20;
/// Depth of the service's WorkQ: fewer slots than the hostile peers would use if they could.
const DEPTH: u32 = 32;
/// Pause between two strikes, so that the service gets a CPU.
pub(super) const PACE: Duration = Duration::from_millis(1);
/// Time limits of an exchange: the default, and a short one, which also limits one step of a peer.
pub(super) const LONG: Duration = Duration::from_secs(5);
pub(super) const SHORT: Duration = Duration::from_millis(500);

pub(super) fn device() -> Device {
    Soft::builder().build().open("pf0").unwrap()
}

/// What the service does for each message of an honest client: a copy on the WorkQ that all streams
/// share.
pub(super) struct Work(Dma, Buf, Buf);

impl Work {
    fn new(device: &Device, workq: &WorkQ) -> Work {
        let memory = Mmap::builder().device(device).alloc(2 * COPY).unwrap();
        let inventory = BufInventory::with_capacity(2);
        let src = inventory.buf_filled(&memory, ..COPY).unwrap();
        let dst = inventory.buf(&memory, COPY..).unwrap();
        Work(Dma::builder(device).attach(workq).unwrap(), src, dst)
    }

    async fn done(&self) {
        self.2.reset_data_len().unwrap();
        self.0.copy(&self.1, &self.2).await.unwrap();
    }
}

/// Serves one stream: answers `C` after a copy, `G` with endless data, and any other byte with
/// itself.
async fn answer(incoming: Incoming, work: Arc<Mutex<Work>>) -> std::io::Result<()> {
    let mut stream = incoming.accept(b"").await?;
    let mut data = vec![0; 16 << 10];
    loop {
        let len = stream.read(&mut data).await?;
        match data[0] {
            _ if len == 0 => return stream.shutdown().await,
            b'C' => work.lock().await.done().await,
            b'G' => loop {
                stream.write_all(&data).await?;
            },
            _ => {}
        }
        stream.write_all(&data[..len]).await?;
    }
}

/// An echo service on its own thread, which ends when this value is dropped.
pub(super) struct Service {
    pub(super) addr: SocketAddr,
    /// Dangling once the service and all of its streams have ended.
    work: Weak<Mutex<Work>>,
    _end: oneshot::Sender<()>,
}

impl Service {
    pub(super) fn start(options: StreamOptions) -> Service {
        let (end, is_over) = oneshot::channel::<()>();
        let (says, said) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            run(async {
                let workq = WorkQ::builder().depth(DEPTH).build().unwrap();
                let device = device();
                let work = Arc::new(Mutex::new(Work::new(&device, &workq)));
                let local: SocketAddr = "127.0.0.1:0".parse().unwrap();
                let listener = options.bind(&device, &workq, local).await.unwrap();
                let addr = listener.tcp_addr().unwrap();
                says.send((addr, Arc::downgrade(&work))).unwrap();
                let serve = async {
                    while let Ok(incoming) = listener.accept().await {
                        tokio::spawn(answer(incoming, Arc::clone(&work)));
                    }
                };
                select(Box::pin(serve), is_over).await;
            });
        });
        let (addr, work) = said.recv().unwrap();
        Service {
            addr,
            work,
            _end: end,
        }
    }

    /// Waits until all streams of the service have ended.
    async fn is_left_alone(&self) {
        until("all have gone", || self.work.strong_count() == 1).await;
    }
}

/// An honest client: one stream that stays, and a new one for each visit.
struct Client {
    connector: RdmaConnector,
    addr: SocketAddr,
    stays: RdmaStream,
}

async fn echo(stream: &mut RdmaStream) -> std::io::Result<()> {
    let (said, mut heard) = ([b'C'; 64], [0; 64]);
    stream.write_all(&said).await?;
    stream.read_exact(&mut heard).await?;
    assert_eq!(said, heard);
    Ok(())
}

impl Client {
    async fn new(addr: SocketAddr) -> Client {
        let workq = WorkQ::builder().build().unwrap();
        let connector = RdmaConnector::new(&device(), &workq).unwrap();
        Client {
            stays: connector.connect(addr).await.unwrap(),
            connector,
            addr,
        }
    }

    async fn visit(&mut self) {
        echo(&mut self.stays).await.unwrap();
        // An exchange may time out on a busy machine; then the client connects again.
        let mut new = loop {
            if let Ok(stream) = self.connector.connect(self.addr).await {
                break stream;
            }
        };
        echo(&mut new).await.unwrap();
        new.shutdown().await.unwrap();
        sleep(PACE).await;
    }
}

/// Checks that a client is served beside an attack, which has begun after `strikes` strikes, and
/// that nothing is left of the attack. `limit` is the time limit of exchanges.
pub(super) fn beside(
    name: &str,
    limit: Duration,
    strikes: usize,
    attack: impl AsyncFn(SocketAddr, &Attack) + Send + Sync + 'static,
) {
    among(name, TIMES, limit, strikes, attack);
}

/// Checks as `beside` does, but the client may be `times` times slower: the service does as much
/// for each attacker as for the client.
fn among(
    name: &str,
    times: u32,
    limit: Duration,
    strikes: usize,
    attack: impl AsyncFn(SocketAddr, &Attack) + Send + Sync + 'static,
) {
    let service = Service::start(StreamOptions::new().timeout(limit));
    let addr = service.addr;
    run(async {
        let mut client = Client::new(addr).await;
        let attack = async move |state: &Attack| attack(addr, state).await;
        let visit = async || client.visit().await;
        is_served_among(name, times, strikes, visit, attack).await;
        drop(client);
        service.is_left_alone().await;
    });
}

fn framed(message: &[u8]) -> Vec<u8> {
    [&(message.len() as u32).to_be_bytes(), message].concat()
}

/// The behavior of a stranger, which does not use the crate.
#[derive(Clone)]
pub(super) enum Stranger {
    /// Sends these bytes, and stays.
    Says(Vec<u8>),
    /// Sends these bytes, one each time that another stranger connects, and stays.
    ByteByByte(Vec<u8>),
    /// Sends this hello, claims to be connected once it is welcomed, and hangs up.
    Ghost(Vec<u8>),
    /// Sends this hello, and stays silent once it is welcomed.
    Waits(Vec<u8>),
}

impl Stranger {
    async fn comes(&self, addr: SocketAddr) -> std::io::Result<Option<TcpStream>> {
        let mut socket = TcpStream::connect(addr).await?;
        match self {
            Stranger::Says(bytes) => socket.write_all(bytes).await?,
            Stranger::ByteByByte(_) => {}
            Stranger::Ghost(blob) | Stranger::Waits(blob) => {
                say(&mut socket, &offer(HELLO, 8, blob)).await?;
                let len = socket.read_u32().await?;
                let mut welcome = vec![0; len as usize];
                socket.read_exact(&mut welcome).await?;
                if let Stranger::Ghost(_) = self {
                    if welcome[5] == WELCOME {
                        say(&mut socket, &READY).await?;
                    }
                    return Ok(None);
                }
            }
        }
        Ok(Some(socket))
    }
}

/// A stranger that connected, and the number of bytes it has sent since. A ghost has hung up, but
/// may keep its place until the service's time limit.
struct Came {
    socket: Option<TcpStream>,
    since: Instant,
    said: usize,
}

impl Came {
    fn is_over(&self) -> bool {
        let hung_up = |socket: &TcpStream| match socket.try_read(&mut [0; 1024]) {
            Ok(len) => len == 0,
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        };
        match &self.socket {
            Some(socket) => hung_up(socket),
            None => self.since.elapsed() > 2 * SHORT,
        }
    }
}

/// Connects strangers one after the other. At most `most` of them stay: another one connects once
/// the service has finished with one.
pub(super) async fn strangers(who: Stranger, most: usize, addr: SocketAddr, attack: &Attack) {
    let mut stay: Vec<Came> = Vec::new();
    while attack.goes_on() {
        sleep(PACE).await;
        stay.retain(|came| !came.is_over());
        if stay.len() >= most {
            continue;
        }
        // The service may have hung up.
        let since = Instant::now();
        if let Ok(Ok(socket)) = timeout(SHORT, who.comes(addr)).await {
            let said = 0;
            stay.push(Came {
                socket,
                since,
                said,
            });
        }
        if let Stranger::ByteByByte(bytes) = &who {
            for Came { socket, said, .. } in &mut stay {
                let socket = socket.as_ref().expect("it stays");
                _ = socket.try_write(&bytes[*said..][..1]);
                *said = (*said + 1).min(bytes.len() - 2);
            }
        }
        attack.strikes();
    }
}

#[test]
fn strangers_hold_up_no_honest_client() {
    if needs_soft("an adapter cannot see whether its peer is there") {
        return;
    }
    let nobody = forged(0xff, |_| ());
    let hello = offer(HELLO, 8, &nobody);
    let trap = Trap::new();
    let both = [framed(&hello), framed(&READY)].concat();
    use Stranger::{ByteByByte, Ghost, Says, Waits};
    // The listener handles these before they get a place.
    for (name, who) in [
        ("silence", Says(Vec::new())),
        ("a byte at a time", ByteByByte(framed(&hello))),
        ("half a message", Says(17_423_u32.to_be_bytes().into())),
        ("garbage", Says(vec![0x55; 4096])),
        ("the version before", Says(framed(b"TDST\x01\x00"))),
    ] {
        let most = STRANGERS;
        beside(name, LONG, most, async move |addr, attack| {
            strangers(who.clone(), most, addr, attack).await;
        });
    }
    // These have a place until the time limit.
    for (name, who) in [
        ("ghosts", Ghost(nobody.clone())),
        ("ghosts of the other order", Ghost(forged(0, |_| ()))),
        ("ghosts that stay", Waits(nobody)),
        ("ghosts that are ready at once", Says(both)),
        ("blobs that lead to a socket", Waits(trap.blob(0))),
        ("by a link", Waits(trap.linked_blob(0xff))),
    ] {
        let most = PEERS;
        beside(name, SHORT, 2 * most, async move |addr, attack| {
            strangers(who.clone(), most, addr, attack).await;
        });
        trap.is_untouched();
    }
}

/// What hostile peers need to connect.
struct Kit {
    device: Device,
    workq: WorkQ,
    pool: BufPool,
}

/// The behavior of a hostile peer on a connection that it has made by hand.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Peer {
    /// Grants the maximum of credits, requests data, and posts no receive.
    Lies,
    /// Grants the maximum of credits, requests data, and posts one receive at a time, just in time.
    Trickles,
    /// Sends frames that the protocol forbids.
    Babbles,
    /// Does not report that it is connected, and sends its introduction.
    IsNotReady,
    /// Disconnects.
    Leaves,
}

impl Kit {
    fn new() -> Kit {
        let (device, workq) = (device(), WorkQ::builder().depth(1024).build().unwrap());
        let memory = Mmap::builder().device(&device).alloc(4 << 20).unwrap();
        Kit {
            pool: BufPool::builder(&memory)
                .element_size(1024)
                .build()
                .unwrap(),
            device,
            workq,
        }
    }

    async fn send(&self, rdma: &Rdma, frame: &[u8]) -> Result<(), Box<dyn std::error::Error>> {
        let buf = self.pool.alloc().await;
        buf.extend_from_slice(frame)?;
        rdma.send(&buf).await?;
        Ok(())
    }

    /// Runs one life of a peer.
    async fn lives(
        &self,
        peer: Peer,
        addr: SocketAddr,
        attack: &Attack,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let rdma = Rdma::builder(&self.device).attach(&self.workq)?;
        let mut socket = TcpStream::connect(addr).await?;
        say(&mut socket, &offer(HELLO, 0, &rdma.export()?)).await?;
        let welcome = hear(&mut socket).await;
        if welcome[5] != WELCOME {
            return Err("there is no place".into());
        }
        let len = u16::from_be_bytes([welcome[14], welcome[15]]);
        rdma.connect(&welcome[16..][..len.into()]).await?;
        self.send(&rdma, &[2, 0, 0xff, 0xff]).await?;
        if peer != Peer::IsNotReady {
            say(&mut socket, &READY).await?;
        }
        attack.strikes();
        match peer {
            Peer::Lies | Peer::Trickles => self.send(&rdma, b"\0\0\0\0G").await?,
            Peer::Babbles => {
                for frame in [&[0, 0, 0, 0, 1][..], &[3, 0, 0, 0], &[0], &[2, 9, 255, 255]] {
                    self.send(&rdma, frame).await?;
                }
            }
            Peer::IsNotReady => {}
            Peer::Leaves => return Ok(()),
        }
        while attack.goes_on() && rdma.state() == RdmaState::Connected {
            if peer == Peer::Trickles {
                let buf = self.pool.alloc().await;
                _ = timeout(SHORT, rdma.recv(&buf)).await;
            }
            sleep(10 * PACE).await;
        }
        Ok(())
    }
}

/// Lets `count` peers come again and again.
async fn come(peer: Peer, count: usize, addr: SocketAddr, attack: &Attack) {
    let kit = Kit::new();
    let again = async || {
        while attack.goes_on() {
            // The life ends when the service ends it.
            _ = timeout(2 * LONG, kit.lives(peer, addr, attack)).await;
            sleep(PACE).await;
        }
    };
    join_all((0..count).map(|_| again())).await;
}

#[test]
fn peers_that_break_the_protocol_hold_up_no_honest_client() {
    if needs_soft("an adapter is told of no receives") {
        return;
    }
    for peer in [
        Peer::Lies,
        Peer::Trickles,
        Peer::Babbles,
        Peer::IsNotReady,
        Peer::Leaves,
    ] {
        // A peer that leaves costs the service as much as a client does.
        let times = match peer {
            Peer::Leaves => PEERS as u32 + 1,
            _ => TIMES,
        };
        let name = format!("{peer:?}");
        among(&name, times, LONG, PEERS, async move |addr, attack| {
            come(peer, PEERS, addr, attack).await;
        });
    }
}

/// The service makes its own copies on the WorkQ that it shares with the peers' streams.
#[test]
#[ignore = "256 connections time out beside a load"]
fn many_peers_without_receives_hold_up_no_copy_of_the_service() {
    if needs_soft("an adapter is told of no receives") {
        return;
    }
    let service = Service::start(StreamOptions::new().connections(2 * LIARS));
    let addr = service.addr;
    run(async {
        let visit = async || {
            let work = service.work.upgrade().expect("the service has it");
            work.lock().await.done().await;
            sleep(PACE).await;
        };
        let lie = async move |attack: &Attack| come(Peer::Lies, LIARS, addr, attack).await;
        is_served_beside("its own copies", LIARS, visit, lie).await;
        service.is_left_alone().await;
    });
}

/// The behavior of a peer with a stream, which keeps to the protocol.
#[derive(Clone, Copy, Debug)]
enum Greedy {
    /// Requests data, and reads nothing.
    ReadsNothing,
    /// Requests data, reads nothing, and writes as much as it may.
    Stuffs,
    /// Sends single bytes, as fast as it can.
    SendsBytes,
    /// Does nothing.
    IsIdle,
}

async fn lives(who: Greedy, connector: &RdmaConnector, addr: SocketAddr, attack: &Attack) {
    let Ok(mut stream) = connector.connect(addr).await else {
        return;
    };
    attack.strikes();
    if let Greedy::ReadsNothing | Greedy::Stuffs = who {
        _ = stream.write_all(b"G").await;
    }
    while attack.goes_on() {
        let wrote = match who {
            Greedy::ReadsNothing | Greedy::IsIdle => Ok(Ok(())),
            Greedy::Stuffs => timeout(PACE, stream.write_all(&[1; 32 << 10])).await,
            Greedy::SendsBytes => {
                let ten = async {
                    for _ in 0..10 {
                        stream.write_all(b"x").await?;
                        stream.read_exact(&mut [0]).await?;
                    }
                    Ok(())
                };
                timeout(SHORT, ten).await
            }
        };
        if let Ok(Err(_)) = wrote {
            return;
        }
        sleep(10 * PACE).await;
    }
}

#[test]
fn greedy_peers_hold_up_no_honest_client() {
    for who in [
        Greedy::ReadsNothing,
        Greedy::Stuffs,
        Greedy::SendsBytes,
        Greedy::IsIdle,
    ] {
        beside(
            &format!("{who:?}"),
            LONG,
            PEERS,
            async move |addr, attack| {
                let workq = WorkQ::builder().depth(1024).build().unwrap();
                let connector = RdmaConnector::new(&device(), &workq).unwrap();
                let again = async || {
                    while attack.goes_on() {
                        lives(who, &connector, addr, attack).await;
                    }
                };
                join_all((0..PEERS).map(|_| again())).await;
            },
        );
    }
}
