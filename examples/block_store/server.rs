//! The primary's server for clients: it meets them over TCP, and answers their messages.

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

/// The maximum number of clients. Others wait until one leaves, or their time limit has passed.
const CLIENTS: usize = 64;
/// The number of messages that a client may send before the server has received the first.
const MESSAGES: usize = 2;
/// The time in which a client must complete the handshake.
const MEETING: Duration = Duration::from_secs(5);
/// Pause after the server could not accept a client.
const PAUSE: Duration = Duration::from_millis(100);
/// The size of an answer without data, in bytes.
const ANSWER: usize = 256;

struct Server {
    store: Arc<Store>,
    requests: BufPool,
    answers: BufPool,
    /// Copies of blocks for clients that have not received them yet.
    copies: BufPool,
    /// A client that sends no request for this time loses its place, and may connect again.
    idle: Duration,
}

pub(crate) async fn serve(addr: SocketAddr, store: Arc<Store>, idle: Duration) -> Result<()> {
    let pool = |bytes: usize, bufs: usize| {
        let mmap = Mmap::builder().device(&store.device).alloc(bytes * bufs)?;
        BufPool::builder(&mmap).element_size(bytes).build()
    };
    let server = Arc::new(Server {
        // Besides the `MESSAGES` that are posted, each client has one that is being answered.
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

    /// Executes a request, and answers it.
    ///
    /// # Errors
    ///
    /// Fails if the message is not a request, or if the answer cannot be sent. The client is then
    /// disconnected.
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
                // The client may receive this slowly: the copy delays no other client, since no
                // lock is held.
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
