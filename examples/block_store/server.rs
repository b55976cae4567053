//! The side of the primary that clients see: it meets them over TCP, and answers their messages.

use std::fmt::Display;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_doca::mem::{BufChain, BufSlice};
use tokio_doca::{Buf, BufPool, Mmap, Rdma};
use zerocopy::IntoBytes;

use super::arrivals::{Arrival, Arrivals};
use super::layout::{ASK, Ask, BLOCK, REPLY, Reply, Status, Verb};
use super::store::{Lane, Store};
use super::{Result, say};

/// The most clients at once. Others wait until one leaves, or the time limit has passed.
const CLIENTS: usize = 64;
/// Messages of a client that it may send before the server has taken the first.
const MESSAGES: usize = 2;
/// How long a client may take to show that it is one.
const MEETING: Duration = Duration::from_secs(5);
/// How long the server waits after it could not accept a client.
const PAUSE: Duration = Duration::from_millis(100);
/// Bytes of an answer without data.
const ANSWER: usize = 256;

struct Server {
    store: Arc<Store>,
    requests: BufPool,
    answers: BufPool,
    /// What clients have asked for and not taken.
    copies: BufPool,
    /// How long a client may ask for nothing: then it loses its place, and comes again if it likes.
    idle: Duration,
}

pub(crate) async fn serve(addr: SocketAddr, store: Arc<Store>, idle: Duration) -> Result<()> {
    let pool = |bytes: usize, bufs: usize| {
        let mmap = Mmap::builder().device(&store.device).alloc(bytes * bufs)?;
        BufPool::builder(&mmap).element_size(bytes).build()
    };
    let server = Arc::new(Server {
        // One more than is posted: the one that is worked on.
        requests: pool((ASK + BLOCK).next_multiple_of(64), (MESSAGES + 1) * CLIENTS)?,
        answers: pool(ANSWER, CLIENTS)?,
        copies: pool(BLOCK, CLIENTS)?,
        idle,
        store,
    });
    let listener = TcpListener::bind(addr).await?;
    say(&format!("Listening on {}", listener.local_addr()?));
    let mut arrivals = Arrivals::new(CLIENTS, MEETING);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let (server, arrival) = (Arc::clone(&server), arrivals.next().await);
                tokio::spawn(async move {
                    if let Err(error) = server.client(stream, arrival).await {
                        complain(&error);
                    }
                });
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
    let _ = writeln!(std::io::stderr(), "block_store: a client: {error}");
}

impl Server {
    async fn client(&self, mut stream: TcpStream, arrival: Arrival) -> Result<()> {
        let store = &self.store;
        let meet = async move {
            let builder = Rdma::builder(&store.device).recv_queue_size(MESSAGES as u32);
            let rdma = builder.attach(&store.workq)?;
            rdma.handshake_accept(&mut stream).await?;
            Ok(rdma)
        };
        let (rdma, _place) = arrival.place(meet).await?;
        let mut requests = rdma.recv_stream(&self.requests, MESSAGES);
        let mut lane = store.lane().await;
        loop {
            let request = timeout(self.idle, requests.try_next()).await;
            let request = match request.map_err(|_| "no request in time")? {
                Ok(Some(request)) => request.buf.ok_or("an empty message")?,
                Err(error) if !error.is_disconnect() => return Err(error.into()),
                Ok(None) | Err(_) => return Ok(()),
            };
            self.answer(&rdma, &mut lane, request).await?;
        }
    }

    /// Does what a request asks for, and answers it.
    ///
    /// # Errors
    ///
    /// If it is none, or if the answer cannot be sent: the client is not served any more.
    async fn answer(&self, rdma: &Rdma, lane: &mut Lane, request: Buf) -> Result<()> {
        let (ask, verb) = Ask::decode(&request.data()?).ok_or("it is no request")?;
        let (block, id) = (ask.block.get() as usize, ask.id.get());
        let head = self.answers.alloc().await;
        if block >= self.store.blocks.len() {
            let text = format!("there are {} blocks", self.store.blocks.len());
            return refuse(rdma, head, id, &text).await;
        }
        match verb {
            Verb::Get => {
                // The client may take as long as it likes: it holds up nobody but itself.
                let copy = self.copies.alloc().await;
                let version = self.store.copy(block, &copy).await?;
                head.extend_from_slice(Reply::new(Status::Done, id, version).as_bytes())?;
                let answer = BufChain::with_capacity(2);
                answer.push(head)?;
                if copy.data_len() > 0 {
                    answer.push(copy)?;
                }
                rdma.send(&answer).await?;
                Ok(())
            }
            Verb::Put => {
                let data = request.slice(ASK..)?;
                drop(request);
                match self.put(lane, block, data, ask).await {
                    Ok(version) => {
                        head.extend_from_slice(Reply::new(Status::Done, id, version).as_bytes())?;
                        rdma.send(&head).await?;
                        Ok(())
                    }
                    Err(error) => refuse(rdma, head, id, &error.to_string()).await,
                }
            }
        }
    }

    async fn put(&self, lane: &mut Lane, block: usize, data: BufSlice, ask: Ask) -> Result<u64> {
        if data.is_empty() {
            return Err("no data".into());
        }
        let request = (ask.client.get(), ask.id.get());
        self.store.put(lane, block, data, request).await
    }
}

async fn refuse(rdma: &Rdma, head: Buf, id: u64, text: &str) -> Result<()> {
    let text = &text.as_bytes()[..text.len().min(ANSWER - REPLY)];
    head.extend_from_slice(Reply::new(Status::Refused, id, 0).as_bytes())?;
    head.extend_from_slice(text)?;
    rdma.send(&head).await?;
    Ok(())
}
