//! What the tests of remote operations share: one side with memory of its own and memory that it
//! exports, and how two of them meet.

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

/// All that a peer may be permitted.
pub const REMOTE: Access = Access::RDMA_READ
    .union(Access::RDMA_WRITE)
    .union(Access::RDMA_ATOMIC);

/// Bytes that a side exports.
pub const SHARED: usize = 1 << 20;

/// How a side is set up.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub defer: bool,
    pub mode: Mode,
    /// Of the Rdma.
    pub permissions: Access,
    /// Of the memory.
    pub access: Access,
    pub rnr_timeout: Duration,
    pub receives: u32,
}

impl Setup {
    /// With all permissions.
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

    /// Event-driven, busy and hybrid; of the software device both modes.
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

/// One side.
pub struct Side {
    pub device: Device,
    /// Private memory for messages.
    pub pool: BufPool,
    /// What the peer may reach.
    pub mmap: Mmap,
    /// All of it, as this side sees it.
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

    /// A Buf that holds `bytes`.
    pub fn filled(&self, bytes: &[u8]) -> Buf {
        let buf = self.empty();
        buf.extend_from_slice(bytes).unwrap();
        buf
    }

    pub fn empty(&self) -> Buf {
        self.pool.try_alloc().unwrap()
    }

    /// Sends bytes.
    pub async fn send(&self, bytes: &[u8]) -> Result<(), JobError> {
        let buf = self.filled(bytes);
        assert_eq!(self.rdma.send(&buf).await?, bytes.len());
        Ok(())
    }

    /// Receives bytes.
    pub async fn recv(&self) -> Result<Vec<u8>, JobError> {
        let buf = self.empty();
        let received = self.rdma.recv(&buf).await?;
        let bytes = buf.data().unwrap().to_vec();
        assert_eq!(received.len, bytes.len());
        Ok(bytes)
    }

    /// What the peer imports.
    pub fn memory(&self) -> Vec<u8> {
        self.mmap.export_rdma(&self.device).unwrap()
    }

    pub fn import(&self, blob: &[u8]) -> RemoteMmap {
        let import = RemoteMmap::from_export(&self.device, blob);
        import.timeout(LIMIT).wait().unwrap()
    }

    /// The bytes of the exported memory.
    pub fn bytes(&self, from: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.shared.copy_out(from, &mut bytes).unwrap();
        bytes
    }

    /// In the child: both exchange what they export, and this one connects as `first` says.
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

    /// In the parent. `first` is whether this side connects before the other one does.
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

    /// Every Buf is home, and nothing in flight.
    pub async fn all_back(&self) {
        until("nothing is in flight", || self.workq.in_flight() == 0).await;
        let all = self.pool.elements();
        until("the pool is full again", || {
            super::free_bufs(&self.pool) == all
        })
        .await;
    }

    /// What it failed with, once that was told.
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

/// A context of its own.
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

/// Connects two of this process.
pub fn connect(one: &Rdma, other: &Rdma) {
    let (first, second) = (one.export().unwrap(), other.export().unwrap());
    one.connect(&second).wait().unwrap();
    other.connect(&first).wait().unwrap();
}

/// What it failed with, and for which cause if it was flushed.
#[track_caller]
pub fn failed<T>(result: Result<T, JobError>) -> (Reason, Option<Reason>) {
    match result {
        Ok(_) => panic!("it did not fail"),
        Err(error) => (error.reason(), error.cause()),
    }
}
