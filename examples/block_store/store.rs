//! The primary's blocks, and the graph by which a block is written:
//!
//! ```text
//!   stage ---+--> digest --> entry --+--> the replica's entry
//!            +--> the replica's data +
//! ```
//!
//! A write is one run of this graph. The data of the message is copied to the slot of the new
//! version, hashed there, and written to the same slot of the replica; then the entry is written.
//! The write is acknowledged when the run completes. Without a replica the graph has only its first
//! three nodes.
//!
//! If the replica's process has ended, its memory is gone, and writes continue without it. If the
//! replica cannot be reached for another reason, it may still have its blocks, which must not
//! become outdated: writes wait until it can be reached again. An adapter cannot tell the two cases
//! apart, so that writes always wait.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tokio::time::timeout;
use tokio_doca::error::{Error as DocaError, ErrorKind, JobError, Reason};
use tokio_doca::graph::{CopyNode, DataNode, Graph, HashNode, Instance, Node, RunError, WriteNode};
use tokio_doca::mem::{BufInventory, BufSlice, RemoteMmap};
use tokio_doca::rdma::RdmaState;
use tokio_doca::sha::{Algorithm, Sha};
use tokio_doca::stream::StreamRdma;
use tokio_doca::{Buf, BufPool, Device, Dma, Mmap, WorkQ};
use zerocopy::IntoBytes;

use super::layout::{ENTRY, Entry, Layout};
use super::{Error, Result};

/// Number of small Bufs. Each client and the replica's follower use two of them.
const SMALL_BUFS: usize = 512;
/// Time in which a connection must report its end after a failed write.
const NOTICED: Duration = Duration::from_secs(5);
/// The number of clients whose latest request is remembered.
const REMEMBERED: usize = 1 << 16;

pub(crate) struct Store {
    pub(crate) device: Device,
    pub(crate) workq: WorkQ,
    pub(crate) layout: Layout,
    pub(crate) sha: Sha,
    dma: Dma,
    mmap: Mmap,
    ranges: BufInventory,
    small: BufPool,
    alone: Path,
    /// The latest version of each block, locked while the block is written or copied.
    pub(crate) blocks: Vec<Mutex<Option<Entry>>>,
    /// The number of each client's latest write request, by the number of the client.
    latest: std::sync::Mutex<HashMap<u64, u64>>,
    pub(crate) replica: watch::Sender<Replica>,
}

/// The primary's view of its replica.
#[derive(Clone)]
pub(crate) enum Replica {
    /// There is no replica, or its process has ended. Writes continue without it.
    None,
    /// The replica cannot be reached. Writes wait.
    CutOff,
    Linked(Arc<Link>),
}

/// A connection to the replica's memory.
pub(crate) struct Link {
    pub(crate) rdma: StreamRdma,
    pub(crate) memory: RemoteMmap,
    path: Path,
}

/// The graph of a write, with the nodes whose inputs each write sets.
struct Path {
    graph: Graph,
    stage: Node<CopyNode>,
    hash: Node<HashNode>,
    seal: Node<DataNode<Seal>>,
    /// The nodes that write the replica's data and entry, if there is a replica.
    replica: Option<(Node<WriteNode>, Node<WriteNode>)>,
}

/// What the user node needs to build the entry of a version: its fields and its destination.
struct Seal {
    version: u64,
    len: usize,
    digest: Buf,
    entry: Buf,
}

impl Path {
    fn new(dma: &Dma, sha: &Sha, replica: Option<&StreamRdma>) -> Result<Path, DocaError> {
        let mut g = Graph::builder();
        let stage = g.dma_copy(dma);
        let hash = g.sha(sha, Algorithm::Sha256);
        let seal = g.user_with(|_, seal: &mut Seal| {
            let mut digest = [0; 32];
            digest.copy_from_slice(&seal.digest.data()?);
            let entry = Entry::new(seal.version, seal.len, digest);
            Ok(seal.entry.extend_from_slice(entry.as_bytes())?)
        });
        g.depends(hash, stage);
        g.depends(seal, hash);
        let replica = replica.map(|rdma| {
            let (data, entry) = (rdma.write_node(&mut g), rdma.write_node(&mut g));
            g.depends(data, stage);
            g.depends(entry, data);
            g.depends(entry, seal);
            (data, entry)
        });
        Ok(Path {
            graph: g.build()?,
            stage,
            hash,
            seal,
            replica,
        })
    }
}

