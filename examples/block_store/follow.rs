//! How a primary finds its replica, takes what a primary before it has left there, and brings a
//! replica that is new, or was cut off, up to date.

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

/// Between tries to connect.
const PAUSE: Duration = Duration::from_millis(20);
/// How long a replica may take to lend its memory, and the longest blob.
const LENDING: Duration = Duration::from_secs(5);
const BLOB: u32 = 1024;

/// Follows one replica.
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

    /// Waits for the replica, takes what it has if that is whole, and follows it from now on.
    ///
    /// # Errors
    ///
    /// If what it has is not what was written.
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
                    // It says nothing until it has gone.
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

    /// Tries until it is connected.
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
        // Once this primary has the replica's only place.
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

    /// Reads the word and the entries of the replica into the same places here.
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

    /// Takes all blocks of a replica that has every acknowledged write. What another one has must
    /// not be taken for newer than what is written from now on: it forgets that.
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

    /// Writes all blocks that are older there, while clients write others, and says at last that
    /// the replica is whole.
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
