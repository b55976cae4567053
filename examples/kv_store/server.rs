//! The server: it meets clients over TCP, exports the memory to them, and executes their requests.
//! Clients read the memory without the server's help.
//!
//! The server does not trust clients. What a client sends is bounded, it cannot write the memory,
//! and a client that takes no answers blocks only itself. A client takes one of 64 places once it
//! has connected over RDMA, or has sent a whole request over TCP, where it loses the place after a
//! minute of silence. But the server never ends a silent RDMA connection, since its client may read
//! the memory: 64 such clients keep all others out.

use std::collections::HashMap;
use std::fmt::Display;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::{FutureExt, SinkExt, TryStreamExt};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};
use tokio_doca::mem::Access;
use tokio_doca::rdma::RecvPool;
use tokio_doca::{Buf, BufPool, Device, Mmap, Rdma, WorkQ};
use tokio_util::codec::{Framed, LengthDelimitedCodec};
use zerocopy::IntoBytes;

use super::Result;
use super::arrivals::{Arrival, Arrivals};
use super::memory::Memory;
use super::store::Store;
use super::wire::*;

/// The maximum number of clients. Others wait until one leaves, or their time limit has passed.
const CLIENTS: usize = 64;
/// The time in which a client must connect over RDMA or send its first request over TCP.
const MEETING: Duration = Duration::from_secs(5);
/// How long a client that has a place may keep the server waiting over TCP.
const IDLE: Duration = Duration::from_secs(60);
/// The number of messages that a client may send before the server has received the first.
const MESSAGES: usize = 4;
/// The maximum size of an answer by message, in bytes. Longer texts are cut off.
const ANSWER_ROOM: usize = 256;
/// The number of clients whose latest write is remembered.
const REMEMBERED: usize = 1 << 16;
/// Pause after the server could not accept a client.
const PAUSE: Duration = Duration::from_millis(100);

type Frames = Framed<TcpStream, LengthDelimitedCodec>;

/// A client that has been admitted.
enum Client {
    ByRdma(Rdma),
    /// A TCP client, with its first request.
    ByTcp(Box<Frames>, BytesMut),
}

struct Server {
    device: Device,
    workq: WorkQ,
    store: Mutex<Store>,
    /// The number of each client's latest write, by the number of the client.
    latest: std::sync::Mutex<HashMap<u32, u64>>,
    /// Buffers for requests. All clients share one pool if the device can receive from a pool.
    requests: RecvPool,
    shared: bool,
    answers: BufPool,
    /// The export of the memory, and the number of this start of the server. A client may take a
    /// key as absent only while `boot` is the number of the latest start.
    blob: Vec<u8>,
    boot: u64,
}

/// Serves the memory that is this process's standard input.
pub(crate) async fn serve(address: &str, device: &Device) -> Result<()> {
    let memfd = io::stdin().as_fd().try_clone_to_owned()?;
    let workq = WorkQ::builder().build()?;
    let store = Store::open(Memory::open(memfd, device, &workq)?).await?;
    let pool = |bytes: usize, bufs: usize| {
        let mmap = Mmap::builder().device(device).alloc(bytes * bufs)?;
        BufPool::builder(&mmap).element_size(bytes).build()
    };
    let shared = device
        .info()
        .caps()
        .rdma
        .as_ref()
        .map_or(0, |caps| caps.max_pooled_len);
    let requests = pool(room(MAX_REQUEST), MESSAGES * CLIENTS)?;
    let server = Arc::new(Server {
        blob: store.memory().mmap().export_rdma(device)?,
        boot: store.memory().load(BOOT)?,
        device: device.clone(),
        workq,
        store: Mutex::new(store),
        latest: std::sync::Mutex::default(),
        requests: RecvPool::new(&requests).credits(MESSAGES as u32),
        shared: shared >= requests.element_size(),
        // Each client may leave `MESSAGES` answers unreceived, while the next one waits to be sent.
        answers: pool(ANSWER_ROOM, (MESSAGES + 1) * CLIENTS)?,
    });
    let listener = TcpListener::bind(address).await?;
    let (at, pid) = (listener.local_addr()?, std::process::id());
    let _ = writeln!(io::stdout(), "Listening on {at} as process {pid}");
    let mut arrivals = Arrivals::new(CLIENTS, MEETING);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                _ = tokio::spawn(Arc::clone(&server).client(stream, arrivals.next().await));
            }
            Err(error) => {
                complain(&error);
                arrivals.oldest_leaves().await;
                sleep(PAUSE).await;
            }
        }
    }
}

fn complain(error: &dyn Display) {
    let _ = writeln!(io::stderr(), "kv_store: a client: {error}");
}

impl Server {
    async fn client(self: Arc<Self>, stream: TcpStream, arrival: Arrival) {
        if let Err(error) = self.serve(stream, arrival).await {
            complain(&error);
        }
    }

    async fn serve(&self, stream: TcpStream, arrival: Arrival) -> Result<()> {
        let (client, _place) = arrival.place(self.meet(stream)).await?;
        match client {
            Client::ByRdma(rdma) => self.messages(&rdma).await,
            Client::ByTcp(frames, first) => self.frames(*frames, first).await,
        }
    }

