//! An honest client of a service is served while processes of the same host attack the service
//! through the memory that they share with it, and by the way they end.

use std::io;
use std::net::SocketAddr;

use futures::future::{join_all, select, try_join};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::channel::{Raw, frame, function, hello, representor, service, unique};
use support::device::needs_soft;
use support::peer::{self, Peer, role};
use support::stream::{offer, say};
use support::{test_name, *};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tokio_doca::channel::{Channel, Service as Channels};
use tokio_doca::stream::{RdmaConnector, StreamOptions};
use tokio_doca::{ErrorKind, Rdma, WorkQ};

use super::beside_streams::*;
use super::bystander::{Attack, TIMES, is_served_among, is_served_beside};
use super::ends::replace;
use super::streams::Trap;
use crate::forged;
use crate::forged::rdma::{Endpoint, Hold, RECEIVES, Random};

/// An attack of a hostile peer on the memory and the doorbell of its connection, repeated many
/// times.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shares {
    /// Writes random values to words of the protocol, before and after it has a stream.
    Scribbles,
    /// Sends messages on the doorbell socket that no honest peer sends.
    Stuffs,
    /// Wakes the service without end.
    Rings,
}

/// How many words a peer writes, or how often it wakes the service, before other tasks run.
const ROW: usize = 64;

/// Connects as the connector of a stream would, by hand. Calls `step` after each step. Returns
/// `None` if there is no place.
async fn comes(addr: SocketAddr, mut step: impl FnMut()) -> io::Result<Option<(TcpStream, Hold)>> {
    let (this, mut socket) = (Endpoint::hostile(false, 1), TcpStream::connect(addr).await?);
    step();
    say(&mut socket, &offer(HELLO, 0, &this.format())).await?;
    step();
    let mut welcome = vec![0; socket.read_u32().await? as usize];
    socket.read_exact(&mut welcome).await?;
    step();
    if welcome[5] != WELCOME {
        return Ok(None);
    }
    let len = u16::from_be_bytes([welcome[14], welcome[15]]);
    let host = Endpoint::parse(&welcome[16..][..len.into()]);
    let hold = this.visit(&host, &this.question(RECEIVES, 0));
    step();
    Ok(hold.ok().map(|hold| (socket, hold)))
}

/// Sends a stream's introduction, with credits.
fn introduces_itself(hold: &Hold) {
    (0..RECEIVES).for_each(|number| hold.post(number.into(), 1024));
    hold.put(hold.own(0), 1);
    hold.says(0, [2, 0, 0xff, 0xff]);
    hold.hint();
}

impl Shares {
    async fn lives(self, addr: SocketAddr, turn: u64, attack: &Attack) -> io::Result<()> {
        let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ (turn + 1));
        let Some((mut socket, hold)) = comes(addr, || ()).await? else {
            return Ok(());
        };
        // Half of the peers that scribble have a stream first.
        if self != Shares::Scribbles || turn.is_multiple_of(2) {
            introduces_itself(&hold);
        }
        say(&mut socket, &READY).await?;
        attack.strikes();
        for _ in 0..20 {
            for _ in 0..ROW {
                match self {
                    Shares::Scribbles => hold.scribble(&mut random),
                    Shares::Stuffs => hold.stuff(&mut random),
                    Shares::Rings => _ = hold.ring(),
                }
            }
            sleep(PACE).await;
        }
        Ok(())
    }
}

#[test]
fn peers_that_write_what_they_like_hold_up_no_honest_client() {
    if needs_soft("an adapter shares no memory with its peer's process") {
        return;
    }
    for who in [Shares::Scribbles, Shares::Stuffs, Shares::Rings] {
        let name = format!("{who:?}");
        beside(&name, SHORT, 2 * PEERS, async move |addr, attack| {
            let again = async |first: usize| {
                let mut turn = first as u64;
                while attack.goes_on() {
                    _ = timeout(LONG, who.lives(addr, turn, attack)).await;
                    turn += PEERS as u64 + 1;
                    sleep(PACE).await;
                }
            };
            join_all((0..PEERS).map(again)).await;
        });
    }
}

/// A process that has a stream, and ends as it is told.
fn ends() {
    let addr: SocketAddr = peer::hear().unwrap().parse().unwrap();
    run(async {
        let workq = WorkQ::builder().build().unwrap();
        let connector = RdmaConnector::new(&device(), &workq).unwrap();
        let mut stream = connector.connect(addr).await.unwrap();
        stream.write_all(b"hi").await.unwrap();
        stream.read_exact(&mut [0; 2]).await.unwrap();
        peer::say("served");
        let how = peer::hear().unwrap();
        if how.starts_with("fork") {
            peer::say(&forged::fork_and_linger().to_string());
            peer::hear();
        }
        match how.ends_with("exec") {
            true => replace(),
            false => forged::die(),
        }
    });
}

