//! The mistakes of the first week: the tests make each mistake of docs/guide/mistakes.md, and check
//! that the error says what its row says. (Mistakes that the compiler finds are doctests in that
//! chapter.)

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, future::join};
use support::device::{needs_soft, under_test};
use support::loopback::Loopback;
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_doca::error::JobError;
use tokio_doca::mem::{Access, BufInventory, RemoteMmap};
use tokio_doca::rdma::{RdmaBuilder, RecvPool};
use tokio_doca::soft::Soft;
use tokio_doca::stream::{RdmaConnector, RdmaListener, RdmaStream, StreamOptions};
use tokio_doca::{Buf, BufPool, Device, Dma, Mmap, Rdma, WorkQ};

/// The objects that exist before a mistake is made.
struct Beginner {
    device: Device,
    mmap: Mmap,
    pool: BufPool,
    workq: WorkQ,
    dma: Dma,
}

impl Beginner {
    fn new() -> Beginner {
        let device = under_test(false);
        let mmap = Mmap::builder().device(&device).alloc(1 << 16).unwrap();
        let workq = WorkQ::builder().build().unwrap();
        Beginner {
            pool: BufPool::builder(&mmap).build().unwrap(),
            dma: Dma::builder(&device).attach(&workq).unwrap(),
            device,
            mmap,
            workq,
        }
    }

    fn filled(&self, bytes: &[u8]) -> Buf {
        let buf = self.pool.try_alloc().unwrap();
        buf.extend_from_slice(bytes).unwrap();
        buf
    }

    fn empty(&self) -> Buf {
        self.pool.try_alloc().unwrap()
    }

    fn memory(&self, access: Access) -> Mmap {
        let mmap = Mmap::builder().device(&self.device);
        let mmap = mmap.access(Access::LOCAL_READ_WRITE | access);
        mmap.alloc(4096).unwrap()
    }

    fn rdma(&self) -> RdmaBuilder<'_> {
        Rdma::builder(&self.device)
    }

    async fn pair(&self, one: RdmaBuilder<'_>, other: RdmaBuilder<'_>) -> [Rdma; 2] {
        let [one, other] = [one, other].map(|rdma| rdma.attach(&self.workq).unwrap());
        let blobs = [&one, &other].map(|rdma| rdma.export().unwrap());
        let (here, there) = join(one.connect(&blobs[1]), other.connect(&blobs[0])).await;
        here.and(there).unwrap();
        [one, other]
    }

    async fn import(&self, mmap: &Mmap) -> RemoteMmap {
        let blob = mmap.export_rdma(&self.device).unwrap();
        RemoteMmap::from_export(&self.device, &blob).await.unwrap()
    }

    fn connector(&self) -> RdmaConnector {
        let options = StreamOptions::new().connections(1).timeout(LIMIT);
        options.connector(&self.device, &self.workq).unwrap()
    }

    async fn stream(&self, listener: &RdmaListener) -> (RdmaConnector, RdmaStream, RdmaStream) {
        let addr = listener.tcp_addr().unwrap();
        let connector = self.connector();
        let accept = async { listener.accept().await.unwrap().accept(b"").await };
        let (one, other) = join(connector.connect(addr), accept).await;
        (connector, one.unwrap(), other.unwrap())
    }
}

