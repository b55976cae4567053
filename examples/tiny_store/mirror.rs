//! A store whose blocks are replicated to another process.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_doca::mem::{Access, RemoteMmap};
use tokio_doca::rdma::RdmaState;
use tokio_doca::{Buf, Device, Mmap, Rdma, WorkQ};

use crate::store::{BLOCKS, Error, MEMORY, Result, Store, data_at, entry_at};

/// How long the other side may take to connect.
const LIMIT: Duration = Duration::from_secs(5);
/// The maximum number of peers that have connected but are not primaries yet. If one more connects,
/// the oldest is dropped.
const ARRIVING: usize = 32;
/// The time that each of these peers has for its exchange, however many peers connect.
const SPARED: Duration = Duration::from_millis(100);
/// The access of a primary to the memory of its replica.
const PRIMARY_MAY: Access = Access::RDMA_READ.union(Access::RDMA_WRITE);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(100);

/// The state that a replica needs to admit a primary.
struct Replica {
    device: Device,
    workq: WorkQ,
    blob: Vec<u8>,
    place: Semaphore,
}

/// Runs a replica, which lends its memory to one primary after the other and never uses it itself.
pub(crate) async fn lend(device: &Device, listener: TcpListener) -> Result<()> {
    let memory = Mmap::builder()
        .device(device)
        .access(Access::LOCAL_READ_WRITE | PRIMARY_MAY)
        .alloc(MEMORY)?;
    let replica = Arc::new(Replica {
        device: device.clone(),
        workq: WorkQ::builder().build()?,
        blob: memory.export_rdma(device)?,
        place: Semaphore::new(1),
    });
    let mut peers = JoinSet::new(); // ends with this future
    let mut arriving: VecDeque<(Instant, oneshot::Sender<()>)> = VecDeque::new();
    loop {
        let accepted = listener.accept().await;
        arriving.retain(|(_, peer)| !peer.is_closed());
        let are_many = accepted.is_err() || arriving.len() == ARRIVING;
        if let Some((since, oldest)) = arriving.front_mut().filter(|_| are_many) {
            // Newer peers wait in the kernel's backlog meanwhile.
            _ = timeout_at(*since + SPARED, oldest.closed()).await;
            arriving.retain(|(_, peer)| !peer.is_closed());
            if accepted.is_err() || arriving.len() == ARRIVING {
                arriving.pop_front(); // a newer peer needs its descriptors
            }
        }
        let Ok((tcp, _)) = accepted else {
            sleep(PAUSE).await; // no descriptor is free, for example
            continue;
        };
        let (stays, leaves) = oneshot::channel();
        arriving.push_back((Instant::now(), stays));
        let replica = Arc::clone(&replica);
        // Each peer has its own task, so that a silent stranger delays no other peer.
        peers.spawn(async move {
            if let Err(error) = replica.serve(tcp, leaves).await {
                eprintln!("not a primary: {error}");
            }
        });
        while peers.try_join_next().is_some() {}
    }
}

impl Replica {
    /// Admits a peer and lends it the memory until it ends. `leaves` completes if the peer must
    /// make way for newer peers before it is admitted.
    async fn serve(&self, mut tcp: TcpStream, leaves: oneshot::Receiver<()>) -> Result<()> {
        let met = async {
            tcp.peek(&mut [0]).await?; // a silent peer has only a socket
            let rdma = Rdma::builder(&self.device)
                .permissions(PRIMARY_MAY)
                .attach(&self.workq)?;
            rdma.handshake_accept(&mut tcp).await?;
            // The blob has the key to the memory. It is sent only once the previous primary has
            // ended.
            let place = self.place.acquire().await?;
            tcp.write_u16(self.blob.len() as u16).await?;
            tcp.write_all(&self.blob).await?;
            Ok::<_, Error>((rdma, place))
        };
        let (rdma, _place) = tokio::select! {
            met = timeout(LIMIT, met) => met??,
            _ = leaves => return Err("newer peers have come".into()),
        };
        eprintln!("a primary has come");
        // The primary now reads and writes the memory, and sends nothing else until it ends.
        let mut watch = rdma.watch();
        tokio::select! {
            _ = tcp.read_u8() => {}
            _ = watch.wait_for(|state| state != RdmaState::Connected) => {}
        }
        eprintln!("the primary has gone");
        Ok(())
    }
}

/// The primary's connection to the replica's memory.
struct Link {
    rdma: Rdma,
    memory: RemoteMmap,
    /// Closes with the primary, which tells the replica that the primary has gone.
    _tcp: TcpStream,
}

impl Link {
    async fn connect(store: &Store, addr: SocketAddr) -> Result<Link> {
        let mut tcp = TcpStream::connect(addr).await?;
        let rdma = Rdma::builder(&store.device).attach(&store.workq)?;
        rdma.handshake_connect(&mut tcp).await?;
        let mut blob = vec![0; tcp.read_u16().await?.into()];
        tcp.read_exact(&mut blob).await?;
        let memory = RemoteMmap::from_export(&store.device, &blob).await?;
        Ok(Link {
            rdma,
            memory,
            _tcp: tcp,
        })
    }

