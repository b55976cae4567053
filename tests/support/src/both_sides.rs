//! Two connected contexts in one process, on two devices or on the same one, with their memory.

use tokio_doca::{
    Buf, BufPool, Device, Mmap, Mode, Rdma, WorkQ,
    mem::{Access, RemoteBuf, RemoteMmap},
    rdma::{RdmaBuilder, RdmaState},
};

pub const ELEMENT: usize = 256;

/// One side of a connection: a context on a WorkQ of its own, and memory.
pub struct Side {
    pub device: Device,
    pub workq: WorkQ,
    pub rdma: Rdma,
    pub pool: BufPool,
}

/// Returns all accesses: local ones, and all that a peer can have.
pub fn all_access() -> Access {
    Access::LOCAL_READ_WRITE | Access::RDMA_READ | Access::RDMA_WRITE | Access::RDMA_ATOMIC
}

impl Side {
    pub fn new(device: &Device, mode: Mode) -> Side {
        Side::with(device, mode, |builder| builder.permissions(all_access()))
    }

    pub fn with(
        device: &Device,
        mode: Mode,
        build: impl FnOnce(RdmaBuilder<'_>) -> RdmaBuilder<'_>,
    ) -> Side {
        let workq = WorkQ::builder().depth(32).mode(mode).build().unwrap();
        let mmap = Mmap::builder().device(device).alloc(64 * ELEMENT).unwrap();
        let pool = BufPool::builder(&mmap).element_size(ELEMENT).build();
        Side {
            device: device.clone(),
            rdma: build(Rdma::builder(device)).attach(&workq).unwrap(),
            pool: pool.unwrap(),
            workq,
        }
    }

    pub fn filled(&self, bytes: &[u8]) -> Buf {
        let buf = self.empty();
        buf.extend_from_slice(bytes).unwrap();
        buf
    }

    pub fn empty(&self) -> Buf {
        self.pool.try_alloc().unwrap()
    }

    /// Returns the number of free Bufs in the pool.
    pub fn free_bufs(&self) -> usize {
        let all: Vec<Buf> = std::iter::from_fn(|| self.pool.try_alloc().ok()).collect();
        all.len()
    }
}

/// Makes two sides on a device, connected to each other.
pub fn pair(device: &Device, mode: Mode) -> (Side, Side) {
    let sides = (Side::new(device, mode), Side::new(device, mode));
    connect(&sides.0.rdma, &sides.1.rdma);
    sides
}

pub fn connect(one: &Rdma, other: &Rdma) {
    let blobs = (one.export().unwrap(), other.export().unwrap());
    one.connect(&blobs.1).wait().unwrap();
    other.connect(&blobs.0).wait().unwrap();
    assert_eq!([one.state(), other.state()], [RdmaState::Connected; 2]);
}

/// Exports memory of `owner` with this access. Returns it with the range as `user` imports it.
pub fn remote(owner: &Side, user: &Side, len: usize, access: Access) -> (Mmap, RemoteBuf) {
    let builder = Mmap::builder().device(&owner.device).access(access);
    let mmap = builder.alloc(len).unwrap();
    let blob = mmap.export_rdma(&owner.device).unwrap();
    let remote = RemoteMmap::from_export(&user.device, &blob).wait().unwrap();
    (mmap, remote.buf(..).unwrap())
}