fn local() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// The errors that each row's mistakes have returned.
#[derive(Default)]
struct Told(BTreeMap<&'static str, Vec<String>>);

impl Told {
    fn note<T>(&mut self, mistake: &'static str, result: Result<T, impl Display>) {
        let Err(error) = result else {
            panic!("{mistake}: nothing was said");
        };
        self.0.entry(mistake).or_default().push(error.to_string());
    }
}

/// Makes the mistakes with copies and their memory.
async fn of_memory(told: &mut Told) {
    let it = Beginner::new();
    for depth in [0, u32::MAX] {
        let built = WorkQ::builder().depth(depth).build();
        told.note("a depth of 0, or of billions", built);
    }
    told.note("memory without a device", Mmap::builder().alloc(4096));
    let (src, dst) = (it.filled(b"hello"), it.empty());
    let other = Dma::builder(&under_test(false)).attach(&it.workq).unwrap();
    told.note("memory of another device", other.copy(&src, &dst).await);
    let full = it.filled(&[1; 4096]);
    told.note(
        "a destination that is too small",
        it.dma.copy(&src, &full).await,
    );
    told.note(
        "one Buf as source and destination",
        it.dma.copy(&src, &src).await,
    );
    let guard = dst.data().unwrap();
    told.note("a guard that is still held", it.dma.copy(&src, &dst).await);
    drop(guard);
    let row = "two pools on one range, an inventory on a pool";
    told.note(row, BufPool::builder(&it.mmap).build());
    let inventory = BufInventory::with_capacity(1);
    told.note(row, inventory.buf(&it.mmap, ..));
    let memory = it.memory(Access::empty());
    let _only = inventory.buf(&memory, 0..10).unwrap();
    told.note("an inventory that is empty", inventory.buf(&memory, 10..20));
    told.note("`Mmap::stop` while something is on it", it.mmap.stop());
    let constant = Mmap::builder().device(&it.device);
    let constant = constant
        .from_bytes(Bytes::from_static(b"0123456789"))
        .unwrap();
    let constant = BufInventory::with_capacity(1).buf(&constant, ..).unwrap();
    let row = "a copy into `Bytes`, which are read only";
    told.note(row, it.dma.copy(&src, &constant).await);
    let shared = it.memory(Access::RDMA_WRITE);
    let lent = BufInventory::with_capacity(1).buf(&shared, ..).unwrap();
    told.note("`data` of memory that a peer may write", lent.data());
    told.note(
        "an export without a permission",
        it.mmap.export_rdma(&it.device),
    );
    let kept = src.clone();
    let bytes = src.into_bytes().unwrap();
    let row = "`into_bytes` while a clone of the Buf writes, or the other way round";
    told.note(row, kept.extend_from_slice(b"more"));
    drop(bytes);
    let (src, clone) = (kept, it.dma.clone());
    told.note(
        "`detach` while a clone has the context",
        it.dma.clone().detach(),
    );
    drop(clone);
    it.workq.shutdown().await.unwrap();
    told.note(
        "an operation after `WorkQ::shutdown`",
        it.dma.copy(&src, &dst).await,
    );
    told.note("an adapter that is not there", Device::open("mlx5_77"));
}

/// Makes the mistakes in connecting two sides.
async fn of_connections(told: &mut Told) {
    let it = Beginner::new();
    let blobs = "the blob of an Mmap for an Rdma, or the other way round";
    let alone = it.rdma().attach(&it.workq).unwrap();
    let memory = it
        .memory(Access::RDMA_READ)
        .export_rdma(&it.device)
        .unwrap();
    told.note(blobs, alone.connect(&memory).await);
    let src = it.filled(b"hello");
    told.note("an Rdma that is not connected", alone.send(&src).await);
    let own = alone.export().unwrap();
    told.note(
        "an Rdma that is connected to itself",
        alone.connect(&own).await,
    );
    let [one, other] = [(); 2].map(|()| it.rdma().attach(&it.workq).unwrap());
    let used = [&one, &other].map(|rdma| rdma.export().unwrap());
    let (here, there) = join(one.connect(&used[1]), other.connect(&used[0])).await;
    here.and(there).unwrap();
    told.note(
        "a third Rdma with a blob that was used",
        alone.connect(&used[0]).await,
    );
}

/// Makes the mistakes with messages and one-sided operations.
async fn of_operations(told: &mut Told) {
    let it = Beginner::new();
    let src = it.filled(b"hello");
    let short = || it.rdma().rnr_timeout(Duration::from_millis(20));
    let [one, _other] = it.pair(short(), it.rdma()).await;
    told.note("a peer that posts no receive", one.send(&src).await);
    let [one, other] = it.pair(it.rdma(), it.rdma()).await;
    let (_, received) = join(one.send(&src), other.recv(())).await;
    told.note("a receive that is too small", received);
    let [_one, other] = it.pair(it.rdma(), it.rdma()).await;
    let full = it.filled(&[1; 4096]);
    told.note("a receive without tailroom", other.recv(&full).await);
    let row = "1,000 receives where 64 can be posted";
    told.note(row, other.recv_stream(&it.pool, 1000).next().await.unwrap());
    let row = "`recv` of an Rdma with a RecvPool, `messages` of one without";
    let shared = it.rdma().recv_pool(&RecvPool::new(&it.pool));
    let [one, other] = it.pair(it.rdma(), shared).await;
    told.note(row, other.recv(it.empty()).await);
    assert!(one.messages().next().await.unwrap().is_err());

    let writes = || it.rdma().permissions(Access::RDMA_WRITE);
    let [one, _other] = it.pair(it.rdma(), writes()).await;
    let read_only = it.import(&it.memory(Access::RDMA_READ)).await;
    let row = "a write to an Mmap that permits no writes";
    told.note(row, one.write(&src, &read_only.buf(..).unwrap()).await);
    let memory = it.memory(Access::RDMA_WRITE);
    let remote = it.import(&memory).await;
    let row = "a range beyond remote memory, or more data than it has";
    assert!(
        remote
            .buf(0..5000)
            .unwrap_err()
            .to_string()
            .contains("4096 bytes")
    );
    told.note(row, one.write(&src, &remote.buf(0..2).unwrap()).await);
    let row = "a Dma for memory that was exported for RDMA";
    told.note(row, it.dma.copy(&src, &remote.buf(..).unwrap()).await);
    let [one, _other] = it.pair(it.rdma(), it.rdma()).await;
    let row = "a write to a peer whose Rdma permits no writes";
    told.note(row, one.write(&src, &remote.buf(..).unwrap()).await);
}

async fn of_streams(told: &mut Told) {
    let it = Beginner::new();
    let row = "a stream option that is out of its range";
    let wide = StreamOptions::new().frame_size(1 << 20);
    told.note(row, wide.connector(&it.device, &it.workq));
    let options = StreamOptions::new().connections(1);
    let listener = options.bind(&it.device, &it.workq, local()).await.unwrap();
    let (connector, one, other) = it.stream(&listener).await;
    let addr = listener.tcp_addr().unwrap();
    told.note(
        "more streams than `connections`",
        connector.connect(addr).await,
    );
    drop((one, other));

    let http = tokio::net::TcpListener::bind(local()).await.unwrap();
    let addr = http.local_addr().unwrap();
    let row = "a connector at a server that is no RdmaListener";
    let connector = it.connector();
    let serve = async {
        let mut client = http.accept().await.unwrap().0;
        let _ = client.read(&mut [0; 4096]).await;
        let answer = b"HTTP/1.1 400 Bad Request\r\n\r\n";
        client.write_all(answer).await.unwrap();
        client
    };
    let (connected, _client) = in_time("http", join(connector.connect(addr), serve)).await;
    told.note(row, connected);
    let hang_up = async { drop(http.accept().await.unwrap().0) };
    let (connected, ()) = in_time("it hangs up", join(connector.connect(addr), hang_up)).await;
    let text = connected.unwrap_err().to_string();
    assert!(
        text.contains("has hung up: it is no RdmaListener"),
        "{text}"
    );
    told.note(
        "a connector at an address without a listener",
        connector.connect(nobody()).await,
    );
    let row = "a CPU that does not exist, for a poll thread";
    told.note(row, it.workq.poll_thread().cpu(99_999).spawn(async || ()));
}

fn without_a_runtime() -> Result<usize, JobError> {
    let soft = Soft::builder().defer(true).build();
    let device = soft.open("pf0").unwrap();
    let mmap = Mmap::builder().device(&device).alloc(1 << 14).unwrap();
    let pool = BufPool::builder(&mmap).build().unwrap();
    let workq = WorkQ::builder().build().unwrap();
    let dma = Dma::builder(&device).attach(&workq).unwrap();
    let (src, dst) = (pool.try_alloc().unwrap(), pool.try_alloc().unwrap());
    src.extend_from_slice(b"hello").unwrap();
    futures::executor::block_on(async { dma.copy(&src, &dst).await })
}

/// Awaits a copy on five runtimes one after the other, all of which exist at the same time.
fn on_five_runtimes() -> Result<usize, JobError> {
    let device = under_test(true);
    let mmap = Mmap::builder().device(&device).alloc(1 << 14).unwrap();
    let pool = BufPool::builder(&mmap).build().unwrap();
    let workq = WorkQ::builder().build().unwrap();
    let dma = Dma::builder(&device).attach(&workq).unwrap();
    let (src, dst) = (pool.try_alloc().unwrap(), pool.try_alloc().unwrap());
    let runtimes = [(); 5].map(|()| runtime());
    let copies = runtimes
        .iter()
        .map(|one| one.block_on(async { dma.copy(&src, &dst).await }));
    copies.last().expect("there are five")
}

/// Makes the mistakes with devices of two kinds, and in a thread that polls and finds no RDMA.
async fn of_devices(told: &mut Told) {
    let it = Beginner::new();
    let (none, other) = (Loopback::without_rdma(), Loopback::device(false).1);
    let row = "a stream between devices of two kinds";
    let options = StreamOptions::new().connections(1);
    let listener = options.bind(&it.device, &it.workq, local()).await.unwrap();
    let addr = listener.tcp_addr().unwrap();
    let workq = WorkQ::builder().build().unwrap();
    let connector = options.connector(&other, &workq).unwrap();
    let accept = async { listener.accept().await?.accept(b"").await.map(drop) };
    let (connected, accepted) = in_time("both", join(connector.connect(addr), accept)).await;
    accepted.unwrap_err();
    told.note(row, connected);
    let row = "a stream over TCP on a thread that polls";
    let connector = options.or_tcp(true).connector(&none, &workq).unwrap();
    // The connect waits on the runtime of another thread.
    let begin = async move || connector.connect(addr).await.map(drop);
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(1).enable_all().build().unwrap();
    let entered = runtime.enter();
    let thread = workq.poll_thread().spawn(begin).unwrap();
    drop(entered);
    told.note(row, thread.join().unwrap());
    runtime.shutdown_background();
}

/// Returns an address of this host at which nothing listens.
fn nobody() -> SocketAddr {
    let free = std::net::TcpListener::bind(local()).unwrap();
    free.local_addr().unwrap()
}

#[test]
fn each_mistake_of_the_guide_is_told_as_it_says() {
    if needs_soft("a connect asks no peer, and adapters are there") {
        return;
    }
    let mut told = Told::default();
    told.note(
        "a job that has to wait, without a runtime",
        without_a_runtime(),
    );
    run(async {
        of_memory(&mut told).await;
        of_connections(&mut told).await;
        of_operations(&mut told).await;
        of_streams(&mut told).await;
        of_devices(&mut told).await;
    });
    told.note("a WorkQ on a fifth runtime", on_five_runtimes());
    let page = include_str!("../../docs/guide/mistakes.md");
    let mut rows = 0;
    for row in page.lines().filter(|line| line.starts_with("| ")).skip(1) {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [mistake, says] = cells[..] else {
            panic!("a row of two cells: {row}");
        };
        let Some(errors) = told.0.remove(mistake) else {
            panic!("nobody makes this mistake: {mistake}");
        };
        let begins = says.split(" ...").next().unwrap();
        assert!(begins.len() > 10, "{row}");
        for error in errors {
            assert!(
                error.contains(begins),
                "{mistake}: {error:?} and not {says:?}"
            );
        }
        rows += 1;
    }
    assert!(rows >= 30, "{rows} rows");
    assert!(told.0.is_empty(), "the guide lacks {:?}", told.0);
}
