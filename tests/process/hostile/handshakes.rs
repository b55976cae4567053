//! Strangers at a server that calls `Rdma::handshake_accept`: they take no client's place, and
//! cannot make the server connect elsewhere.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use support::device::needs_soft;
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_doca::rdma::RdmaState;
use tokio_doca::soft::Soft;
use tokio_doca::{Device, ErrorKind, Rdma, WorkQ};

use super::streams::{Trap, forged};

/// The number of clients that the test server accepts at once.
const PLACES: usize = 4;
/// How often the honest client comes.
const VISITS: usize = 20;
/// The flag for acceptance, in the length that a side sends before its blob.
const ACCEPTS: u32 = 1 << 31;

/// Pretends to be the endpoint of `blob` and to be connected, but never connects. Returns the
/// server's last byte. `first` is sent before, as the service expects.
pub(crate) fn ghost(addr: SocketAddr, first: &[u8], blob: &[u8]) -> io::Result<u8> {
    let mut socket = TcpStream::connect(addr)?;
    let len = (blob.len() as u32).to_be_bytes();
    socket.write_all(&[first, &len, blob, &[1]].concat())?;
    let mut len = [0; 4];
    socket.read_exact(&mut len)?;
    let len = u32::from_be_bytes(len);
    assert_eq!(len & ACCEPTS, ACCEPTS, "a server accepts");
    let mut rest = vec![0; (len & !ACCEPTS) as usize + 1];
    socket.read_exact(&mut rest)?;
    Ok(rest.pop().expect("a byte"))
}

/// Returns blobs of endpoints that do not exist, with either order of the instances.
pub(crate) fn nobodies() -> [Vec<u8>; 2] {
    [0x00, 0xff].map(|instance| forged(instance, |_| ()))
}

struct Server {
    device: Device,
    workq: WorkQ,
    listener: TcpListener,
}

impl Server {
    async fn new() -> (Arc<Server>, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let device = Soft::builder().build().open("pf0").unwrap();
        let workq = WorkQ::builder().build().unwrap();
        let server = Server {
            device,
            workq,
            listener,
        };
        (Arc::new(server), addr)
    }

    /// Accepts clients, each of which keeps its place until it leaves.
    async fn serve(self: Arc<Server>) {
        let places = Arc::new(Semaphore::new(PLACES));
        let mut clients = JoinSet::new();
        loop {
            let place = Arc::clone(&places).acquire_owned().await.unwrap();
            let (mut stream, _) = self.listener.accept().await.unwrap();
            let rdma = Rdma::builder(&self.device).attach(&self.workq).unwrap();
            clients.spawn(async move {
                match rdma.handshake_accept(&mut stream).await {
                    Ok(()) => drop(rdma.recv(()).await.unwrap_err()),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}"),
                }
                drop(place);
            });
            while let Some(ended) = clients.try_join_next() {
                ended.expect("a client was refused as it should be");
            }
        }
    }
}

/// Returns the duration of an honest client's longest visit.
async fn visits(addr: SocketAddr, device: &Device) -> Duration {
    let workq = WorkQ::builder().build().unwrap();
    let mut longest = Duration::ZERO;
    for _ in 0..VISITS {
        let begun = Instant::now();
        let visit = async {
            let mut stream = tokio::net::TcpStream::connect(addr).await.unwrap();
            let rdma = Rdma::builder(device).attach(&workq).unwrap();
            rdma.handshake_connect(&mut stream).await.unwrap();
        };
        in_time("a visit", visit).await;
        longest = longest.max(begun.elapsed());
    }
    longest
}

#[test]
fn ghosts_take_no_place_of_a_client() {
    if needs_soft("an adapter cannot see whether its peer is there") {
        return;
    }
    run(async {
        let (server, addr) = Server::new().await;
        let device = server.device.clone();
        let serving = tokio::spawn(server.serve());
        let alone = visits(addr, &device).await;
        let ghosts = std::thread::spawn(move || {
            for blob in nobodies().iter().cycle().take(16 * PLACES) {
                assert_eq!(ghost(addr, b"", blob).unwrap(), 0, "it has not come");
            }
        });
        let beside = visits(addr, &device).await;
        until("all ghosts were told", || ghosts.is_finished()).await;
        ghosts.join().unwrap();
        visits(addr, &device).await;
        // A ghost with a place would keep it for ever.
        println!("the longest visit: {alone:?} without ghosts, {beside:?} beside them");
        assert_quick(
            "a visit beside ghosts",
            beside,
            20 * alone.max(Duration::from_millis(100)),
        );
        assert!(!serving.is_finished(), "the server serves");
        serving.abort();
    });
}