impl Link {
    pub(crate) fn new(store: &Store, rdma: &StreamRdma, memory: RemoteMmap) -> Result<Link> {
        let (has, needs) = (memory.len(), store.layout.bytes());
        if has != needs {
            return Err(format!("the replica has {has} bytes, and this store {needs}").into());
        }
        Ok(Link {
            path: Path::new(&store.dma, &store.sha, Some(rdma))?,
            rdma: rdma.clone(),
            memory,
        })
    }

    /// Returns true if the connection has ended. If the write failed with `ConnectionReset`, waits
    /// a while for that: a dead process may lose its memory a moment before its connection.
    async fn is_lost(&self, error: &Error) -> bool {
        let failed = error.downcast_ref::<RunError>().map(RunError::kind);
        if failed == Some(ErrorKind::ConnectionReset) {
            let mut watch = self.rdma.watch();
            let ended = watch.wait_for(|state| state != RdmaState::Connected);
            _ = timeout(NOTICED, ended).await;
        }
        self.rdma.state() != RdmaState::Connected
    }
}

/// Returns true if the replica's process has ended, whether its Rdma or its memory reported it.
fn has_ended(error: JobError) -> bool {
    matches!(error.reason(), Reason::PeerGone | Reason::ExporterGone)
}

/// The Bufs and the graph instance that one write at a time needs.
pub(crate) struct Lane {
    digest: Buf,
    entry: Buf,
    /// A graph instance, and the link to the replica that it writes to, or `None` without a
    /// replica.
    instance: Option<(Option<Arc<Link>>, Instance)>,
}

impl Store {
    pub(crate) fn new(device: &Device, layout: Layout) -> Result<Store> {
        let workq = WorkQ::builder().build()?;
        let small = Mmap::builder().device(device).alloc(SMALL_BUFS * ENTRY)?;
        let dma = Dma::builder(device).attach(&workq)?;
        let sha = Sha::builder(device).attach(&workq)?;
        Ok(Store {
            mmap: Mmap::builder().device(device).alloc(layout.bytes())?,
            ranges: BufInventory::with_capacity(SMALL_BUFS),
            small: BufPool::builder(&small).element_size(ENTRY).build()?,
            alone: Path::new(&dma, &sha, None)?,
            blocks: (0..layout.blocks).map(|_| Mutex::default()).collect(),
            latest: std::sync::Mutex::default(),
            replica: watch::Sender::new(Replica::None),
            device: device.clone(),
            workq,
            layout,
            dma,
            sha,
        })
    }

    pub(crate) async fn small(&self) -> Buf {
        self.small.alloc().await
    }

    pub(crate) async fn lane(&self) -> Lane {
        Lane {
            digest: self.small().await,
            entry: self.small().await,
            instance: None,
        }
    }

    /// Returns a Buf over a range of the memory: all data if `filled`, otherwise all tailroom.
    pub(crate) fn range(&self, range: std::ops::Range<usize>, filled: bool) -> Result<Buf> {
        Ok(match filled {
            true => self.ranges.buf_filled(&self.mmap, range)?,
            false => self.ranges.buf(&self.mmap, range)?,
        })
    }

    /// Returns the data of a version.
    pub(crate) fn data(&self, block: usize, entry: &Entry) -> Result<Buf> {
        let at = self.layout.data(block, entry.version()).start;
        self.range(at..at + entry.len(), true)
    }

    /// Copies the latest version of a block, and returns its number. If the block was never
    /// written, copies nothing and returns 0.
    pub(crate) async fn copy(&self, block: usize, to: &Buf) -> Result<u64> {
        // The lock is held during the copy: two writes later the slot would be overwritten.
        let current = self.blocks[block].lock().await;
        let Some(entry) = &*current else {
            return Ok(0);
        };
        self.dma.copy(&self.data(block, entry)?, to).await?;
        Ok(entry.version())
    }

