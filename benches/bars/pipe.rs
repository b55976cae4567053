//! The two sides of a connection: an RDMA stream of the crate, a TCP stream or a Unix stream, read
//! and written by the same code.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::runtime::{Builder, Runtime};
use tokio_doca::soft::Soft;
use tokio_doca::stream::{RdmaConnector, RdmaListener, StreamOptions};
use tokio_doca::{Device, Mode, WorkQ};

/// The transport of the bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    Tcp,
    Unix,
    Rdma(Mode),
}

pub(crate) const EVENT: Over = Over::Rdma(Mode::EventDriven);
pub(crate) const BUSY: Over = Over::Rdma(Mode::BusyPoll);

pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

pub(crate) type Pipe = Box<dyn Duplex>;

const LOCAL: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 0);

pub(crate) fn runtime() -> Runtime {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime")
}

/// Opens a device and a WorkQ for one side.
fn side(mode: Mode) -> (Device, WorkQ) {
    let device = Soft::builder().build().open("pf0").expect("a device");
    let workq = WorkQ::builder().mode(mode).build();
    (device, workq.expect("a WorkQ"))
}

fn tcp(stream: TcpStream) -> Pipe {
    stream.set_nodelay(true).expect("TCP_NODELAY");
    Box::new(stream)
}

/// The listening side.
pub(crate) enum Listening {
    Tcp(TcpListener),
    /// The path of the socket is removed when the listener is dropped.
    Unix(UnixListener, PathBuf),
    Rdma(Box<RdmaListener>),
}

impl Listening {
    pub(crate) async fn new(over: Over, connections: usize) -> Listening {
        match over {
            Over::Tcp => Listening::Tcp(TcpListener::bind(LOCAL).await.expect("a port")),
            Over::Unix => {
                static NUMBER: AtomicU32 = AtomicU32::new(0);
                let (process, number) =
                    (std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
                let name = format!("tokio-doca-bars-{process}-{number}");
                let path = std::env::temp_dir().join(name);
                Listening::Unix(UnixListener::bind(&path).expect("a path"), path)
            }
            Over::Rdma(mode) => {
                let (device, workq) = side(mode);
                let options = StreamOptions::new().connections(connections);
                let listener = options.bind(&device, &workq, SocketAddr::from(LOCAL)).await;
                Listening::Rdma(Box::new(listener.expect("a listener")))
            }
        }
    }

    /// Returns the address to which the other side connects.
    pub(crate) fn addr(&self) -> String {
        let tcp = |addr: SocketAddr| addr.to_string();
        match self {
            Listening::Tcp(listener) => tcp(listener.local_addr().expect("an address")),
            Listening::Unix(_, path) => path.display().to_string(),
            Listening::Rdma(listener) => tcp(listener.tcp_addr().expect("an address")),
        }
    }

    pub(crate) async fn accept(&self) -> Pipe {
        match self {
            Listening::Tcp(listener) => tcp(listener.accept().await.expect("a peer").0),
            Listening::Unix(listener, _) => Box::new(listener.accept().await.expect("a peer").0),
            Listening::Rdma(listener) => {
                let incoming = listener.accept().await.expect("a peer");
                Box::new(incoming.accept(b"").await.expect("a stream"))
            }
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Listening::Unix(_, path) = self {
            let _ = fs::remove_file(path);
        }
    }
}

/// The connecting side.
pub(crate) enum Calling {
    Tcp(SocketAddr),
    Unix(PathBuf),
    Rdma(RdmaConnector, SocketAddr),
}

impl Calling {
    pub(crate) fn new(over: Over, connections: usize, addr: &str) -> Calling {
        let tcp = || addr.parse().expect("an address");
        match over {
            Over::Tcp => Calling::Tcp(tcp()),
            Over::Unix => Calling::Unix(addr.into()),
            Over::Rdma(mode) => {
                let (device, workq) = side(mode);
                let options = StreamOptions::new().connections(connections);
                let connector = options.connector(&device, &workq);
                Calling::Rdma(connector.expect("a connector"), tcp())
            }
        }
    }

    pub(crate) async fn connect(&self) -> Pipe {
        match self {
            Calling::Tcp(addr) => tcp(TcpStream::connect(addr).await.expect("a stream")),
            Calling::Unix(path) => Box::new(UnixStream::connect(path).await.expect("a stream")),
            Calling::Rdma(connector, addr) => {
                Box::new(connector.connect(*addr).await.expect("a stream"))
            }
        }
    }
}
