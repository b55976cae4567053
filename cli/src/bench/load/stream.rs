//! Round trips of bytes over a stream: over RDMA, and the baselines over TCP and Unix sockets. Each
//! lane has a connection of its own. The other side is a thread with a WorkQ of its own, or in
//! another process.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::mpsc::{Sender, channel as link};
use std::thread;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::timeout;
use tokio_doca::WorkQ;
use tokio_doca::stream::{RdmaStream, StreamOptions};

use super::worker::runtime;
use super::{Failed, LIMIT, Lanes, Meet, Plan, Result};

/// The memory of both sides of a stream in bytes, with its share of a connection on the software
/// device.
pub(super) const MEMORY: u64 = 3 << 20;

const LOCAL: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 0);

pub(super) struct Lane<S> {
    stream: S,
    bytes: Vec<u8>,
    /// For TCP to another process: the stream on which the lane was agreed. Dropping it ends the
    /// other side.
    _far: Option<RdmaStream>,
}

impl<S: AsyncRead + AsyncWrite + Unpin + 'static> super::Lane for Lane<S> {
    async fn once(&mut self) -> Result {
        self.stream.write_all(&self.bytes).await?;
        self.stream.flush().await?;
        self.stream.read_exact(&mut self.bytes).await?;
        Ok(())
    }
}

/// Returns the depth of a WorkQ for `depth` streams.
fn jobs(depth: usize) -> usize {
    8 * depth + 64
}

fn options(plan: &Plan) -> StreamOptions {
    StreamOptions::new()
        .connections(plan.depth)
        .half_open(plan.depth.max(1))
}

pub(super) async fn rdma(plan: &Plan) -> Result<Lanes<Lane<RdmaStream>>> {
    if let Some(peer) = &plan.peer {
        let workq = plan.workq(jobs(plan.depth))?;
        let connector = options(plan).connector(&plan.device, &workq)?;
        let mut streams = Vec::new();
        for _ in 0..plan.depth {
            streams.push(peer.meet(&connector, plan).await?.stream);
        }
        return Ok(lanes(streams, plan.size, None));
    }
    let (plan_there, size, depth) = (plan.clone(), plan.size, plan.depth);
    let (ready, heard) = link();
    let other = spawn(ready, async move |ready| {
        let workq = plan_there.workq(jobs(depth))?;
        let options = options(&plan_there);
        let addr = SocketAddr::from(LOCAL);
        let listener = options.bind(&plan_there.device, &workq, addr).await?;
        let _ = ready.send(Ok(listener.tcp_addr()));
        let mut streams = JoinSet::new();
        for _ in 0..depth {
            let stream = listener.accept().await?.accept(b"").await?;
            streams.spawn_local(echo(stream, size));
        }
        streams.join_all().await;
        Ok(())
    })?;
    let addr = listens(&heard)?.ok_or_else(early)?;
    let workq = plan.workq(jobs(depth))?;
    let connector = options(plan).connector(&plan.device, &workq)?;
    let mut streams = Vec::new();
    for _ in 0..depth {
        streams.push(connector.connect(addr).await?);
    }
    Ok(lanes(streams, size, Some(other)))
}

pub(super) async fn tcp(plan: &Plan) -> Result<Lanes<Lane<TcpStream>>> {
    if let Some(peer) = &plan.peer {
        return tcp_to(&**peer, plan).await;
    }
    let (size, depth) = (plan.size, plan.depth);
    let (ready, heard) = link();
    let other = spawn(ready, async move |ready| {
        let listener = TcpListener::bind(LOCAL).await?;
        let _ = ready.send(Ok(Some(listener.local_addr()?)));
        let mut streams = JoinSet::new();
        for _ in 0..depth {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            streams.spawn_local(echo(stream, size));
        }
        streams.join_all().await;
        Ok(())
    })?;
    let addr = listens(&heard)?.ok_or_else(early)?;
    let mut streams = Vec::new();
    for _ in 0..depth {
        let stream = TcpStream::connect(addr).await?;
        stream.set_nodelay(true)?;
        streams.push(stream);
    }
    Ok(lanes(streams, size, Some(other)))
}

