//! The memory that the server lends, and the client's operations on it.

use std::fmt::Display;

use tokio_doca::error::{Error, ErrorKind, JobError};
use tokio_doca::mem::{Access, BufInventory, RemoteMmap};
use tokio_doca::stream::{RdmaStream, StreamOptions, StreamRdma};
use tokio_doca::{Buf, Device, Mmap};

use super::rows::{Fault, Found};
use crate::failure::text;

/// The size of the lent memory in bytes.
pub(super) const LENT: usize = 4096;

const REMOTE: Access = Access::RDMA_READ
    .union(Access::RDMA_WRITE)
    .union(Access::RDMA_ATOMIC);

/// The settings of the streams of both sides.
pub(super) fn options(connections: usize) -> StreamOptions {
    let options = StreamOptions::new().connections(connections);
    options.permissions(REMOTE)
}

/// Lends new memory, full of zeros, to the peer of this stream. Returns the memory and its export
/// blob.
///
/// # Errors
///
/// Returns the reason why there is no memory, as a sentence.
pub(super) fn lend(device: &Device, stream: &RdmaStream) -> Result<(Mmap, Vec<u8>), String> {
    if stream.rdma().is_none() {
        return Err("the stream has no RDMA".to_owned());
    }
    let mmap = Mmap::builder().device(device);
    let access = Access::LOCAL_READ_WRITE | REMOTE;
    let lent = mmap.access(access).alloc(LENT).and_then(|mmap| {
        let blob = mmap.export_rdma(device)?;
        Ok((mmap, blob))
    });
    lent.map_err(|error| text(&error))
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        fault(error.kind(), text(&error))
    }
}

impl From<JobError> for Fault {
    fn from(error: JobError) -> Fault {
        fault(error.kind(), error)
    }
}

fn fault(kind: ErrorKind, text: impl Display) -> Fault {
    match kind {
        ErrorKind::NotSupported => Fault::Lacks(text.to_string()),
        // A failed operation ends the connection, so that the stream is lost.
        _ => Fault::Lost(text.to_string()),
    }
}

/// The memory of the server, as imported by the client.
pub(super) struct Lent {
    rdma: StreamRdma,
    remote: RemoteMmap,
    src: Buf,
    dst: Buf,
}

impl Lent {
    pub(super) async fn new(device: &Device, rdma: StreamRdma, blob: &[u8]) -> Result<Lent, Fault> {
        let remote = RemoteMmap::from_export(device, blob).await?;
        if remote.len() != LENT {
            let text = format!("the peer lends {} bytes, not {LENT}", remote.len());
            return Err(Fault::Lost(text));
        }
        let mmap = Mmap::builder().device(device).alloc(2 * LENT)?;
        let bufs = BufInventory::with_capacity(2);
        let (src, dst) = (bufs.buf(&mmap, ..LENT)?, bufs.buf(&mmap, LENT..)?);
        let mut bytes = vec![0; LENT];
        getrandom::fill(&mut bytes)
            .map_err(|error| Fault::Lost(format!("cannot get random bytes: {error}")))?;
        src.extend_from_slice(&bytes)?;
        Ok(Lent {
            rdma,
            remote,
            src,
            dst,
        })
    }

    /// Writes the whole memory.
    pub(super) async fn write(&self) -> Result<Found, Fault> {
        self.rdma.write(&self.src, &self.remote.buf(..)?).await?;
        Ok(Some(format!("{LENT} bytes")))
    }

    /// Reads the whole memory, and compares it with what was written.
    pub(super) async fn read(&self) -> Result<Found, Fault> {
        self.rdma.read(&self.remote.buf(..)?, &self.dst).await?;
        let [mut wanted, mut found] = [(); 2].map(|()| vec![0; LENT]);
        self.src.copy_out(0, &mut wanted)?;
        self.dst.copy_out(0, &mut found)?;
        match wanted == found {
            true => Ok(Some(format!("{LENT} bytes, which are those written"))),
            false => {
                let text = "the bytes read are not those that were written";
                Err(Fault::Differs(text.to_owned()))
            }
        }
    }

    /// Makes a fetch-and-add and a compare-and-swap on the first 8 bytes.
    pub(super) async fn atomics(&self) -> Result<Found, Fault> {
        if !self.rdma.caps().atomics {
            let text = format!("device {} has no atomics", self.rdma.device().info().name());
            return Err(Fault::Lacks(text));
        }
        let (mut bytes, remote) = ([0; 8], self.remote.buf(..8)?);
        self.src.copy_out(0, &mut bytes)?;
        let first = u64::from_ne_bytes(bytes);
        let added = self.rdma.fetch_add(&remote, 1).await?;
        let second = first.wrapping_add(1);
        let swapped = self.rdma.compare_swap(&remote, second, 0).await?;
        let third = self.rdma.fetch_add(&remote, 0).await?;
        match (added, swapped, third) == (first, second, 0) {
            true => Ok(Some("fetch and add, compare and swap".to_owned())),
            false => {
                let text = "an atomic has answered another value than the memory had";
                Err(Fault::Differs(text.to_owned()))
            }
        }
    }
}