    async fn meet(&self, mut stream: TcpStream) -> Result<Client> {
        stream.set_nodelay(true)?;
        match stream.read_u8().await? {
            BY_TCP => {
                let mut codec = LengthDelimitedCodec::new();
                codec.set_max_frame_length(MAX_REQUEST);
                let mut frames = Framed::with_capacity(stream, codec, 2 * MAX_REQUEST);
                frames.set_backpressure_boundary(4 * MAX_REQUEST);
                let first = frames.try_next().await?;
                let first = first.ok_or("it asks for nothing")?;
                Ok(Client::ByTcp(Box::new(frames), first))
            }
            BY_RDMA => Ok(Client::ByRdma(self.connect(&mut stream).await?)),
            other => Err(format!("it speaks something else: {other:#x}").into()),
        }
    }

    async fn connect(&self, stream: &mut TcpStream) -> Result<Rdma> {
        let builder = Rdma::builder(&self.device).permissions(Access::RDMA_READ);
        let builder = match self.shared {
            true => builder.recv_pool(&self.requests),
            false => builder.recv_queue_size(MESSAGES as u32),
        };
        let rdma = builder.attach(&self.workq)?;
        rdma.handshake_accept(stream).await?;
        stream.write_u32_le(self.blob.len() as u32).await?;
        stream.write_all(&self.blob).await?;
        stream.write_u64_le(self.boot).await?;
        Ok(rdma)
    }

    /// Answers messages until the client leaves. The answers to messages that arrived together are
    /// sent together.
    async fn messages(&self, rdma: &Rdma) -> Result<()> {
        let mut requests = match self.shared {
            true => rdma.messages(),
            false => rdma.recv_stream(self.requests.bufs(), MESSAGES),
        };
        let mut answers = rdma.send_sink(MESSAGES);
        loop {
            let mut next = requests.try_next().await;
            loop {
                let request = match next {
                    Ok(Some(request)) => request.buf.ok_or("an empty message")?,
                    Err(error) if !error.is_disconnect() => return Err(error.into()),
                    Ok(None) | Err(_) => return Ok(()),
                };
                let mut answer = self.answer(&request).await?;
                drop(request);
                answer.truncate(ANSWER_ROOM);
                let buf = self.answers.alloc().await;
                buf.extend_from_slice(&answer)?;
                answers.feed(buf).await?;
                match requests.try_next().now_or_never() {
                    Some(more) => next = more,
                    None => break,
                }
            }
            answers.flush().await?;
        }
    }

    /// Answers requests over TCP until the client leaves. These clients get values from the server.
    async fn frames(&self, mut frames: Frames, first: BytesMut) -> Result<()> {
        let mut next = Some(first);
        loop {
            while let Some(frame) = next {
                let answer = match Ask::decode(&frame) {
                    Some((ask, Verb::Get, key)) => self.get(ask, key).await?,
                    _ => {
                        let buf = self.requests.bufs().alloc().await;
                        buf.extend_from_slice(&frame)?;
                        self.answer(&buf).await?
                    }
                };
                timeout(IDLE, frames.feed(Bytes::from(answer))).await??;
                next = frames.try_next().now_or_never().transpose()?.flatten();
            }
            timeout(IDLE, SinkExt::<Bytes>::flush(&mut frames)).await??;
            next = timeout(IDLE, frames.try_next()).await??;
            if next.is_none() {
                return Ok(());
            }
        }
    }

    async fn get(&self, ask: Ask, key: &[u8]) -> Result<Vec<u8>> {
        let mut answer = vec![0; REPLY];
        let found = self.store.lock().await.get(key, &mut answer)?;
        let status = found.map_or(ABSENT, |_| DONE);
        let reply = Reply::new(status, ask.id, found.unwrap_or(0));
        answer[..REPLY].copy_from_slice(reply.as_bytes());
        Ok(answer)
    }

    /// Executes a request, and returns its answer.
    ///
    /// # Errors
    ///
    /// Fails if the message is not a request. The client that sent it is then disconnected.
    async fn answer(&self, message: &Buf) -> Result<Vec<u8>> {
        let data = message.data()?;
        let (ask, verb, key) = Ask::decode(&data).ok_or("it is no request")?;
        let body = message.slice(ASK..)?;
        let done = match verb {
            Verb::Get => Ok(Err("by message values are not to be had: read them".into())),
            Verb::Time => Ok(Ok(Some(cpu_time()?))),
            Verb::Put | Verb::Delete => {
                let mut store = self.store.lock().await;
                match verb {
                    _ if self.is_late(ask) => Ok(Err("a later request was first".into())),
                    Verb::Put => store.put(key, &body).await.map(|put| put.map(Some)),
                    _ => store.delete(key).map(Ok),
                }
            }
        };
        let done = done.unwrap_or_else(|error| Err(format!("the server failed: {error}")));
        let (status, version, text) = match done {
            Ok(version) => (version.map_or(ABSENT, |_| DONE), version, String::new()),
            Err(text) => (REFUSED, None, text),
        };
        let reply = Reply::new(status, ask.id, version.unwrap_or(0));
        Ok([reply.as_bytes(), text.as_bytes()].concat())
    }

    /// Returns true if the client has given up this write and sent a later one: a message may
    /// arrive late from a connection that had ended.
    fn is_late(&self, ask: Ask) -> bool {
        let mut latest = self.latest.lock().expect("no holder panics");
        if latest.len() == REMEMBERED {
            latest.clear();
        }
        let before = latest.entry(ask.client.get()).or_default();
        let late = *before >= ask.id.get();
        *before = ask.id.get().max(*before);
        late
    }
}

/// Returns the CPU time of this process, in nanoseconds.
pub(crate) fn cpu_time() -> Result<u64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let of = |time: TimeVal| time.tv_sec() as u64 * 1_000_000_000 + time.tv_usec() as u64 * 1_000;
    Ok(of(usage.user_time()) + of(usage.system_time()))
}