/// Connects by TCP to the other side in another process, which accepts at a port of its own.
async fn tcp_to(peer: &dyn Meet, plan: &Plan) -> Result<Lanes<Lane<TcpStream>>> {
    let workq = WorkQ::builder().build()?;
    let connector = options(plan).connector(&plan.device, &workq)?;
    let mut lanes = Vec::new();
    for _ in 0..plan.depth {
        let far = peer.meet(&connector, plan).await?;
        let (addr, begin) = far.tcp.ok_or_else(early)?;
        let connected = timeout(LIMIT, TcpStream::connect(addr)).await;
        let connected = connected.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()));
        let mut stream = connected.map_err(|error| {
            let why = error.kind();
            Failed::Said(format!(
                "its TCP port {addr} cannot be reached ({why}): let it through a firewall between \
                 the hosts, or leave --vs out"
            ))
        })?;
        stream.set_nodelay(true)?;
        stream.write_all(&begin).await?;
        lanes.push(Lane {
            stream,
            bytes: vec![7; plan.size],
            _far: Some(far.stream),
        });
    }
    Ok(Lanes::by_runtime(lanes))
}

pub(super) async fn unix(plan: &Plan) -> Result<Lanes<Lane<UnixStream>>> {
    let (size, depth) = (plan.size, plan.depth);
    let (mut streams, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..depth {
        let (here, there) = StdUnixStream::pair()?;
        here.set_nonblocking(true)?;
        there.set_nonblocking(true)?;
        streams.push(UnixStream::from_std(here)?);
        theirs.push(there);
    }
    let (ready, heard) = link();
    let other = spawn(ready, async move |ready| {
        let mut streams = JoinSet::new();
        for stream in theirs {
            streams.spawn_local(echo(UnixStream::from_std(stream)?, size));
        }
        let _ = ready.send(Ok(None));
        streams.join_all().await;
        Ok(())
    })?;
    listens(&heard)?;
    Ok(lanes(streams, size, Some(other)))
}

fn lanes<S>(streams: Vec<S>, size: usize, other: Option<thread::JoinHandle<()>>) -> Lanes<Lane<S>> {
    let lane = |stream| Lane {
        stream,
        bytes: vec![7; size],
        _far: None,
    };
    Lanes {
        other,
        ..Lanes::by_runtime(streams.into_iter().map(lane).collect())
    }
}

/// Echoes what arrives, in pieces of `size` bytes, until the other side has ended.
pub(in crate::bench) async fn echo(mut stream: impl AsyncRead + AsyncWrite + Unpin, size: usize) {
    let mut bytes = vec![0; size];
    while stream.read_exact(&mut bytes).await.is_ok() {
        let written = stream.write_all(&bytes).await;
        if written.is_err() || stream.flush().await.is_err() {
            return;
        }
    }
}

/// The address at which the other side listens; `None` if it has no address.
type Ready = Result<Option<SocketAddr>>;

/// Runs the other side, `serve`, on a thread with a runtime. An error is sent to `ready`.
fn spawn(
    ready: Sender<Ready>,
    serve: impl AsyncFnOnce(&Sender<Ready>) -> Result + Send + 'static,
) -> Result<thread::JoinHandle<()>> {
    let thread = thread::Builder::new().name("bench-answers".to_owned());
    let run = move || {
        let served = runtime().and_then(|runtime| {
            let tasks = LocalSet::new();
            runtime.block_on(tasks.run_until(serve(&ready)))
        });
        if let Err(failed) = served {
            let _ = ready.send(Err(failed));
        }
    };
    Ok(thread.spawn(run)?)
}

fn listens(heard: &std::sync::mpsc::Receiver<Ready>) -> Ready {
    heard.recv().unwrap_or_else(|_| Err(early()))
}

fn early() -> Failed {
    Failed::Said("the other side ended early".to_owned())
}
