//! A client of the store, which reads values itself and asks the server for everything else.
//!
//! If the client has read a key's record before, a get is a single read of the server's memory. If
//! that record is no longer there, or none was read yet, the client reads the index as well. Puts
//! and deletions are messages.
//!
//! A caller that gets a value never gets an older one later, whichever client put it. The only
//! exceptions are values that were forged to look like records: see the head of `store.rs`. If the
//! connection breaks, the client reconnects and asks again, until its patience ends. A put whose
//! answer was lost is therefore put twice, maybe over a value that another client has put
//! meanwhile.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_doca::mem::RemoteMmap;
use tokio_doca::{Buf, BufPool, Device, Mmap, Rdma, WorkQ};
use zerocopy::{FromBytes, IntoBytes};

use super::wire::*;
use super::{Error, Result};

/// The place and the version of the newest record that was read of each key, by the key's hash.
type Places = HashMap<u64, (Place, u64), BuildHasherDefault<Hashed>>;

/// The maximum number of keys whose places the client remembers.
const PLACES: usize = 1 << 16;
/// The first and the longest pause before the client reconnects.
const PAUSES: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(500)];

/// A value, with a version that is larger than those of all earlier values of its key.
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
    places: Places,
    /// The client's random number. `requests` is the number of its latest request.
    id: u32,
    requests: u64,
}

struct Link {
    rdma: Rdma,
    memory: RemoteMmap,
    layout: Layout,
    /// The number of the server's start.
    boot: u64,
    pool: BufPool,
}

/// The outcome of one attempt.
enum Found {
    Value(Value),
    Absent,
    /// The memory was written during the read, or the record is superseded.
    Stale,
    /// The server's reason for a refusal.
    Refused(String),
}

impl Client {
    /// Makes a client of the server at a TCP address. The first call connects. Each call tries to
    /// reach the server for at most `patience`.
    pub(crate) fn new(
        address: &str,
        device: &Device,
        workq: &WorkQ,
        patience: Duration,
    ) -> Result<Client> {
        let element = room(MAX_REQUEST);
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

    /// Returns the newest value of a key, or `None` if there is none.
    ///
    /// # Errors
    ///
    /// Fails if, until the patience ends, the server cannot be reached or every read is torn.
    pub(crate) async fn get(&mut self, key: &[u8]) -> Result<Option<Value>> {
        if let (Some(link), Some(&(place, version))) = (&self.link, self.places.get(&hash(key)))
            && let Ok(Found::Value(value)) = link.record(place, key, version).await
        {
            return Ok(Some(value));
        }
        self.ask(Verb::Get, key, &[]).await
    }

    /// Puts a value, and returns its version.
    ///
    /// # Errors
    ///
    /// Fails with the server's reason, for instance that the store is full, or if the server does
    /// not answer in time. In the second case the value may still be put, unless a later request of
    /// this client comes first.
    pub(crate) async fn put(&mut self, key: &[u8], value: &[u8]) -> Result<u64> {
        let put = self.ask(Verb::Put, key, value).await?;
        put.map_or(Err("an answer to nothing".into()), |put| Ok(put.version))
    }

    /// Deletes a key, and returns the version from which on it is absent. Returns `None` if it was
    /// absent.
    ///
    /// # Errors
    ///
    /// Fails as [`Client::put`] does.
    pub(crate) async fn delete(&mut self, key: &[u8]) -> Result<Option<u64>> {
        let deleted = self.ask(Verb::Delete, key, &[]).await?;
        Ok(deleted.map(|deleted| deleted.version))
    }

    /// Tries a request again and again until it succeeds, is refused, or the patience ends.
    pub(crate) async fn ask(
        &mut self,
        verb: Verb,
        key: &[u8],
        value: &[u8],
    ) -> Result<Option<Value>> {
        if verb != Verb::Time && !fits(key.len(), value.len()) {
            let text = format!("a key has 1 to {MAX_KEY} bytes, and a value {MAX_VALUE}");
            return Err(text.into());
        }
        let (end, mut tries) = (Instant::now() + self.patience, 0);
        loop {
            let error = match timeout_at(end, self.once(verb, key, value)).await {
                Ok(Ok(Found::Value(value))) => return Ok(Some(value)),
                Ok(Ok(Found::Absent)) => return Ok(None),
                Ok(Ok(Found::Refused(text))) => return Err(text.into()),
                Ok(Ok(Found::Stale)) => Error::from("what it reads is written all the while"),
                Ok(Err(error)) => self.unlink(error),
                Err(_) => self.unlink("the server does not answer".into()),
            };
            if Instant::now() >= end {
                let (address, patience) = (&self.address, self.patience);
                return Err(format!("{address}: not done within {patience:?}: {error}").into());
            }
            match self.link {
                // A concurrent writer needs only a moment: the first tries follow one another
                // without a pause.
                Some(_) if tries < 8 => yield_now().await,
                _ => sleep(PAUSES[1].min(PAUSES[0] * (1 << tries.min(8)))).await,
            }
            tries += 1;
        }
    }

    fn unlink(&mut self, error: Error) -> Error {
        self.link = None;
        error
    }

    async fn once(&mut self, verb: Verb, key: &[u8], value: &[u8]) -> Result<Found> {
        if self.link.is_none() {
            self.link = Some(self.connect().await?);
        }
        let link = self.link.as_ref().ok_or("it was connected")?;
        if verb == Verb::Get {
            return link.look(key, &mut self.places).await;
        }
        self.requests += 1;
        let ask = Ask::new(verb, self.id, self.requests, key);
        link.message(ask, key, value).await
    }

    async fn connect(&self) -> Result<Link> {
        let mut stream = TcpStream::connect(&self.address).await?;
        stream.write_u8(BY_RDMA).await?;
        let rdma = Rdma::builder(&self.device).attach(&self.workq)?;
        rdma.handshake_connect(&mut stream).await?;
        let len = stream.read_u32_le().await? as usize;
        if len > MAX_BLOB {
            return Err(format!("the server exports by a blob of {len} bytes").into());
        }
        let mut blob = vec![0; len];
        stream.read_exact(&mut blob).await?;
        let memory = RemoteMmap::from_export(&self.device, &blob).await?;
        Ok(Link {
            rdma,
            layout: Layout::of(memory.len()),
            memory,
            boot: stream.read_u64_le().await?,
            pool: self.pool.clone(),
        })
    }
}

impl Link {
    async fn read(&self, at: usize, len: usize) -> Result<Buf> {
        let buf = self.pool.alloc().await;
        let range = self.memory.buf(at..at.saturating_add(len))?;
        self.rdma.read(&range, &buf).await?;
        Ok(buf)
    }

