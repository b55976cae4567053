//! Strangers at the address of a stream listener, and hostile listeners: their messages do not make
//! this process connect elsewhere, and take no stream from others.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant};

use futures::future::{join, try_join, try_join_all};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, accept, bind, listen, socket,
};
use support::device::needs_soft;
use support::peer::hex;
use support::programs::Folder;
use support::stream::{Net, crosses, hear, offer, say, small};
use support::*;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio_doca::soft::Soft;
use tokio_doca::{ErrorKind, Mode, WorkQ};

use crate::forged::rdma::Endpoint;

const HELLO: u8 = 0;
const WELCOME: u8 = 1;
const READY: u8 = 2;
const REFUSAL: u8 = 3;
/// The number of streams of a test's listener.
const PLACES: usize = 4;
/// The time limit for an exchange that must fail.
const SHORT: Duration = Duration::from_millis(200);

/// Reads the next message of the exchange: its kind, and the rest.
async fn heard(socket: &mut TcpStream) -> (u8, Vec<u8>) {
    let message = hear(socket).await;
    (message[5], message[6..].to_vec())
}

/// Starts a listener with `PLACES` streams and a short time limit for exchanges.
async fn victim() -> Net {
    let device = Soft::builder().build().open("pf0").unwrap();
    let options = small().connections(PLACES).timeout(SHORT);
    Net::new(&device, Mode::EventDriven, options).await
}

/// A socket of the kind that the fabric connects to, which no honest process uses.
pub(super) struct Trap {
    socket: OwnedFd,
    folder: Folder,
}

impl Trap {
    pub(super) fn new() -> Trap {
        let folder = Folder::new();
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let trap = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
        let path = UnixAddr::new(&folder.path("socket")).unwrap();
        bind(trap.as_raw_fd(), &path).unwrap();
        listen(&trap, Backlog::new(8).unwrap()).unwrap();
        Trap {
            socket: trap,
            folder,
        }
    }

    /// Returns a forged blob that names the socket.
    pub(super) fn blob(&self, instance: u8) -> Vec<u8> {
        leads_to(instance, &self.folder.path("socket"))
    }

    /// Returns a forged blob that names the socket by a link, as its process would.
    pub(super) fn linked_blob(&self, instance: u8) -> Vec<u8> {
        let name = format!("tokio-doca-{}", hex(&[instance; 16]));
        let link = self.folder.path(&name);
        symlink(self.folder.path("socket"), &link).unwrap();
        leads_to(instance, &link)
    }

    #[track_caller]
    pub(super) fn is_untouched(&self) {
        assert_eq!(accept(self.socket.as_raw_fd()), Err(Errno::EAGAIN));
    }
}

fn leads_to(instance: u8, path: &Path) -> Vec<u8> {
    forged(instance, |endpoint| {
        endpoint.kind = 1;
        endpoint.name = path.to_str().unwrap().as_bytes().to_vec();
    })
}

/// Returns the blob of an endpoint that does not exist, after `change` has modified it.
pub(super) fn forged(instance: u8, change: impl FnOnce(&mut Endpoint)) -> Vec<u8> {
    let mut endpoint = Endpoint::hostile(false, 1);
    endpoint.instance = [instance; 16];
    change(&mut endpoint);
    endpoint.format()
}

/// Sends a hello with this blob, and claims to be connected if it is welcomed. Returns the answer.
async fn ghost(addr: SocketAddr, blob: &[u8]) -> (u8, Vec<u8>) {
    let mut socket = TcpStream::connect(addr).await.unwrap();
    say(&mut socket, &offer(HELLO, 8, blob)).await.unwrap();
    let answer = heard(&mut socket).await;
    if answer.0 == WELCOME {
        let ready = [b'T', b'D', b'S', b'T', 2, READY];
        say(&mut socket, &ready).await.unwrap();
    }
    answer
}

/// Accepts `peers` peers, and returns how many of them were refused.
async fn serve(net: &Net, peers: usize) -> usize {
    let mut tasks = Vec::new();
    for _ in 0..peers {
        let incoming = net.listener.accept().await.unwrap();
        tasks.push(tokio::spawn(async move { incoming.accept(b"").await }));
    }
    let accepted = try_join_all(tasks).await.unwrap();
    accepted.iter().filter(|accepted| accepted.is_err()).count()
}

/// Checks that an honest peer can have all streams at once, and that bytes pass in both directions.
async fn all_places_are_free(net: &Net) {
    let pair = async || loop {
        let accept = async { net.listener.accept().await?.accept(b"").await };
        // The time limit of the exchange is short, and the machine may be slow.
        if let Ok(pair) = try_join(net.connector.connect(net.addr), accept).await {
            break pair;
        }
    };
    let mut pairs = Vec::new();
    for _ in 0..PLACES {
        pairs.push(in_time("a place", pair()).await);
    }
    for (here, there) in &mut pairs {
        crosses(here, there).await;
    }
}