#[test]
fn processes_that_end_in_ways_of_their_own_hold_up_no_honest_client() {
    const TEST: &str = test_name!(processes_that_end_in_ways_of_their_own_hold_up_no_honest_client);
    if role().is_some() {
        return ends();
    }
    for how in ["kill", "exec", "fork and kill", "fork and exec"] {
        beside(how, LONG, 2, async move |addr, attack| {
            let mut heirs = Vec::new();
            while attack.goes_on() {
                let mut peer = Peer::start(TEST, "peer");
                peer.say(&addr.to_string());
                assert_eq!(peer.hear(), "served");
                peer.say(how);
                if how.starts_with("fork") {
                    heirs.push(peer.hear().parse().unwrap());
                    peer.say("end");
                }
                match how.ends_with("exec") {
                    true => peer.ends(),
                    false => peer.dies(),
                }
                attack.strikes();
            }
            for heir in heirs {
                kill(Pid::from_raw(heir), Signal::SIGKILL).unwrap();
            }
        });
    }
}

/// The number of steps in a connector's exchange; the process may die after each.
const STEPS: usize = 6;

/// A process that requests a stream by hand, and dies after `steps` steps.
async fn dies_after(mut steps: usize, addr: SocketAddr) -> io::Result<()> {
    let mut step = || match steps {
        0 => forged::die(),
        _ => steps -= 1,
    };
    let (mut socket, hold) = comes(addr, &mut step).await?.expect("it is welcome");
    introduces_itself(&hold);
    step();
    say(&mut socket, &READY).await?;
    forged::die();
}

#[test]
fn processes_that_are_killed_at_each_step_of_the_exchange_hold_up_no_honest_client() {
    const TEST: &str =
        test_name!(processes_that_are_killed_at_each_step_of_the_exchange_hold_up_no_honest_client);
    if role().is_some() {
        let steps = peer::hear().unwrap().parse().unwrap();
        let addr = peer::hear().unwrap().parse().unwrap();
        return run(async { dies_after(steps, addr).await.unwrap() });
    }
    if needs_soft("an adapter shares no memory with its peer's process") {
        return;
    }
    beside("each step", LONG, STEPS, async move |addr, attack| {
        for step in (0..STEPS).cycle() {
            if !attack.goes_on() {
                return;
            }
            let mut peer = Peer::start(TEST, "peer");
            peer.say(&step.to_string());
            peer.say(&addr.to_string());
            peer.dies();
            attack.strikes();
        }
    });
}

/// The behavior of a hostile client of a Channel service.
#[derive(Clone, Copy, Debug)]
enum Caller {
    /// Sends nothing, and stays.
    IsSilent,
    /// Sends half a greeting, and stays.
    SaysHalf,
    /// Sends nonsense, and stays.
    SaysNonsense,
    /// Greets, and disconnects.
    Leaves,
    /// Greets, sends as much as it may, and reads nothing.
    ReadsNothing,
}

/// Echoes the messages of all clients of a service, until the returned sender is dropped.
fn echo_channels(service: Channels) -> oneshot::Sender<()> {
    let (end, is_over) = oneshot::channel::<()>();
    let echo = async |client: Channel| {
        while let Ok(message) = client.recv().await {
            if client.send(&message).await.is_err() {
                return;
            }
        }
    };
    std::thread::spawn(move || {
        run(async {
            let serve = async {
                while let Ok(client) = service.accept().await {
                    tokio::spawn(echo(client));
                }
            };
            select(Box::pin(serve), is_over).await;
        });
    });
    end
}

/// The address of a Channel service.
#[derive(Clone)]
enum At {
    Host(String),
    Tcp(String, SocketAddr),
}

trait Io: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Io for T {}

impl At {
    async fn visit(&self) {
        let pf0 = function("pf0");
        let client = loop {
            let builder = Channel::builder();
            let client = match self {
                At::Host(name) => builder.connect(&pf0, name).await,
                At::Tcp(name, addr) => builder.connect_tcp(&pf0, *addr, name).await,
            };
            match client {
                // Peers that have left keep their places until the service notices.
                Err(error) if error.kind() == ErrorKind::Full => sleep(PACE).await,
                client => break client.unwrap(),
            }
        };
        client.send(b"honest").await.unwrap();
        assert_eq!(client.recv().await.unwrap(), "honest");
        sleep(PACE).await;
    }

