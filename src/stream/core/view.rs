//! The part of the connection below a stream that the application may use: it has no method that
//! would take a frame of the stream, or end its connection.

use std::fmt;
use std::time::Duration;

use crate::device::{Access, Device, Path, RdmaCaps, Transport};
use crate::mem::{MaybeDestination, MaybeRemote, MaybeSource};
use crate::ops::graph::{GraphBuilder, Node, WriteNode};
use crate::ops::{Rdma, RdmaOp, RdmaStats};
use crate::reactor::{RdmaState, RdmaWatch, WorkQ};

/// The connection below an [`RdmaStream`](crate::stream::RdmaStream), for its state and for
/// one-sided operations. [`RdmaStream::rdma`](crate::stream::RdmaStream::rdma) returns it.
///
/// It has only those methods of an [`Rdma`] that cannot disturb the frames of the stream or its
/// connection. Clones are the same connection, and keep it open after the stream was dropped,
/// unless its [`linger`](crate::stream::StreamOptions::linger) is 0.
///
/// One-sided operations and bytes that are written to the stream arrive in the order in which they
/// were submitted: bytes that are written to the stream after a [`write`](StreamRdma::write) has
/// succeeded tell the peer that its memory was written. An operation that is refused before the
/// device has it leaves the stream as it is; an operation that fails later ends the stream.
///
/// ```
/// use tokio_doca::mem::{Access, BufInventory, RemoteMmap};
/// use tokio_doca::stream::StreamOptions;
/// # use std::net::SocketAddr;
/// # use tokio_doca::{BufPool, Device, Mmap, WorkQ};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let device = Device::open_default()?;
/// # let workq = WorkQ::builder().build()?;
/// # let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(1 << 16)?).build()?;
/// let options = StreamOptions::new().connections(1).permissions(Access::RDMA_WRITE);
/// # let listener = options.bind(&device, &workq, "127.0.0.1:0".parse::<SocketAddr>()?).await?;
/// # let addr = listener.tcp_addr().expect("it listens at a TCP address");
/// # let connector = options.connector(&device, &workq)?;
/// let lent = Mmap::builder().device(&device);
/// let lent = lent.access(Access::LOCAL_READ_WRITE | Access::RDMA_WRITE).alloc(4096)?;
/// let blob = lent.export_rdma(&device)?;                      // the listener's memory
/// let accept = async { listener.accept().await?.accept(&blob).await };
/// let ((stream, blob), _accepted) =
///     tokio::try_join!(connector.connect_with(addr, b""), accept)?;
///
/// let memory = RemoteMmap::from_export(&device, &blob).await?;
/// let src = pool.alloc().await;
/// src.extend_from_slice(b"hello")?;
/// let rdma = stream.rdma().expect("TCP was not allowed");
/// rdma.write(&src, &memory.buf(..5)?).await?;
/// let whole = BufInventory::with_capacity(1).buf_filled(&lent, ..5)?;
/// let mut came = [0; 5];
/// whole.copy_out(0, &mut came)?;
/// assert_eq!(&came, b"hello");
/// # Ok(())
/// # }
/// ```
///
/// A `StreamRdma` has no methods for messages, since the peer would take the messages for frames:
///
/// ```compile_fail,E0599
/// # use tokio_doca::{error::JobError, stream::RdmaStream};
/// # async fn ask(stream: &RdmaStream) -> Result<(), JobError> {
/// let rdma = stream.rdma().expect("TCP was not allowed");
/// rdma.write((), ()).await?;                                  // asks whether the peer is there
/// rdma.send(()).await?;                                       // there is no such method
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct StreamRdma(pub(in crate::stream) Rdma);

impl StreamRdma {
    /// Writes to the peer's memory, as [`Rdma::write`] does.
    ///
    /// # Errors
    ///
    /// As [`Rdma::write`].
    ///
    /// # Cancel safety
    ///
    /// As [`Rdma::write`].
    #[inline(always)]
    pub fn write<S: MaybeSource, R: MaybeRemote>(&self, src: S, remote: R) -> RdmaOp<&Rdma, S, R> {
        self.0.write(src, remote)
    }

    /// Reads the peer's memory, as [`Rdma::read`] does.
    ///
    /// # Errors
    ///
    /// As [`Rdma::read`].
    ///
    /// # Cancel safety
    ///
    /// As [`Rdma::read`].
    #[inline(always)]
    pub fn read<R: MaybeRemote, D: MaybeDestination>(
        &self,
        remote: R,
        dst: D,
    ) -> RdmaOp<&Rdma, R, D> {
        self.0.read(remote, dst)
    }

    /// Compares and swaps 8 bytes of the peer's memory, as [`Rdma::compare_swap`] does.
    ///
    /// # Errors
    ///
    /// As [`Rdma::compare_swap`].
    ///
    /// # Cancel safety
    ///
    /// As [`Rdma::compare_swap`].
    #[inline(always)]
    pub fn compare_swap<R: MaybeRemote>(
        &self,
        remote: R,
        compare: u64,
        swap: u64,
    ) -> RdmaOp<&Rdma, R, (), u64> {
        self.0.compare_swap(remote, compare, swap)
    }

    /// Adds to 8 bytes of the peer's memory, as [`Rdma::fetch_add`] does.
    ///
    /// # Errors
    ///
    /// As [`Rdma::fetch_add`].
    ///
    /// # Cancel safety
    ///
    /// As [`Rdma::fetch_add`].
    #[inline(always)]
    pub fn fetch_add<R: MaybeRemote>(&self, remote: R, add: u64) -> RdmaOp<&Rdma, R, (), u64> {
        self.0.fetch_add(remote, add)
    }

    /// Adds a node to `graph`, and returns it. The node writes to the peer's memory, as the node of
    /// [`GraphBuilder::rdma_write`] does.
    pub fn write_node(&self, graph: &mut GraphBuilder) -> Node<WriteNode> {
        graph.rdma_write(&self.0)
    }

    /// Returns the state of the connection, as [`Rdma::state`] does.
    pub fn state(&self) -> RdmaState {
        self.0.state()
    }

    /// Returns a watch of the state, as [`Rdma::watch`] does.
    pub fn watch(&self) -> RdmaWatch {
        self.0.watch()
    }

    /// Returns the counts of the connection so far, as [`Rdma::stats`] does.
    pub fn stats(&self) -> RdmaStats {
        self.0.stats()
    }

    /// Returns the device of the connection.
    pub fn device(&self) -> &Device {
        self.0.device()
    }

    /// Returns the WorkQ that the stream is on.
    pub fn workq(&self) -> WorkQ {
        self.0.workq()
    }

    /// Returns the limits of the device.
    pub fn caps(&self) -> &RdmaCaps {
        self.0.caps()
    }

    /// Returns which one-sided operations the peer may do
    /// ([`StreamOptions::permissions`](crate::stream::StreamOptions::permissions)).
    pub fn permissions(&self) -> Access {
        self.0.permissions()
    }

    /// Returns the path to the peer, as [`Rdma::path`] does.
    pub fn path(&self) -> Option<Path> {
        self.0.path()
    }

    /// Returns how packets travel, as [`Rdma::transport`] does.
    pub fn transport(&self) -> Transport {
        self.0.transport()
    }

    /// Returns how long an operation or a frame waits for a peer that does not answer
    /// ([`StreamOptions::rnr_timeout`](crate::stream::StreamOptions::rnr_timeout)).
    pub fn rnr_timeout(&self) -> Duration {
        self.0.rnr_timeout()
    }
}

impl fmt::Debug for StreamRdma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StreamRdma").field(&self.0).finish()
    }
}
