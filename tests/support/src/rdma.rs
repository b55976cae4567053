//! What the tests of remote operations share: a side with private memory and exported memory, and
//! how two sides connect.

use std::time::Duration;

use tokio_doca::{
    Buf, BufPool, Device, Mmap, Mode, Rdma, WorkQ,
    error::{JobError, Reason},
    mem::{Access, BufInventory, RemoteMmap},
    rdma::RdmaState,
};

use super::device::{defers, under_test};
use super::peer::{Peer, hear, hex, say, unhex};
use super::{ELEMENT, LIMIT, until};

/// All accesses that a peer can have.
pub const REMOTE: Access = Access::RDMA_READ
    .union(Access::RDMA_WRITE)
    .union(Access::RDMA_ATOMIC);

/// The number of bytes that a side exports.
pub const SHARED: usize = 1 << 20;

/// The settings of a side.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub defer: bool,
    pub mode: Mode,
    /// The permissions of the `Rdma` context.
    pub permissions: Access,
    /// The access flags of the exported memory.
    pub access: Access,
    pub rnr_timeout: Duration,
    pub receives: u32,
}

impl Setup {
    /// Makes a setup with all permissions.
    pub fn new(defer: bool, mode: Mode) -> Setup {
        Setup {
            defer,
            mode,
            permissions: REMOTE,
            access: REMOTE,
            rnr_timeout: LIMIT,
            receives: 16,
        }
    }

    /// Returns the setups for event-driven, busy-poll and hybrid mode, on the software device each
    /// inline and deferred.
    pub fn all() -> Vec<Setup> {
        let spin = Duration::from_micros(50);
        let modes = [Mode::EventDriven, Mode::BusyPoll, Mode::Hybrid { spin }];
        let each = |mode| defers().iter().map(move |&defer| Setup::new(defer, mode));
        modes.into_iter().flat_map(each).collect()
    }

    pub fn rnr(self, rnr_timeout: Duration) -> Setup {
        Setup {
            rnr_timeout,
            ..self
        }
    }
}

/// One side of a connection.
pub struct Side {
    pub device: Device,
    /// Private memory for messages.
    pub pool: BufPool,
    /// The exported memory, which the peer may access.
    pub mmap: Mmap,
    /// All of `mmap`, as a Buf of this side.
    pub shared: Buf,
    pub workq: WorkQ,
    pub rdma: Rdma,
}

impl Side {
    pub fn new(setup: Setup) -> Side {
        let device = under_test(setup.defer);
        let workq = WorkQ::builder().depth(32).mode(setup.mode).build().unwrap();
        Side::on(&device, &workq, setup)
    }

    pub fn on(device: &Device, workq: &WorkQ, setup: Setup) -> Side {
        let memory = Mmap::builder().device(device).alloc(64 * ELEMENT).unwrap();
        let pool = BufPool::builder(&memory).element_size(ELEMENT);
        let access = Access::LOCAL_READ_WRITE | setup.access;
        let mmap = Mmap::builder().device(device).access(access);
        let mmap = mmap.alloc(SHARED).unwrap();
        Side {
            pool: pool.build().unwrap(),
            shared: BufInventory::with_capacity(1)
                .buf_filled(&mmap, ..)
                .unwrap(),
            mmap,
            rdma: context(device, workq, setup),
            device: device.clone(),
            workq: workq.clone(),
        }
    }

    /// Allocates a Buf that holds `bytes`.
    pub fn filled(&self, bytes: &[u8]) -> Buf {
        let buf = self.empty();
        buf.extend_from_slice(bytes).unwrap();
        buf
    }

    pub fn empty(&self) -> Buf {
        self.pool.try_alloc().unwrap()
    }

    /// Sends a message with these bytes.
    pub async fn send(&self, bytes: &[u8]) -> Result<(), JobError> {
        let buf = self.filled(bytes);
        assert_eq!(self.rdma.send(&buf).await?, bytes.len());
        Ok(())
    }