#[test]
fn ghosts_take_no_streams() {
    if needs_soft("an adapter cannot see whether its peer is there") {
        return;
    }
    run(async {
        let net = victim().await;
        // The blobs claim either order of the instances.
        for instance in [0x00, 0xff] {
            let blob = forged(instance, |_| ());
            let ghosts = try_join_all((0..2 * PLACES).map(|_| {
                let (addr, blob) = (net.addr, blob.clone());
                tokio::spawn(async move { ghost(addr, &blob).await })
            }));
            let (refused, ghosts) = join(serve(&net, 2 * PLACES), ghosts).await;
            assert_eq!(refused, 2 * PLACES, "nobody has come");
            let welcome = |told: &&(u8, Vec<u8>)| told.0 == WELCOME;
            let welcome = ghosts.unwrap().iter().filter(welcome).count();
            assert!(welcome > 0, "those that there was a place for");
        }
        all_places_are_free(&net).await;
    });
}

/// Silent strangers that were welcomed keep all places until the time limit of the exchange, and no
/// longer, although they stay connected.
#[test]
fn places_that_silent_strangers_keep_are_free_in_time() {
    if needs_soft("an adapter cannot see whether its peer is there") {
        return;
    }
    run(async {
        let (net, blob) = (victim().await, forged(0xff, |_| ()));
        let mut strangers = Vec::new();
        let come = async {
            let begun = Instant::now();
            for _ in 0..PLACES {
                let mut socket = TcpStream::connect(net.addr).await.unwrap();
                say(&mut socket, &offer(HELLO, 8, &blob)).await.unwrap();
                assert_eq!(heard(&mut socket).await.0, WELCOME);
                strangers.push(socket);
            }
            let connected = net.connector.connect(net.addr).await;
            // On a loaded machine the first stranger may have lost its place by now.
            if begun.elapsed() < SHORT {
                rejected(connected, ErrorKind::Full);
            }
            begun
        };
        let (refused, begun) = join(serve(&net, PLACES + 1), come).await;
        assert!(refused >= PLACES, "{refused} were refused");
        all_places_are_free(&net).await;
        assert_quick("a free place", begun.elapsed(), 2 * SHORT);
        for socket in &mut strangers {
            let told = in_time("it is refused", heard(socket)).await;
            assert_eq!(told, (REFUSAL, b"cannot connect".to_vec()));
            let end = in_time("it is hung up on", socket.read(&mut [0])).await;
            assert_eq!(end.unwrap_or(0), 0);
        }
    });
}

/// Whatever socket a stranger names, the listener does not connect to it.
#[test]
fn a_listener_contacts_nobody() {
    if needs_soft("an adapter contacts nobody at all") {
        return;
    }
    run(async {
        let trap = Trap::new();
        let net = victim().await;
        for instance in [0x00, 0xff] {
            let blob = trap.blob(instance);
            let (refused, told) = join(serve(&net, 1), ghost(net.addr, &blob)).await;
            trap.is_untouched();
            assert_eq!((refused, told.0), (1, WELCOME));
        }
    });
}

/// A refusal reveals nothing of this host: no boot id, no namespace, no path.
#[test]
fn a_stranger_is_told_nothing_of_this_host() {
    if needs_soft("blobs of adapters say nothing of a host") {
        return;
    }
    run(async {
        let net = victim().await;
        let other_boot = forged(0, |endpoint| endpoint.place[0] ^= 1);
        for blob in [other_boot, b"no blob".to_vec(), Vec::new()] {
            let (refused, told) = join(serve(&net, 1), ghost(net.addr, &blob)).await;
            assert_eq!(refused, 1);
            let text = b"there is no RDMA between both sides, and one of them demands it";
            assert_eq!(told, (REFUSAL, text.to_vec()));
        }
        all_places_are_free(&net).await;
    });
}

/// A connector does not connect to a socket that a listener names falsely.
#[test]
fn a_connector_goes_to_the_process_of_the_listener_alone() {
    if needs_soft("an adapter contacts nobody at all") {
        return;
    }
    run(async {
        let trap = Trap::new();
        let device = Soft::builder().build().open("pf0").unwrap();
        let workq = WorkQ::builder().build().unwrap();
        let connector = small().connector(&device, &workq).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let answer = async |blob: Vec<u8>| {
            let (mut socket, _) = listener.accept().await.unwrap();
            assert_eq!(heard(&mut socket).await.0, HELLO);
            say(&mut socket, &offer(WELCOME, 8, &blob)).await.unwrap();
            heard(&mut socket).await
        };
        for instance in [0x00, 0xff] {
            let elsewhere = trap.blob(instance);
            let link = trap.linked_blob(instance);
            let abstract_name = forged(instance, |endpoint| endpoint.name = b"somebody".to_vec());
            for blob in [elsewhere, link, abstract_name] {
                let (connected, told) = join(connector.connect(addr), answer(blob)).await;
                trap.is_untouched();
                rejected(connected, ErrorKind::NotPermitted);
                assert_eq!(told, (REFUSAL, b"cannot connect".to_vec()));
            }
        }
    });
}
