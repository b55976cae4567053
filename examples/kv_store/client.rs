//! A client of the store, which reads values by itself and asks the server for the rest.
//!
//! A get of a key whose record the client has read before is one read of the server's memory. If
//! there is a newer record, or none was read yet, it reads the index as well. Puts and deletions
//! are messages.
//!
//! Who gets a value never gets an older one later, whatever client put it. If the connection
//! breaks, the client connects anew and asks again, until its patience ends. A put whose answer was
//! lost is so put twice, maybe over the value that another client has put meanwhile.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_doca::mem::RemoteMmap;
use tokio_doca::{Buf, BufPool, Device, Mmap, Rdma, WorkQ};

use super::Result;
use super::wire::*;

/// The most keys whose places it remembers.
const PLACES: usize = 1 << 16;
/// The first and the longest pause before it connects anew.
const PAUSES: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(500)];

/// A value, and a number that is larger than that of all that its key had before.
#[derive(Debug, PartialEq)]
pub(crate) struct Value {
    pub(crate) version: u64,
    pub(crate) data: Vec<u8>,
}

pub(crate) struct Client {
    address: String,
    device: Device,
    workq: WorkQ,
    pool: BufPool,
    patience: Duration,
    link: Option<Link>,
    /// Where the records are, by the hashes of their keys.
    places: HashMap<u64, u64, BuildHasherDefault<Hashed>>,
    /// A number of its own, and that of its requests.
    id: u32,
    requests: u64,
}

struct Link {
    rdma: Rdma,
    memory: RemoteMmap,
    layout: Layout,
    boot: Vec<u8>,
}

/// Hashes what is a hash.
#[derive(Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// What one look has found.
enum Found {
    Value(Value),
    Absent,
    /// It was written meanwhile, or is superseded.
    Stale,
}

impl Client {
    /// A client of the server at that TCP address, which it tries to reach for that time whenever
    /// it has to. It connects with the first call.
    pub(crate) fn new(
        address: &str,
        device: &Device,
        workq: &WorkQ,
        patience: Duration,
    ) -> Result<Client> {
        let element = MAX_REQUEST.next_multiple_of(64);
        let mmap = Mmap::builder().device(device).alloc(4 * element)?;
        Ok(Client {
            address: address.to_owned(),
            device: device.clone(),
            workq: workq.clone(),
            pool: BufPool::builder(&mmap).element_size(element).build()?,
            patience,
            link: None,
            places: HashMap::default(),
            id: getrandom::u32()?,
            requests: 0,
        })
    }

    /// The newest value of a key, if there is one.
    ///
    /// # Errors
    ///
    /// If the server cannot be reached, or what was read is torn, for as long as its patience
    /// lasts.
    pub(crate) async fn get(&mut self, key: &[u8]) -> Result<Option<Value>> {
        if let (Some(link), Some(&place)) = (&self.link, self.places.get(&hash(key)))
            && let place = Place::unpack(place)
            && let Ok(Found::Value(value)) = link.record(&self.pool, place, key, None).await
        {
            return Ok(Some(value));
        }
        let end = Instant::now() + self.patience;
        let mut tries = 0;
        loop {
            let looked = timeout_at(end, self.look(key)).await;
            let late = match looked {
                Ok(Ok(Found::Value(value))) => return Ok(Some(value)),
                Ok(Ok(Found::Absent)) => return Ok(None),
                Ok(Ok(Found::Stale)) => "what it reads is written all the while".into(),
                Ok(Err(error)) => self.unlink(error),
                Err(_) => "the server does not answer".into(),
            };
            self.wait(&mut tries, end, late).await?;
        }
    }

    /// Puts a value, and answers its version.
    ///
    /// # Errors
    ///
    /// What the server says, if the store is full for instance; or if it does not answer in time:
    /// the value may be put then, unless a later request of this client comes first.
    pub(crate) async fn put(&mut self, key: &[u8], value: &[u8]) -> Result<u64> {
        check(key, value)?;
        let version = self.ask(Verb::Put, key, value).await?;
        version.ok_or_else(|| "the server knows no such key".into())
    }

    /// Deletes a key, and answers the version from which on it is absent. `None` if it was.
    ///
    /// # Errors
    ///
    /// As [`Client::put`].
    pub(crate) async fn delete(&mut self, key: &[u8]) -> Result<Option<u64>> {
        check(key, &[])?;
        self.ask(Verb::Delete, key, &[]).await
    }

    /// Asks the server, and answers the version that it says.
    pub(crate) async fn ask(
        &mut self,
        verb: Verb,
        key: &[u8],
        value: &[u8],
    ) -> Result<Option<u64>> {
        let end = Instant::now() + self.patience;
        let mut tries = 0;
        loop {
            let late = match timeout_at(end, self.message(verb, key, value)).await {
                Ok(Ok((Status::Done, version, _))) => return Ok(Some(version)),
                Ok(Ok((Status::Absent, ..))) => return Ok(None),
                Ok(Ok((Status::Refused, _, text))) => return Err(text.into()),
                Ok(Err(error)) => self.unlink(error),
                Err(_) => self.unlink("the server does not answer".into()),
            };
            self.wait(&mut tries, end, late).await?;
        }
    }

    fn unlink(&mut self, error: super::Error) -> super::Error {
        self.link = None;
        error
    }

