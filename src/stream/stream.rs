//! The stream that an application holds.

use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::{Handle, TryCurrentError};

use tracing::field::{DisplayValue, display};
use tracing::{debug, warn};

use super::core::{StreamRdma, StreamStats};
use super::drain::Guest;
use super::side::{Met, Side};
use super::wakers::Wakers;
use crate::channel::Peer;
use crate::device::Path;
use crate::mem::Buf;
use crate::sync::log;

mod link;
mod rest;
mod tcp;

pub(super) use link::Link;
pub use link::StreamTransport;

/// A stream of bytes over an [`Rdma`](crate::Rdma), which any Tokio service can use in place of a
/// `TcpStream`.
///
/// [`RdmaConnector::connect`](super::RdmaConnector::connect) and
/// [`Incoming::accept`](super::Incoming::accept) make streams. `tokio::io::split` splits one into
/// two halves, which may be used by two tasks.
///
/// A write is sent at once, as one message of at most
/// [`frame_size`](super::StreamOptions::frame_size) bytes; a vectored write gathers its slices into
/// one message. While the peer has to read first, or
/// [`send_window`](super::StreamOptions::send_window) messages are in flight, small writes share
/// one message. The shared message is sent as soon as possible, without another call of the
/// application. If that message is full, a write waits. A write of more than half of a message
/// begins no shared message, but waits. If the peer allows one-sided operations, writes share no
/// messages, which keeps the order that [`StreamRdma`] documents. A write also waits while all
/// memory for sends, or all slots that streams may use (half of those of the WorkQ), are in use.
///
/// `flush` waits until the device has everything that was written. `shutdown` waits until
/// everything is in the peer's memory (over iWARP: until the peer's stream has received the end,
/// for which the peer must read to the end, shut down or drop it). As an `AsyncBufRead`, a stream
/// lends received data without a copy. Without RDMA, a socket is used instead of the device
/// ([`StreamOptions::or_tcp`](super::StreamOptions::or_tcp) lists the differences).
///
/// ```
/// # use std::net::SocketAddr;
/// # use tokio_doca::{Device, WorkQ, stream::StreamOptions};
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
/// use tokio_doca::stream::RdmaStream;
///
/// /// Reads a request to its end, and answers it.
/// async fn serve(mut stream: RdmaStream) -> std::io::Result<()> {
///     let mut request = String::new();
///     stream.read_to_string(&mut request).await?;
///     stream.write_all(request.to_uppercase().as_bytes()).await?;
///     stream.shutdown().await
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let device = Device::open_default()?;
/// # let workq = WorkQ::builder().build()?;
/// # let options = StreamOptions::new().connections(1);
/// # let listener = options.bind(&device, &workq, "127.0.0.1:0".parse::<SocketAddr>()?).await?;
/// # let addr = listener.tcp_addr().expect("it listens at a TCP address");
/// # let accept = async { listener.accept().await?.accept(b"").await };
/// # let connector = options.connector(&device, &workq)?;
/// # let (mut stream, accepted) = tokio::try_join!(connector.connect(addr), accept)?;
/// # let served = tokio::spawn(serve(accepted));
/// stream.write_all(b"hello").await?;
/// stream.shutdown().await?;                           // ends the request
/// let mut answer = String::new();
/// stream.read_to_string(&mut answer).await?;
/// assert_eq!(answer, "HELLO");
/// # served.await??;
/// # Ok(())
/// # }
/// ```
///
/// # Ends
///
/// After `shutdown` the peer reads to the end of the data; it may still write. If the peer has
/// gone, after a `shutdown` or without one, `shutdown` and `flush` succeed if all written bytes
/// have arrived in the peer's memory, and fail otherwise. They do not repeat the error of a write.
/// Over iWARP this side knows that the bytes have arrived only if the peer has received the end;
/// otherwise `shutdown` and `flush` fail if anything was written. Frames that have arrived can
/// still be read.
///
/// Dropping a stream without `shutdown` sends what was written, and the end, in the background, for
/// at most [`linger`](super::StreamOptions::linger). This needs the runtime on which the stream was
/// made; if that runtime ends first, the peer's reads fail. A message that small writes share also
/// needs a runtime: the one on which the stream was made, or the one on which the last of these
/// writes was polled. If the [`WorkQ`](crate::WorkQ) is busy-polled, a task of the crate polls
/// until the peer has read.
///
/// # Errors
///
/// Calls fail with an [`io::Error`] whose source is a [`JobError`](crate::error::JobError):
///
/// - `ConnectionReset` if the peer has ended, or has dropped its stream, before the end of its data
///   arrived, or if the peer does not answer;
/// - `TimedOut` if the peer posts no receive for a frame
///   ([`rnr_timeout`](super::StreamOptions::rnr_timeout));
/// - `ConnectionAborted` if the peer breaks the protocol, in which case this side resets the
///   connection, or if the peer's side of the connection has failed.
///
/// A write after `shutdown` fails with `BrokenPipe`. A call that is polled where the WorkQ cannot
/// be awaited, such as outside of a runtime, fails with `Other` and leaves the stream as it was.
///
/// # Cancel safety
///
/// Dropping the future of a read loses no bytes. A future of `write` that is dropped has written
/// nothing; a future of `write_all` may have written a part.
pub struct RdmaStream {
    /// `None` once the stream was dropped.
    link: Option<Link>,
    wakers: Arc<Wakers>,
    /// Wakes all tasks of `wakers`.
    waker: Waker,
    peer: Peer,
    local: Option<SocketAddr>,
    /// The runtime that closes the stream after it was dropped.
    runtime: Handle,
    /// How long the runtime waits for the peer then.
    linger: Duration,
    /// Counts the stream with the listener that has accepted it. It is dropped last: a stream that
    /// the listener counts still has its memory and its connection.
    guest: Option<Guest>,
}

