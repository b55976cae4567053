//! Strangers who reach the address of a listener of streams, and listeners that are hostile: what
//! they say leads this process nowhere, and takes no stream from others.

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
/// How many streams a listener of these tests has.
const PLACES: usize = 4;
/// For an exchange that must fail: nothing comes of it.
const SHORT: Duration = Duration::from_millis(200);

/// The kind of the next message of the exchange, and the rest.
async fn heard(socket: &mut TcpStream) -> (u8, Vec<u8>) {
    let message = hear(socket).await;
    (message[5], message[6..].to_vec())
}

/// A listener with places for `PLACES` streams, whose exchanges soon run out of time.
async fn victim() -> Net {
    let device = Soft::builder().build().open("pf0").unwrap();
    let options = small().connections(PLACES).timeout(SHORT);
    Net::new(&device, Mode::EventDriven, options).await
}

/// A socket of the kind that the fabric connects to, where nobody has any business.
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

    /// A forged blob that names the socket.
    pub(super) fn blob(&self, instance: u8) -> Vec<u8> {
        leads_to(instance, &self.folder.path("socket"))
    }

    /// A forged blob that names a socket as its process would, by a link to this one.
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

/// Blobs of endpoints that nobody has, made up in each way that matters.
pub(super) fn forged(instance: u8, change: impl FnOnce(&mut Endpoint)) -> Vec<u8> {
    let mut endpoint = Endpoint::hostile(false, 1);
    endpoint.instance = [instance; 16];
    change(&mut endpoint);
    endpoint.format()
}

/// Says hello with this blob, and that it is connected if it is welcome. Returns what it was told.
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

/// Accepts whoever comes, and keeps their streams; counts those that were refused.
async fn serve(net: &Net, peers: usize) -> usize {
    let mut tasks = Vec::new();
    for _ in 0..peers {
        let incoming = net.listener.accept().await.unwrap();
        tasks.push(tokio::spawn(async move { incoming.accept(b"").await }));
    }
    let accepted = try_join_all(tasks).await.unwrap();
    accepted.iter().filter(|accepted| accepted.is_err()).count()
}

/// An honest peer has all places at once, and its bytes go there and back.
async fn all_places_are_free(net: &Net) {
    let pair = async || loop {
        let accept = async { net.listener.accept().await?.accept(b"").await };
        // The time limit of the exchange is short, and this machine may be slow.
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
        // With either order of the instances, which is made up as well.
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

/// Strangers that are welcome and say nothing more keep all places for the time limit of the
/// exchange, and then no longer, although they stay.
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
            // On a loaded machine the first one may have lost its place by now.
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

/// Whatever socket a stranger names, the listener connects to none.
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

/// A refusal has nothing of this host: no boot id, no namespace, no path.
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

/// Nor does a connector go where a listener sends it.
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
