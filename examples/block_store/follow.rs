//! How a primary finds its replica, takes over what an earlier primary has left there, and brings a
//! replica up to date that is new or was cut off.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::time::{sleep, timeout};
use tokio_doca::mem::RemoteMmap;
use tokio_doca::rdma::RdmaState;
use tokio_doca::sha::Algorithm;
use tokio_doca::stream::{RdmaConnector, RdmaStream, StreamAddr, StreamOptions};
use zerocopy::IntoBytes;

use super::layout::{ENTRY, Entry, WHOLE};
use super::store::{Link, Replica, Store};
use super::{Result, say};

/// Pause between attempts to connect.
const PAUSE: Duration = Duration::from_millis(20);
/// The time in which a replica must lend its memory.
const LENDING: Duration = Duration::from_secs(5);
/// The maximum length of a replica's export blob, in bytes.
const BLOB: u32 = 1024;

/// Keeps one replica connected and up to date.
pub(crate) struct Follower {
    store: Arc<Store>,
    addr: StreamAddr,
    connector: RdmaConnector,
}

impl Follower {
    pub(crate) fn new(store: &Arc<Store>, addr: StreamAddr) -> Result<Follower> {
        let options = StreamOptions::new().connections(2);
        Ok(Follower {
            connector: options.connector(&store.device, &store.workq)?,
            store: Arc::clone(store),
            addr,
        })
    }

    /// Waits for the replica, loads its blocks if it is whole, and follows it from now on.
    ///
    /// # Errors
    ///
    /// Fails if a block of the replica does not have the digest that was recorded for it.
    pub(crate) async fn begin(self) -> Result<()> {
        self.store.replica.send_replace(Replica::CutOff);
        loop {
            let (stream, link) = self.connect().await;
            match self.pull(&link).await {
                Ok(()) => {
                    tokio::spawn(self.follow(stream, link));
                    return Ok(());
                }
                Err(_) if link.rdma.state() != RdmaState::Connected => sleep(PAUSE).await,
                Err(error) => return Err(format!("the replica: {error}").into()),
            }
        }
    }

    async fn follow(self, mut stream: RdmaStream, mut link: Arc<Link>) {
        loop {
            let linked = Replica::Linked(Arc::clone(&link));
            self.store.replica.send_replace(linked);
            let pushed = self.push(&link).await;
            let why = match pushed {
                Ok(()) => {
                    say("The replica is whole");
                    // The replica sends nothing, so that the read returns only once the replica has
                    // gone.
                    match stream.read(&mut [0]).await {
                        Ok(_) => "it has left".into(),
                        Err(error) => error.into(),
                    }
                }
                Err(error) => error,
            };
            say(&format!("The replica is lost: {why}"));
            self.store.lose(&link);
            drop(stream);
            (stream, link) = self.connect().await;
        }
    }

    /// Tries to connect until it succeeds.
    async fn connect(&self) -> (RdmaStream, Arc<Link>) {
        let mut said = String::new();
        loop {
            match self.try_connect().await {
                Ok(connected) => return connected,
                Err(error) => {
                    let error = error.to_string();
                    if error != said {
                        say(&format!("The replica cannot be reached: {error}"));
                        said = error;
                    }
                    sleep(PAUSE).await;
                }
            }
        }
    }

    async fn try_connect(&self) -> Result<(RdmaStream, Arc<Link>)> {
        let mut stream = self.connector.connect(self.addr.clone()).await?;
        // The blob comes once this primary has the replica's only place.
        let blob = timeout(LENDING, async {
            let mut blob = vec![0; stream.read_u32().await?.min(BLOB) as usize];
            stream.read_exact(&mut blob).await?;
            Ok::<_, std::io::Error>(blob)
        });
        let blob = blob.await??;
        let memory = RemoteMmap::from_export(&self.store.device, &blob).await?;
        let rdma = stream.rdma().expect("TCP was not allowed");
        let link = Link::new(&self.store, rdma, memory)?;
        Ok((stream, Arc::new(link)))
    }

    /// Reads the replica's `WHOLE` word and its entries into the same ranges of the local memory.
    async fn read_entries(&self, link: &Link) -> Result<(bool, Vec<Option<Entry>>)> {
        let (store, layout) = (&self.store, self.store.layout);
        let read = async |range: std::ops::Range<usize>| {
            let into = store.range(range.clone(), false)?;
            link.rdma.read(&link.memory.buf(range)?, &into).await?;
            Ok::<_, super::Error>(into)
        };
        let whole = read(WHOLE).await?.data()?[..] != [0; 8];
        let entries = read(layout.entries()).await?;
        let entries = entries.data()?;
        let newest = |pair: &[u8]| {
            let (one, other) = pair.split_at(ENTRY);
            let pair = [Entry::decode(one), Entry::decode(other)];
            pair.into_iter().flatten().max_by_key(Entry::version)
        };
        Ok((whole, entries.chunks_exact(2 * ENTRY).map(newest).collect()))
    }

    /// Loads all blocks of a replica that is whole, that is, has every acknowledged write. A
    /// replica that is not whole has its entries cleared, so that they are never taken for newer
    /// than later writes.
    async fn pull(&self, link: &Link) -> Result<()> {
        let (store, layout) = (&self.store, self.store.layout);
        let (whole, entries) = self.read_entries(link).await?;
        if !whole {
            let none = store.range(layout.entries(), true)?;
            none.data_mut()?.fill(0);
            let there = link.memory.buf(layout.entries())?;
            link.rdma.write(&none, &there).await?;
            return Ok(());
        }
        let digest = store.small().await;
        for (block, entry) in entries.into_iter().enumerate() {
            let Some(entry) = entry else {
                continue;
            };
            let at = store.layout.data(block, entry.version()).start;
            let range = at..at + entry.len();
            let data = store.range(range.clone(), false)?;
            link.rdma.read(&link.memory.buf(range)?, &data).await?;
            digest.reset_data_len()?;
            store.sha.hash(Algorithm::Sha256, &data, &digest).await?;
            if digest.data()?[..] != entry.digest {
                return Err(format!("block {block} has another digest").into());
            }
            *store.blocks[block].lock().await = Some(entry);
        }
        Ok(())
    }

    /// Writes all blocks of which the replica has an older version, while clients write others.
    /// Then marks the replica as whole.
    async fn push(&self, link: &Link) -> Result<()> {
        let store = &self.store;
        let (whole, there) = self.read_entries(link).await?;
        let small = store.small().await;
        for (block, there) in there.into_iter().enumerate() {
            let current = store.blocks[block].lock().await;
            let newer = |entry: &Entry| there.is_none_or(|it| it.version() < entry.version());
            let Some(entry) = current.filter(newer) else {
                continue;
            };
            let at = store.layout.data(block, entry.version()).start;
            let remote = link.memory.buf(at..at + entry.len())?;
            link.rdma
                .write(&store.data(block, &entry)?, &remote)
                .await?;
            small.reset_data_len()?;
            small.extend_from_slice(entry.as_bytes())?;
            let remote = link
                .memory
                .buf(store.layout.entry(block, entry.version()))?;
            link.rdma.write(&small, &remote).await?;
        }
        if !whole {
            small.reset_data_len()?;
            small.extend_from_slice(&1_u64.to_le_bytes())?;
            link.rdma.write(&small, &link.memory.buf(WHOLE)?).await?;
        }
        Ok(())
    }
}