/// Neither an accepting server nor its client connects to a socket that the peer's blob names
/// falsely.
#[test]
fn neither_side_of_a_handshake_goes_where_a_stranger_says() {
    if needs_soft("an adapter contacts nobody at all") {
        return;
    }
    run(async {
        let trap = Trap::new();
        let device = Soft::builder().build().open("pf0").unwrap();
        let workq = WorkQ::builder().build().unwrap();
        for instance in [0x00, 0xff] {
            let elsewhere = trap.blob(instance);
            let link = trap.linked_blob(instance);
            use ErrorKind::{ConnectionAborted, NotPermitted};
            let ways = [
                ("accepts", 0, ConnectionAborted),
                ("connects", ACCEPTS, NotPermitted),
                ("connects", 0, ConnectionAborted),
                ("shakes", ACCEPTS, NotPermitted),
            ];
            let both = ways
                .iter()
                .flat_map(|way| [(way, &elsewhere), (way, &link)]);
            for (&(way, flag, kind), blob) in both {
                let (mut here, mut stranger) = tokio::io::duplex(4096);
                let rdma = Rdma::builder(&device).attach(&workq).unwrap();
                let len = (blob.len() as u32 | flag).to_be_bytes();
                let words = [&len[..], blob, &[1]].concat();
                stranger.write_all(&words).await.unwrap();
                let shaken = match way {
                    "accepts" => rdma.handshake_accept(&mut here).await,
                    "connects" => rdma.handshake_connect(&mut here).await,
                    _ => rdma.handshake(&mut here).await,
                };
                trap.is_untouched();
                rejected(shaken, kind);
            }
        }
    });
}

/// A blob reveals much about its host: the boot id, the network namespace, and the address of its
/// process.
#[test]
fn who_accepts_gives_no_blob_to_a_client_without_one() {
    if needs_soft("an adapter's blob has addresses alone") {
        return;
    }
    run(async {
        let device = Soft::builder().build().open("pf0").unwrap();
        let workq = WorkQ::builder().build().unwrap();
        let other_boot = forged(0, |endpoint| endpoint.place[0] ^= 1);
        for (blob, kind) in [
            (&other_boot[..], ErrorKind::NotSupported),
            (b"no blob", ErrorKind::InvalidValue),
        ] {
            let (mut here, mut stranger) = tokio::io::duplex(4096);
            let rdma = Rdma::builder(&device).attach(&workq).unwrap();
            {
                let mut accept = pin!(rdma.handshake_accept(&mut here));
                assert!(accept.as_mut().now_or_never().is_none());
                let len = stranger.read_u32().await.unwrap();
                assert_eq!(len & ACCEPTS, ACCEPTS);
                let nothing = stranger.read_u8().now_or_never();
                assert!(nothing.is_none(), "to silence: {nothing:?}");
                stranger.write_u32(blob.len() as u32).await.unwrap();
                stranger.write_all(blob).await.unwrap();
                rejected(in_time("a refusal", accept).await, kind);
            }
            drop(here);
            let mut said = Vec::new();
            stranger.read_to_end(&mut said).await.unwrap();
            assert_eq!(said, [0], "it is not connected");
            assert_eq!(rdma.state(), RdmaState::Init);
        }
        // A client that is refused in this way gets an error that tells the cause.
        let (mut here, mut server) = tokio::io::duplex(4096);
        server.write_u32(ACCEPTS | 100).await.unwrap();
        drop(server);
        let rdma = Rdma::builder(&device).attach(&workq).unwrap();
        let shaken = in_time("a refusal", rdma.handshake_connect(&mut here)).await;
        let text = rejected(shaken, ErrorKind::ConnectionAborted);
        assert!(text.contains("refuses this side's blob"), "{text}");
    });
}