    async fn socket(&self) -> io::Result<Box<dyn Io>> {
        match self {
            At::Host(name) => {
                let Raw(socket) = Raw::connect(representor("hpf0").info().vuid(), name)?;
                socket.set_nonblocking(true)?;
                Ok(Box::new(UnixStream::from_std(socket)?))
            }
            At::Tcp(_, addr) => Ok(Box::new(TcpStream::connect(addr).await?)),
        }
    }

    async fn calls(&self, who: Caller, attack: &Attack) -> io::Result<()> {
        let mut socket = self.socket().await?;
        let (At::Host(name) | At::Tcp(name, _)) = self;
        let hello = hello(name, 4080);
        let says = match who {
            Caller::IsSilent => &[][..],
            Caller::SaysHalf => &hello[..9],
            Caller::SaysNonsense => &[0x55; 4096],
            Caller::Leaves | Caller::ReadsNothing => &hello,
        };
        socket.write_all(says).await?;
        attack.strikes();
        match who {
            Caller::Leaves => return Ok(()),
            Caller::ReadsNothing => {
                let bytes = frame(&[7; 4080]).repeat(64);
                let mut at = 0;
                while attack.goes_on() {
                    let wrote = timeout(10 * PACE, socket.write(&bytes[at..])).await;
                    at = (at + wrote.unwrap_or(Ok(0))?) % bytes.len();
                }
            }
            // Waits until the service has hung up.
            _ => {
                let over = async {
                    while socket.read(&mut [0; 64]).await? > 0 {}
                    Ok(())
                };
                return timeout(SHORT, over).await.unwrap_or(Ok(()));
            }
        }
        Ok(())
    }
}

#[test]
fn hostile_clients_of_a_channel_hold_up_no_honest_one() {
    // The service serves the callers that send like the client, until their sockets are full.
    let shares = PEERS as u32 + 1;
    for (who, callers, times) in [
        (Caller::IsSilent, STRANGERS, TIMES),
        (Caller::SaysHalf, STRANGERS, TIMES),
        (Caller::SaysNonsense, STRANGERS, TIMES),
        (Caller::Leaves, PEERS, shares),
        (Caller::ReadsNothing, PEERS, shares),
    ] {
        let name = unique("beside");
        run(async {
            let local: SocketAddr = "127.0.0.1:0".parse().unwrap();
            let pf0 = function("pf0");
            let by_tcp = Channel::builder().listen_tcp(&pf0, local, &name).await;
            let by_tcp = by_tcp.unwrap();
            let tcp = At::Tcp(name.clone(), by_tcp.local_addr().unwrap());
            let here = service(Channel::builder(), &name);
            let _both = [echo_channels(by_tcp), echo_channels(here)];
            for (kind, at) in [("TCP", tcp), ("this host", At::Host(name.clone()))] {
                let visited = at.clone();
                let attack = async move |attack: &Attack| {
                    let again = async || {
                        while attack.goes_on() {
                            _ = at.calls(who, attack).await;
                            sleep(PACE).await;
                        }
                    };
                    join_all((0..callers).map(|_| again())).await;
                };
                let name = format!("{who:?}, {kind}");
                let visit = async || visited.visit().await;
                is_served_among(&name, times, callers, visit, attack).await;
            }
        });
    }
}

/// A service connects elsewhere while strangers ask it to connect to a socket at which nothing
/// answers.
#[test]
fn strangers_hold_up_no_connect_of_the_service() {
    if needs_soft("an adapter connects to no socket") {
        return;
    }
    let trap = Trap::new();
    let service = Service::start(
        StreamOptions::new()
            .connections(2 * STRANGERS)
            .timeout(SHORT),
    );
    let addr = service.addr;
    run(async {
        let (device, workq) = (device(), WorkQ::builder().build().unwrap());
        let visit = async || {
            let [a, b] = [(); 2].map(|()| Rdma::builder(&device).attach(&workq).unwrap());
            let blobs = [&a, &b].map(|rdma| rdma.export().unwrap());
            try_join(a.connect(&blobs[1]), b.connect(&blobs[0]))
                .await
                .unwrap();
            sleep(PACE).await;
        };
        let who = Stranger::Waits(trap.blob(0));
        let attack =
            async move |attack: &Attack| strangers(who.clone(), STRANGERS, addr, attack).await;
        is_served_beside("threads", STRANGERS, visit, attack).await;
    });
    trap.is_untouched();
}
