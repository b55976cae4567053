//! A store whose blocks another process has as well.

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
/// The most peers that have connected and are no primaries yet. If one more comes, the oldest goes.
const ARRIVING: usize = 32;
/// How long each of them has for its exchange, however many come.
const SPARED: Duration = Duration::from_millis(100);
/// What a primary may do with the memory of its replica.
const PRIMARY_MAY: Access = Access::RDMA_READ.union(Access::RDMA_WRITE);
/// How long to wait before the next try.
const PAUSE: Duration = Duration::from_millis(100);

/// What a replica needs to meet a primary.
struct Replica {
    device: Device,
    workq: WorkQ,
    blob: Vec<u8>,
    place: Semaphore,
}

/// The replica: lends memory to one primary after the other. It does nothing with it itself.
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
        // A stranger that says nothing holds up its own task alone.
        peers.spawn(async move {
            if let Err(error) = replica.serve(tcp, leaves).await {
                eprintln!("not a primary: {error}");
            }
        });
        while peers.try_join_next().is_some() {}
    }
}

impl Replica {
    /// Meets a peer, unless it has to leave before, and lends it the memory until it ends.
    async fn serve(&self, mut tcp: TcpStream, leaves: oneshot::Receiver<()>) -> Result<()> {
        let met = async {
            tcp.peek(&mut [0]).await?; // one that says nothing has a socket alone
            let rdma = Rdma::builder(&self.device)
                .permissions(PRIMARY_MAY)
                .attach(&self.workq)?;
            rdma.handshake_accept(&mut tcp).await?;
            // The key to the memory is in the blob: the primary before this one has ended.
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
        // The primary says nothing more, on either connection, until it ends.
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
    /// Its end tells the replica that this primary has gone.
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

/// A store, and the replica that it has at the moment.
pub(crate) struct Mirror {
    pub(crate) store: Store,
    link: watch::Sender<Option<Arc<Link>>>,
}

impl Mirror {
    /// Takes what a primary before this one has left in the replica, if there is one.
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
            // A task that had the Arc itself would keep the store for ever.
            tokio::spawn(follow(Arc::downgrade(&mirror), addr));
        }
        Ok(mirror)
    }

    pub(crate) async fn read(&self, block: usize) -> Result<Buf> {
        self.store.read(block).await
    }

    /// Writes a block here and to the replica, if there is one.
    pub(crate) async fn write(&self, block: usize, data: &Buf) -> Result<()> {
        let mut version = self.store.lock(block).await?;
        let next = *version + 1;
        let link = self.link.borrow().clone();
        let here = self.store.put(block, next, data);
        match link {
            None => drop(here.await?),
            Some(link) => {
                // Both at once: each has a lease for reading.
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

    /// Goes on without a replica.
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

/// Waits until the replica has gone, and then for the next one at its address. Ends with the store.
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