    /// Receives a message, and returns its bytes.
    pub async fn recv(&self) -> Result<Vec<u8>, JobError> {
        let buf = self.empty();
        let received = self.rdma.recv(&buf).await?;
        let bytes = buf.data().unwrap().to_vec();
        assert_eq!(received.len, bytes.len());
        Ok(bytes)
    }

    /// Exports the memory, and returns the blob for the peer.
    pub fn memory(&self) -> Vec<u8> {
        self.mmap.export_rdma(&self.device).unwrap()
    }

    pub fn import(&self, blob: &[u8]) -> RemoteMmap {
        let import = RemoteMmap::from_export(&self.device, blob);
        import.timeout(LIMIT).wait().unwrap()
    }

    /// Returns `len` bytes of the exported memory, from offset `from` on.
    pub fn bytes(&self, from: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.shared.copy_out(from, &mut bytes).unwrap();
        bytes
    }

    /// Runs in the child: exchanges connection blobs with the parent, and connects. If `first` is
    /// true, the child connects before the parent.
    pub fn meet_parent(&self, first: bool) {
        say(&hex(&self.rdma.export().unwrap()));
        let blob = unhex(&hear().unwrap());
        if !first {
            hear().unwrap();
        }
        self.rdma.connect(&blob).timeout(LIMIT).wait().unwrap();
        say("connected");
        if first {
            hear().unwrap();
        }
    }

    /// Runs in the parent: exchanges connection blobs with the child, and connects. If `first` is
    /// true, the parent connects before the child.
    pub fn meet_child(&self, peer: &mut Peer, first: bool) {
        let blob = unhex(&peer.hear());
        peer.say(&hex(&self.rdma.export().unwrap()));
        let connect = || self.rdma.connect(&blob).timeout(LIMIT).wait().unwrap();
        if first {
            connect();
            peer.say("connected");
            assert_eq!(peer.hear(), "connected");
        } else {
            assert_eq!(peer.hear(), "connected");
            connect();
            peer.say("connected");
        }
    }

    /// Waits until nothing is in flight, and all Bufs are back in the pool.
    pub async fn all_back(&self) {
        until("nothing is in flight", || self.workq.in_flight() == 0).await;
        let all = self.pool.elements();
        until("the pool is full again", || {
            super::free_bufs(&self.pool) == all
        })
        .await;
    }

    /// Waits until the context has failed, and returns the error.
    pub async fn failed(&self) -> JobError {
        if self.workq.mode() == Mode::BusyPoll {
            let error = || matches!(self.rdma.state(), RdmaState::Error(_));
            until("it fails", error).await;
        }
        let mut watch = self.rdma.watch();
        let error = watch.wait_for(|state| matches!(state, RdmaState::Error(_)));
        let state = super::in_time("the watch", error).await;
        match state.expect("the Rdma is there") {
            RdmaState::Error(cause) => cause,
            state => unreachable!("{state:?}"),
        }
    }
}

/// Makes an `Rdma` context with the settings of `setup`.
pub fn context(device: &Device, workq: &WorkQ, setup: Setup) -> Rdma {
    Rdma::builder(device)
        .permissions(setup.permissions)
        .send_queue_size(16)
        .recv_queue_size(setup.receives)
        .rnr_timeout(setup.rnr_timeout)
        .connect_timeout(LIMIT)
        .attach(workq)
        .unwrap()
}

/// Connects two contexts of this process.
pub fn connect(one: &Rdma, other: &Rdma) {
    let (first, second) = (one.export().unwrap(), other.export().unwrap());
    one.connect(&second).wait().unwrap();
    other.connect(&first).wait().unwrap();
}

/// Returns the reason of a failed operation, and the cause if it was flushed.
#[track_caller]
pub fn failed<T>(result: Result<T, JobError>) -> (Reason, Option<Reason>) {
    match result {
        Ok(_) => panic!("it did not fail"),
        Err(error) => (error.reason(), error.cause()),
    }
}