impl RdmaStream {
    pub(super) fn new(
        link: Link,
        wakers: Arc<Wakers>,
        met: Met,
        linger: Duration,
        guest: Option<Guest>,
    ) -> RdmaStream {
        if let Link::Rdma(link) = &link {
            link.view().0.set_peer(met.peer.to_string());
        }
        RdmaStream {
            link: Some(link),
            waker: wakers.waker(),
            wakers,
            peer: met.peer,
            local: met.local,
            runtime: met.runtime,
            linger,
            guest,
        }
    }

    /// Returns a stream between two sides that have met by rdma_cm.
    pub(super) fn by_cm(
        side: Side,
        peer: SocketAddr,
        runtime: &Handle,
        linger: Duration,
        guest: Option<Guest>,
    ) -> RdmaStream {
        let met = Met {
            peer: Peer::at(Some(peer)),
            local: None,
            runtime: runtime.clone(),
        };
        let link = Link::over_rdma(side.core, &side.wakers, runtime);
        RdmaStream::new(link, side.wakers, met, linger, guest)
    }

    /// Returns the peer at the other end.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Returns the peer's address at which the two sides met; `None` if they met at a Unix socket.
    /// The data travels between the adapters' addresses.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.peer.tcp_addr()
    }

    /// Returns this side's address at which the two sides met; `None` if they met at a Unix socket
    /// or by rdma_cm.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.local
    }

    /// Returns how the stream's bytes travel: by RDMA, unless both sides have agreed to continue
    /// without it ([`StreamOptions::or_tcp`](super::StreamOptions::or_tcp)).
    pub fn transport(&self) -> StreamTransport {
        self.held().transport()
    }

    /// Returns the stream's RDMA connection, for its state and for one-sided operations; `None` if
    /// the stream has no RDMA ([`transport`](RdmaStream::transport)).
    pub fn rdma(&self) -> Option<&StreamRdma> {
        self.held().view()
    }

    /// Returns what the stream has sent and received so far, and how often it had to wait. These
    /// counts are always kept.
    pub fn stats(&self) -> StreamStats {
        self.held().stats()
    }

    /// Waits until the listener that has accepted this stream [drains](super::RdmaListener::drain).
    /// The caller should then finish the current request, and begin no other. The future never
    /// completes on the stream of a connector, or if the listener is dropped without draining. It
    /// does not borrow the stream.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub fn draining(&self) -> impl Future<Output = ()> + Send + Sync + use<> {
        let told = self.guest.as_ref().map(Guest::draining);
        async move {
            match told {
                Some(told) => told.await,
                None => std::future::pending().await,
            }
        }
    }

    /// Returns the path between the adapters, as log events show it; `None` on a device without a
    /// network.
    pub(super) fn path(&self) -> Option<DisplayValue<Path>> {
        self.rdma().and_then(StreamRdma::path).map(display)
    }

    pub(super) fn held(&self) -> &Link {
        self.link.as_ref().expect(HELD)
    }

    /// Sends the data of a Buf as a frame. The header of the frame is written to the Buf's
    /// headroom.
    pub(super) fn poll_send_buf(&mut self, buf: &Buf, cx: &Context<'_>) -> Poll<io::Result<()>> {
        let (link, mut cx) = self.writer(cx);
        let sent = ready!(link.poll_send_buf(buf, &mut cx))?;
        Poll::Ready(sent.ok_or(io::ErrorKind::BrokenPipe.into()))
    }

    /// Takes the next frame, or the rest of a frame that was read in part.
    pub(super) fn poll_recv_buf(&mut self, cx: &Context<'_>) -> Poll<io::Result<Option<Buf>>> {
        let (link, mut cx) = self.reader(cx);
        ready!(link.poll_fill(&mut cx))?;
        link.poll_take_buf(&mut cx)
    }

    /// Takes a dropped `recv_buf` out of the line in which it waited for a Buf.
    pub(super) fn leave_bufs(&mut self) {
        if self.link.is_some() {
            let (link, mut cx) = self.link();
            link.leave_bufs(&mut cx);
        }
    }

    fn reader(&mut self, cx: &Context<'_>) -> (&mut Link, Context<'_>) {
        self.wakers.reader.register(cx.waker());
        self.link()
    }

    fn writer(&mut self, cx: &Context<'_>) -> (&mut Link, Context<'_>) {
        self.wakers.writer.register(cx.waker());
        self.link()
    }

    fn link(&mut self) -> (&mut Link, Context<'_>) {
        let link = self.link.as_mut().expect(HELD);
        (link, Context::from_waker(&self.waker))
    }
}

