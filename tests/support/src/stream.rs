//! What the tests of streams share: connected pairs, and bytes that depend on their position.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_doca::stream::{RdmaConnector, RdmaListener, RdmaStream, StreamOptions};
use tokio_doca::{Device, Error, ErrorKind, Mode, WorkQ};

use super::device::{defers, under_test};
use super::loopback::Loopback;
use super::{LIMIT, in_time, run};

/// A listener on the loopback address and a connector to it.
pub struct Net {
    pub listener: RdmaListener,
    pub connector: RdmaConnector,
    pub addr: SocketAddr,
}

impl Net {
    pub async fn new(device: &Device, mode: Mode, options: StreamOptions) -> Net {
        Net::deep(64, device, mode, options).await
    }

    /// Makes a listener and a connector on WorkQs of this depth.
    pub async fn deep(depth: u32, device: &Device, mode: Mode, options: StreamOptions) -> Net {
        Net::between([device, device], depth, mode, options).await
    }

    /// Makes a listener and a connector, with a device for the connector and one for the listener.
    pub async fn between(
        [here, there]: [&Device; 2],
        depth: u32,
        mode: Mode,
        options: StreamOptions,
    ) -> Net {
        let workq = || WorkQ::builder().depth(depth).mode(mode).build().unwrap();
        let local: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let listener = options.bind(there, &workq(), local).await.unwrap();
        Net {
            connector: options.connector(here, &workq()).unwrap(),
            addr: listener.tcp_addr().unwrap(),
            listener,
        }
    }

    /// Connects. Returns the stream of the connector, and that of the listener.
    pub async fn pair(&self) -> (RdmaStream, RdmaStream) {
        self.try_pair().await.unwrap()
    }

    async fn try_pair(&self) -> Result<(RdmaStream, RdmaStream), Error> {
        let accept = async { self.listener.accept().await?.accept(b"").await };
        let both = futures::future::try_join(self.connector.connect(self.addr), accept);
        in_time("the connection", both).await
    }

    /// As [`Net::pair`], but waits for memory: on an adapter, or after a kill, the memory of an
    /// ended stream is freed a while later.
    pub async fn pair_once_there_is_memory(&self) -> (RdmaStream, RdmaStream) {
        let wait = async {
            // The listener may still accept the attempt before this one. Its connector had no
            // memory, so that it was aborted.
            let mut heard = ErrorKind::Full;
            loop {
                match self.try_pair().await {
                    Err(error) if [ErrorKind::Full, heard].contains(&error.kind()) => {
                        heard = ErrorKind::ConnectionAborted;
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                    pair => break pair.unwrap(),
                }
            }
        };
        in_time("memory", wait).await
    }
}

/// Returns options with small limits, which tests reach soon. The time limit is long, since a peer
/// may have no CPU for a while.
pub fn small() -> StreamOptions {
    StreamOptions::new()
        .timeout(LIMIT)
        .connections(4)
        .frame_size(256)
        .recv_window(3)
        .send_window(2)
}

/// Runs the test function `story` on the device under test, event-driven and busy-poll. A software
/// device is tested inline and deferred.
pub fn each_of_soft(options: StreamOptions, story: impl AsyncFn(&Net)) {
    let devices: Vec<_> = defers().iter().map(|&defer| under_test(defer)).collect();
    each_on(&devices, 64, options, &story);
}

/// Runs the test function `story` on each device, event-driven and busy-poll, and over TCP. Where
/// the device can, runs it also with two buffers that all streams share.
pub fn each(options: StreamOptions, story: impl AsyncFn(&Net)) {
    each_deep(64, options, story);
}

/// As [`each`], with WorkQs of this depth.
pub fn each_deep(depth: u32, options: StreamOptions, story: impl AsyncFn(&Net)) {
    each_sharing(2, depth, options, story);
}

/// As [`each_deep`], with this number of shared buffers.
pub fn each_sharing(bufs: usize, depth: u32, options: StreamOptions, story: impl AsyncFn(&Net)) {
    each_by_rdma(bufs, depth, options, &story);
    over_tcp(depth, options, &story);
    over_tcp(depth, options.recv_bufs(bufs), &story);
}

/// As [`each_sharing`], but without the runs over TCP.
pub fn each_by_rdma(bufs: usize, depth: u32, options: StreamOptions, story: impl AsyncFn(&Net)) {
    let of_soft = || defers().iter().map(|&defer| under_test(defer));
    let devices: Vec<_> = of_soft().chain([Loopback::device(false).1]).collect();
    each_on(&devices, depth, options, &story);
    let devices: Vec<_> = devices.into_iter().filter(shares).collect();
    each_on(&devices, depth, options.recv_bufs(bufs), &story);
}

/// Runs the test function `story` with a connector whose device has no RDMA, so that streams go
/// over TCP.
fn over_tcp(depth: u32, options: StreamOptions, story: &impl AsyncFn(&Net)) {
    let (here, there) = (Loopback::without_rdma(), under_test(false));
    eprintln!("over TCP: {options:?}");
    let (devices, options) = ([&here, &there], options.or_tcp(true));
    run(async { story(&Net::between(devices, depth, Mode::EventDriven, options).await).await });
}

/// Returns true if streams on this device can share their receive buffers.
pub fn shares(device: &Device) -> bool {
    let caps = device.info().caps().rdma.as_ref();
    caps.is_some_and(|caps| caps.max_pooled_len > 0)
}

fn each_on(devices: &[Device], depth: u32, options: StreamOptions, story: &impl AsyncFn(&Net)) {
    for mode in [Mode::EventDriven, Mode::BusyPoll] {
        for device in devices {
            eprintln!("{mode:?} on {}: {options:?}", device.info().name());
            run(async { story(&Net::deep(depth, device, mode, options).await).await });
        }
    }
}

/// Returns a hello (0) or a welcome (1) of the exchange, as docs/wire.md defines it: an offer
/// without data.
pub fn offer(kind: u8, credits: u8, blob: &[u8]) -> Vec<u8> {
    let mut offer = [&b"TDST\x02"[..], &[kind]].concat();
    offer.extend(1024_u32.to_be_bytes());
    // The credits, and the flags, which are zero.
    offer.extend([0, credits, 0, 0]);
    offer.extend((blob.len() as u16).to_be_bytes());
    offer.extend(blob);
    offer
}

/// Sends a message of the exchange that sets a stream up.
pub async fn say(socket: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    socket.write_u32(message.len() as u32).await?;
    socket.write_all(message).await
}

/// Receives a message of the exchange that sets a stream up.
pub async fn hear(socket: &mut TcpStream) -> Vec<u8> {
    let len = socket.read_u32().await.unwrap();
    let mut message = vec![0; len as usize];
    socket.read_exact(&mut message).await.unwrap();
    message
}

/// Checks that a thousand bytes go from one end to the other.
pub async fn crosses(from: &mut RdmaStream, to: &mut RdmaStream) {
    let sent = bytes(0..1000);
    let mut came = vec![0; 1000];
    let both = futures::future::join(from.write_all(&sent), to.read_exact(&mut came));
    let (wrote, read) = in_time("a thousand bytes", both).await;
    wrote.and(read.map(drop)).unwrap();
    assert_eq!(came, sent);
}

/// Returns the byte at this position of a test stream.
pub fn byte(at: usize) -> u8 {
    ((at * 31) ^ (at >> 8)) as u8
}

/// Returns the bytes at a range of positions of a test stream.
pub fn bytes(range: std::ops::Range<usize>) -> Vec<u8> {
    range.map(byte).collect()
}