    /// Reads the place where the key's record of `version` should be. Returns [`Found::Absent`] if
    /// the record belongs to another key. A record of another version is stale: it may not be in
    /// the index yet.
    async fn record(&self, place: Place, key: &[u8], version: u64) -> Result<Found> {
        let buf = self.read(place.at(), place.len()).await?;
        let data = buf.data()?;
        let Ok((head, other, value)) = record(&data) else {
            return Ok(Found::Stale);
        };
        Ok(match other == key {
            _ if !head.is_live() || head.version != version => Found::Stale,
            false => Found::Absent,
            true => Found::Value(Value {
                version,
                data: value.to_vec(),
            }),
        })
    }

    /// Looks a key up in the index.
    async fn look(&self, key: &[u8], places: &mut Places) -> Result<Found> {
        let hash = hash(key);
        let window = self.read(self.layout.window(hash), WINDOW).await?;
        for bytes in window.data()?.chunks_exact(ENTRY) {
            let entry = match Entry::decode(bytes) {
                Ok(Some(entry)) if entry.hash == hash => entry,
                Ok(_) => continue,
                Err(Torn) => return Ok(Found::Stale),
            };
            let (place, version) = (entry.place(), entry.version.get());
            let found = self.record(place, key, version).await?;
            // If absent, the entry belongs to another key with the same hash.
            if !matches!(found, Found::Absent) {
                if places.len() == PLACES {
                    places.clear();
                }
                places.insert(hash, (place, version));
                return Ok(found);
            }
        }
        places.remove(&hash);
        // A restarted server increments BOOT before it rebuilds the index.
        match self.read(BOOT, 8).await?.data()?[..] == self.boot.to_le_bytes() {
            true => Ok(Found::Absent),
            false => Err("the server was started anew".into()),
        }
    }

    /// Sends a request, and receives its answer.
    async fn message(&self, ask: Ask, key: &[u8], value: &[u8]) -> Result<Found> {
        let (request, answer) = (self.pool.alloc().await, self.pool.alloc().await);
        for part in [ask.as_bytes(), key, value] {
            request.extend_from_slice(part)?;
        }
        let (received, sent) = tokio::join!(self.rdma.recv(&answer), self.rdma.send(&request));
        sent?;
        received?;
        let data = answer.data()?;
        let (reply, text) = Reply::read_from_prefix(&data).map_err(|_| "no answer")?;
        let version = reply.version.get();
        Ok(match reply.status.get() {
            _ if reply.id != ask.id => return Err("an answer to another request".into()),
            DONE => Found::Value(Value {
                version,
                data: Vec::new(),
            }),
            ABSENT => Found::Absent,
            _ => Found::Refused(String::from_utf8_lossy(text).into_owned()),
        })
    }
}

/// A hasher that returns its input, which is a hash already.
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