/// What the log says when a stream was dropped and its peer has not received everything.
const REST: &str = "the rest was not sent";

const HELD: &str = "drop alone takes it out";

impl AsyncBufRead for RdmaStream {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let (link, mut cx) = self.get_mut().reader(cx);
        ready!(link.poll_fill(&mut cx))?;
        Poll::Ready(Ok(link.unread()))
    }

    fn consume(self: Pin<&mut Self>, len: usize) {
        let (link, mut cx) = self.get_mut().link();
        link.consume(len, &mut cx);
    }
}

impl AsyncRead for RdmaStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if into.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let (link, mut cx) = self.get_mut().reader(cx);
        ready!(link.poll_fill(&mut cx))?;
        let unread = link.unread();
        let len = unread.len().min(into.remaining());
        into.put_slice(&unread[..len]);
        link.consume(len, &mut cx);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for RdmaStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let (link, mut cx) = self.get_mut().writer(cx);
        let written = ready!(link.poll_write(slices, &mut cx))?;
        Poll::Ready(written.ok_or(io::ErrorKind::BrokenPipe.into()))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let (link, mut cx) = self.get_mut().writer(cx);
        link.poll_flush(&mut cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let (link, mut cx) = self.get_mut().writer(cx);
        link.poll_shutdown(&mut cx)
    }
}

impl Drop for RdmaStream {
    /// Continues to close the stream in the background if the peer does not have everything yet.
    fn drop(&mut self) {
        let Some(mut link) = self.link.take() else {
            return;
        };
        let peer = self.peer.clone();
        log(|| debug!(target: "tokio_doca::stream", %peer, "ended"));
        if self.linger.is_zero() {
            link.reset();
            return;
        }
        let runtime = self.runtime.clone();
        let idle = || Context::from_waker(Waker::noop());
        // The thread may be ending, and its Tokio thread-locals may be gone: the task does
        // everything then.
        let ends = |error: TryCurrentError| error.is_thread_local_destroyed();
        if !Handle::try_current().is_err_and(ends) {
            let _entered = runtime.enter();
            // The tasks of the stream have nothing left to wait for.
            if let Poll::Ready(closed) = link.poll_close(&mut idle()) {
                if let Err(error) = closed {
                    log(|| debug!(target: "tokio_doca::stream", %peer, %error, "{REST}"));
                }
                return;
            }
        }
        let (wakers, waker, linger) = (Arc::clone(&self.wakers), self.waker.clone(), self.linger);
        let guest = self.guest.take();
        runtime.spawn(async move {
            let close = std::future::poll_fn(|cx| {
                wakers.writer.register(cx.waker());
                link.poll_close(&mut Context::from_waker(&waker))
            });
            let mut closed = tokio::time::timeout(linger, close).await;
            // Over iWARP only the peer's end may be missing.
            if closed.is_err()
                && let Poll::Ready(sent) = link.poll_shutdown(&mut idle())
            {
                closed = Ok(sent);
            }
            drop(link);
            drop(guest);
            log(|| match closed {
                Ok(Ok(())) => debug!(target: "tokio_doca::stream", %peer, "lingered"),
                Ok(Err(error)) => debug!(target: "tokio_doca::stream", %peer, %error, "{REST}"),
                Err(_) => warn!(target: "tokio_doca::stream", %peer, ?linger, "{REST}"),
            });
        });
    }
}

impl fmt::Debug for RdmaStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaStream")
            .field("peer", &self.peer)
            .field("rdma", &self.rdma())
            .finish_non_exhaustive()
    }
}