    /// Writes a block for a client's request, and returns the version.
    ///
    /// # Errors
    ///
    /// Fails if the device fails, or if the client has sent a later request: a message may arrive
    /// late from a connection that had ended.
    pub(crate) async fn put(
        &self,
        lane: &mut Lane,
        block: usize,
        data: BufSlice,
        (client, id): (u64, u64),
    ) -> Result<u64> {
        const LATE: &str = "a later request was first";
        if self.is_late(client, id) {
            return Err(LATE.into());
        }
        let mut replicas = self.replica.subscribe();
        loop {
            // The block is not locked during this wait, so that it can be read.
            let reachable = replicas.wait_for(|known| !matches!(known, Replica::CutOff));
            let link = match reachable.await?.clone() {
                Replica::Linked(link) => Some(link),
                _ => None,
            };
            let mut current = self.blocks[block].lock().await;
            if !self.is_latest(client, id) {
                return Err(LATE.into());
            }
            let version = current.map_or(1, |entry| entry.version() + 1);
            let error = match lane.write(self, link.as_ref(), block, &data, version).await {
                Ok(entry) => {
                    *current = Some(entry);
                    return Ok(version);
                }
                Err(error) => error,
            };
            drop(current);
            match link {
                Some(link) if link.is_lost(&error).await => self.lose(&link),
                _ => return Err(error),
            }
        }
    }

    /// Records that the link has failed, unless a newer link has replaced it.
    pub(crate) fn lose(&self, link: &Arc<Link>) {
        let known = match link.rdma.state() {
            RdmaState::Error(error) if has_ended(error) => Replica::None,
            _ => Replica::CutOff,
        };
        self.replica.send_if_modified(|replica| {
            let is_this = matches!(replica, Replica::Linked(other) if Arc::ptr_eq(other, link));
            if is_this {
                *replica = known;
            }
            is_this
        });
    }

    /// Returns true if the client has sent no later request.
    fn is_latest(&self, client: u64, id: u64) -> bool {
        let latest = self.latest.lock().expect("no holder panics");
        latest.get(&client).is_none_or(|latest| *latest == id)
    }

    fn is_late(&self, client: u64, id: u64) -> bool {
        let mut latest = self.latest.lock().expect("no holder panics");
        if latest.len() == REMEMBERED {
            latest.clear();
        }
        let before = latest.entry(client).or_default();
        let late = *before >= id;
        *before = id.max(*before);
        late
    }
}

impl Lane {
    async fn write(
        &mut self,
        store: &Store,
        link: Option<&Arc<Link>>,
        block: usize,
        data: &BufSlice,
        version: u64,
    ) -> Result<Entry> {
        let path = link.map_or(&store.alone, |link| &link.path);
        let (for_link, mut instance) = match self.instance.take() {
            Some((other, instance)) if other.as_ref().map(Arc::as_ptr) == link.map(Arc::as_ptr) => {
                (other, instance)
            }
            _ => (link.cloned(), path.graph.instance()?),
        };
        let layout = store.layout;
        let (at, len) = (layout.data(block, version).start, data.len());
        let place = store.range(at..at + len, false)?;
        self.digest.reset_data_len()?;
        self.entry.reset_data_len()?;
        instance.set(path.stage, (data, &place))?;
        instance.set(path.hash, (&place, &self.digest))?;
        let seal = Seal {
            version,
            len,
            digest: self.digest.clone(),
            entry: self.entry.clone(),
        };
        instance.set(path.seal, seal)?;
        if let (Some(link), Some((data, entry))) = (link, path.replica) {
            instance.set(data, (&place, link.memory.buf(at..at + len)?))?;
            let there = link.memory.buf(layout.entry(block, version))?;
            instance.set(entry, (&self.entry, there))?;
        }
        instance.run().await?;
        self.instance = Some((for_link, instance));
        let entry = Entry::decode(&self.entry.data()?);
        entry.ok_or_else(|| Error::from("the entry was just made"))
    }
}
