//! Streams that end if the client is silent for too long.
//!
//! hyper has no time limit for a client that has not sent the first bytes of a request, for a
//! client that does not read its answer, and for HTTP/2 between two requests. Such a client would
//! occupy one of the listener's few streams for ever.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};
use tonic::transport::server::Connected;

/// How long a stream may move no byte in either direction before it fails. A client that sends a
/// byte in time keeps its stream, so that there may still be more clients than streams.
pub const IDLE: Duration = Duration::from_secs(10);

/// A stream that fails with `TimedOut` once it has moved no byte for [`IDLE`].
///
/// The stream must be used in both directions by one task, as hyper's servers do.
pub struct Idle<S> {
    stream: S,
    ends: Pin<Box<Sleep>>,
}

/// A listener that wraps each stream in [`Idle`].
pub struct IdleListener<L>(pub L);

impl<S> Idle<S> {
    /// Wraps a stream. The time limit starts now.
    pub fn new(stream: S) -> Idle<S> {
        let ends = Box::pin(sleep(IDLE));
        Idle { stream, ends }
    }

    /// Restarts the time limit if the stream has moved bytes.
    fn moved<T>(&mut self, cx: &mut Context<'_>, done: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if done.is_ready() {
            self.ends.as_mut().reset(Instant::now() + IDLE);
        }
        self.waits(cx, done)
    }

    /// Fails if the operation is pending and the time limit has passed.
    fn waits<T>(&mut self, cx: &mut Context<'_>, done: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if done.is_pending() {
            ready!(self.ends.as_mut().poll(cx));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        done
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Idle<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.moved(cx, done)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Idle<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.moved(cx, done)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.moved(cx, done)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.stream).poll_flush(cx);
        self.waits(cx, done)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.waits(cx, done)
    }
}

impl<L: Listener> Listener for IdleListener<L> {
    type Io = Idle<L::Io>;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let (stream, addr) = self.0.accept().await;
        (Idle::new(stream), addr)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.0.local_addr()
    }
}

impl<S: Connected> Connected for Idle<S> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.connect_info()
    }
}