    async fn write_data(&self, block: usize, version: u64, data: &Buf) -> Result<()> {
        let to = self.memory.buf(data_at(block, version))?;
        self.rdma.write(data, &to).await?;
        Ok(())
    }

    async fn write_entry(&self, block: usize, version: u64, entry: &Buf) -> Result<()> {
        let to = self.memory.buf(entry_at(block, version))?;
        self.rdma.write(entry, &to).await?;
        Ok(())
    }
}

/// A store, and its current replica if there is one.
pub(crate) struct Mirror {
    pub(crate) store: Store,
    link: watch::Sender<Option<Arc<Link>>>,
}

impl Mirror {
    /// Makes a mirror. If there is a replica, first loads the blocks that an earlier primary has
    /// left there.
    pub(crate) async fn new(store: Store, replica: Option<SocketAddr>) -> Result<Arc<Mirror>> {
        let link = watch::Sender::new(None);
        let mirror = Arc::new(Mirror { store, link });
        if let Some(addr) = replica {
            let link = timeout(LIMIT, Link::connect(&mirror.store, addr)).await;
            let link = link.unwrap_or_else(|_| Err("it has a primary, or does not answer".into()));
            let link = link.map_err(|error| format!("the replica {addr}: {error}"))?;
            let all = mirror.store.destination(0..MEMORY)?;
            link.rdma.read(&link.memory.buf(..)?, &all).await?;
            mirror.store.recover().await?;
            mirror.link.send_replace(Some(Arc::new(link)));
            // The task holds a `Weak`: an `Arc` would keep the store alive for ever.
            tokio::spawn(follow(Arc::downgrade(&mirror), addr));
        }
        Ok(mirror)
    }

    pub(crate) async fn read(&self, block: usize) -> Result<Buf> {
        self.store.read(block).await
    }

    /// Writes a block to the local memory, and to the replica if there is one.
    pub(crate) async fn write(&self, block: usize, data: &Buf) -> Result<()> {
        let mut version = self.store.lock(block).await?;
        let next = *version + 1;
        let link = self.link.borrow().clone();
        let here = self.store.put(block, next, data);
        match link {
            None => drop(here.await?),
            Some(link) => {
                // The copy and the RDMA write run concurrently: both only read `data`.
                let there = link.write_data(block, next, data);
                let (here, there) = tokio::join!(here, there);
                let entry = here?;
                let there = match there {
                    Ok(()) => link.write_entry(block, next, &entry).await,
                    Err(error) => Err(error),
                };
                if let Err(error) = there {
                    self.lose(&Arc::downgrade(&link), &error.to_string());
                }
            }
        }
        *version = next;
        Ok(())
    }

    /// Drops the link to the lost replica, and continues without one.
    fn lose(&self, lost: &Weak<Link>, why: &str) {
        self.link.send_if_modified(|link| {
            let is_this = link
                .as_ref()
                .is_some_and(|it| Weak::ptr_eq(&Arc::downgrade(it), lost));
            if is_this {
                eprintln!("the replica is lost: {why}");
                *link = None;
            }
            is_this
        });
    }

    /// Brings a replica up to date that is new or was cut off, while clients write.
    async fn push(&self, link: &Link) -> Result<()> {
        for block in 0..BLOCKS {
            let version = self.store.lock(block).await?;
            if *version > 0 {
                let data = self.store.source(data_at(block, *version))?;
                link.write_data(block, *version, &data).await?;
                let entry = self.store.source(entry_at(block, *version))?;
                link.write_entry(block, *version, &entry).await?;
            }
        }
        Ok(())
    }
}

/// Waits until the replica has gone, then connects to the next one at its address. Ends with the
/// store.
async fn follow(mirror: Weak<Mirror>, addr: SocketAddr) {
    while let Some(this) = mirror.upgrade() {
        let link = this.link.borrow().clone();
        if let Some(link) = link {
            let (mut watch, watched) = (link.rdma.watch(), Arc::downgrade(&link));
            drop((this, link)); // the store and its connection may end meanwhile
            let ended = watch.wait_for(|state| state != RdmaState::Connected).await;
            let Some(this) = mirror.upgrade() else { return };
            match ended {
                Some(RdmaState::Error(why)) => this.lose(&watched, &why.to_string()),
                _ => this.lose(&watched, "its connection was closed"),
            }
        } else if let Ok(Ok(link)) = timeout(LIMIT, Link::connect(&this.store, addr)).await {
            let link = Arc::new(link);
            this.link.send_replace(Some(Arc::clone(&link))); // first: new writes go there as well
            match this.push(&link).await {
                Ok(()) => eprintln!("the replica is whole"),
                Err(error) => {
                    this.lose(&Arc::downgrade(&link), &error.to_string());
                    sleep(PAUSE).await;
                }
            }
        } else {
            drop(this);
            sleep(PAUSE).await;
        }
    }
}
