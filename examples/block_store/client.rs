//! A client of the block store, which sends the caller's `Bytes`. Large blocks are registered with
//! the device, which reads them in place; small blocks are copied into a Buf. The client measures
//! at its start from which size on registering is faster.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_doca::mem::{BufChain, BufInventory};
use tokio_doca::{Buf, BufPool, Device, Mmap, Rdma, WorkQ};
use zerocopy::{FromBytes, IntoBytes};

use super::layout::{ASK, Ask, BLOCK, REPLY, Reply, Verb};
use super::{Error, Result};

/// Pause between attempts to connect.
const PAUSE: Duration = Duration::from_millis(10);

pub(crate) struct Client {
    addr: SocketAddr,
    device: Device,
    workq: WorkQ,
    pool: BufPool,
    registered: BufInventory,
    /// Blocks of at least this many bytes are registered; smaller blocks are copied.
    pub(crate) registers_from: usize,
    patience: Duration,
    rdma: Option<Rdma>,
    /// The client's random number. `requests` is the number of its latest request.
    id: u64,
    requests: u64,
}

impl Client {
    /// Makes a client of the primary at `addr`. The first call connects. Each call tries to reach
    /// the primary for at most `patience`.
    pub(crate) fn new(
        addr: SocketAddr,
        device: &Device,
        workq: &WorkQ,
        patience: Duration,
    ) -> Result<Client> {
        let element = (ASK.max(REPLY) + BLOCK).next_multiple_of(64);
        let mmap = Mmap::builder().device(device).alloc(2 * element)?;
        let mut client = Client {
            addr,
            device: device.clone(),
            workq: workq.clone(),
            pool: BufPool::builder(&mmap).element_size(element).build()?,
            registered: BufInventory::with_capacity(1),
            registers_from: 0,
            patience,
            rdma: None,
            id: getrandom::u64()?,
            requests: 0,
        };
        client.registers_from = client.measure()?;
        Ok(client)
    }

    /// Returns how many bytes can be copied in the time that it takes to register a block.
    fn measure(&self) -> Result<usize> {
        let bytes = Bytes::from(vec![1; BLOCK]);
        let buf = self.pool.try_alloc()?;
        let least = |work: &dyn Fn() -> Result<()>| -> Result<u128> {
            let mut least = u128::MAX;
            for _ in 0..9 {
                let begun = std::time::Instant::now();
                work()?;
                least = least.min(begun.elapsed().as_nanos());
            }
            Ok(least)
        };
        let copy = least(&|| {
            buf.reset_data_len()?;
            Ok(buf.extend_from_slice(&bytes)?)
        })?;
        let register = least(&|| self.register(bytes.clone()).map(drop))?;
        Ok((BLOCK as u128 * register / copy.max(1)) as usize)
    }

    fn register(&self, bytes: Bytes) -> Result<Buf> {
        let mmap = Mmap::builder().device(&self.device).from_bytes(bytes)?;
        Ok(self.registered.buf_filled(&mmap, ..)?)
    }

    /// Writes a block, and returns its version. By then the replica has it as well, if one is
    /// alive.
    ///
    /// # Errors
    ///
    /// Fails with the text of the primary's refusal, or if the primary does not answer in time. In
    /// the second case the block may still be written, unless a later request of this client comes
    /// first.
    pub(crate) async fn put(&mut self, block: usize, data: &Bytes) -> Result<u64> {
        if data.is_empty() || data.len() > BLOCK {
            return Err(format!("a block has 1 to {BLOCK} bytes, and not {}", data.len()).into());
        }
        Ok(self.ask(Verb::Put, block, data).await?.0)
    }

    /// Reads a block and its version. Returns `None` if the block was never written.
    ///
    /// # Errors
    ///
    /// Fails as [`Client::put`] does.
    pub(crate) async fn get(&mut self, block: usize) -> Result<Option<(u64, Vec<u8>)>> {
        let (version, data) = self.ask(Verb::Get, block, &Bytes::new()).await?;
        Ok((version > 0).then_some((version, data)))
    }

    /// Sends a request, and sends it again after failures, until the patience ends.
    async fn ask(&mut self, verb: Verb, block: usize, data: &Bytes) -> Result<(u64, Vec<u8>)> {
        let end = Instant::now() + self.patience;
        loop {
            let error = match timeout_at(end, self.once(verb, block, data)).await {
                Ok(Ok(Ok(answer))) => return Ok(answer),
                Ok(Ok(Err(refusal))) => return Err(refusal.into()),
                Ok(Err(error)) => error,
                Err(_) => Error::from("no answer"),
            };
            self.rdma = None;
            if Instant::now() >= end {
                let (addr, patience) = (self.addr, self.patience);
                return Err(format!("{addr}: not done within {patience:?}: {error}").into());
            }
            sleep(PAUSE).await;
        }
    }

    async fn once(
        &mut self,
        verb: Verb,
        block: usize,
        data: &Bytes,
    ) -> Result<Result<(u64, Vec<u8>), String>> {
        if self.rdma.is_none() {
            let mut stream = TcpStream::connect(self.addr).await?;
            let rdma = Rdma::builder(&self.device).attach(&self.workq)?;
            rdma.handshake_connect(&mut stream).await?;
            self.rdma = Some(rdma);
        }
        let rdma = self.rdma.as_ref().ok_or("it was connected")?;
        self.requests += 1;
        let ask = Ask::new(verb, block, self.id, self.requests);
        let (request, answer) = (self.pool.alloc().await, self.pool.alloc().await);
        request.extend_from_slice(ask.as_bytes())?;
        let message = BufChain::with_capacity(2);
        if data.len() < self.registers_from.max(1) {
            request.extend_from_slice(data)?;
            message.push(request)?;
        } else {
            message.push(request)?;
            message.push(self.register(data.clone())?)?;
        }
        let (received, sent) = tokio::join!(rdma.recv(&answer), rdma.send(&message));
        sent?;
        received?;
        let answer = answer.data()?;
        let (reply, rest) = Reply::read_from_prefix(&answer).map_err(|_| "no answer")?;
        if reply.id.get() != self.requests {
            return Err("an answer to another request".into());
        }
        Ok(match reply.is_done() {
            true => Ok((reply.version.get(), rest.to_vec())),
            false => Err(String::from_utf8_lossy(rest).into_owned()),
        })
    }
}