    /// Waits before the next try.
    async fn wait(&self, tries: &mut u32, end: Instant, late: super::Error) -> Result<()> {
        if Instant::now() >= end {
            let (address, patience) = (&self.address, self.patience);
            return Err(format!("{address}: not done within {patience:?}: {late}").into());
        }
        let pause = PAUSES[0] * 2_u32.pow((*tries).min(10));
        *tries += 1;
        match self.link {
            // A writer needs a moment.
            Some(_) if *tries < 8 => yield_now().await,
            Some(_) => sleep(PAUSES[0]).await,
            None => sleep(pause.min(PAUSES[1])).await,
        }
        Ok(())
    }

    async fn link(&mut self) -> Result<&Link> {
        if self.link.is_none() {
            self.link = Some(self.connect().await?);
        }
        Ok(self.link.as_ref().expect("set above"))
    }

    async fn connect(&self) -> Result<Link> {
        let mut stream = TcpStream::connect(&self.address).await?;
        stream.write_u8(BY_RDMA).await?;
        let rdma = Rdma::builder(&self.device).attach(&self.workq)?;
        rdma.handshake(&mut stream).await?;
        let len = stream.read_u32_le().await? as usize;
        if len > MAX_BLOB {
            return Err(format!("the server exports by a blob of {len} bytes").into());
        }
        let mut blob = vec![0; len];
        stream.read_exact(&mut blob).await?;
        let memory = RemoteMmap::from_export(&self.device, &blob).await?;
        let layout = Layout::of(memory.len());
        let mut link = Link {
            rdma,
            memory,
            layout,
            boot: Vec::new(),
        };
        link.boot = link.read(&self.pool, BOOT, 8).await?.data()?.to_vec();
        Ok(link)
    }

    /// Looks for a key in the index.
    async fn look(&mut self, key: &[u8]) -> Result<Found> {
        self.link().await?;
        let (link, pool) = (self.link.as_ref().expect("it was made"), &self.pool);
        let hash = hash(key);
        let window = link.read(pool, link.layout.window(hash), WINDOW).await?;
        for bytes in window.data()?.chunks_exact(ENTRY) {
            let entry = match Entry::decode(bytes) {
                Ok(Some(entry)) if entry.hash == hash => entry,
                Ok(_) => continue,
                Err(Torn) => return Ok(Found::Stale),
            };
            match link
                .record(pool, entry.place, key, Some(entry.version))
                .await?
            {
                Found::Value(value) => {
                    if self.places.len() == PLACES {
                        self.places.clear();
                    }
                    self.places.insert(hash, entry.place.pack());
                    return Ok(Found::Value(value));
                }
                // Another key of this hash.
                Found::Absent => {}
                Found::Stale => return Ok(Found::Stale),
            }
        }
        self.places.remove(&hash);
        // A new server that builds the index counts its start first.
        match link.read(pool, BOOT, 8).await?.data()?[..] == link.boot {
            true => Ok(Found::Absent),
            false => Err("the server was started anew".into()),
        }
    }

    /// Sends a request, and receives its answer: how it went, the version, and a text.
    async fn message(
        &mut self,
        verb: Verb,
        key: &[u8],
        value: &[u8],
    ) -> Result<(Status, u64, String)> {
        self.requests += 1;
        let id = self.requests;
        self.link().await?;
        let (link, pool) = (self.link.as_ref().expect("it was made"), &self.pool);
        let (request, answer) = (pool.alloc().await, pool.alloc().await);
        for part in [&Request::head(verb, self.id, id, key)[..], key, value] {
            request.extend_from_slice(part)?;
        }
        let (received, sent) = tokio::join!(link.rdma.recv(&answer), link.rdma.send(&request));
        sent?;
        received?;
        let data = answer.data()?;
        match Answer::decode(&data) {
            Some(answer) if answer.id == id => {
                let text = String::from_utf8_lossy(answer.rest).into_owned();
                Ok((answer.status, answer.version, text))
            }
            _ => Err("the server answers something else".into()),
        }
    }
}

fn check(key: &[u8], value: &[u8]) -> Result<()> {
    match (1..=MAX_KEY).contains(&key.len()) && value.len() <= MAX_VALUE {
        true => Ok(()),
        false => Err(format!("a key has 1 to {MAX_KEY} bytes, and a value {MAX_VALUE}").into()),
    }
}

impl Link {
    async fn read(&self, pool: &BufPool, at: usize, len: usize) -> Result<Buf> {
        let buf = pool.alloc().await;
        self.rdma
            .read(&self.memory.buf(at..at + len)?, &buf)
            .await?;
        Ok(buf)
    }

    /// Reads what should be a record of the key. [`Found::Absent`] is a record of another key.
    async fn record(
        &self,
        pool: &BufPool,
        place: Place,
        key: &[u8],
        version: Option<u64>,
    ) -> Result<Found> {
        let buf = self.read(pool, place.at, place.len).await?;
        let data = buf.data()?;
        Ok(match Record::decode(&data) {
            Ok(record) if record.superseded => Found::Stale,
            Ok(record) if version.is_some_and(|version| version != record.head.version) => {
                Found::Stale
            }
            Ok(record) if record.key != key => Found::Absent,
            Ok(record) => Found::Value(Value {
                version: record.head.version,
                data: record.value.to_vec(),
            }),
            Err(Torn) => Found::Stale,
        })
    }
}
