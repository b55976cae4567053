//! The transport below a stream: RDMA, or the connection of the exchange.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

use super::rest::RdmaLink;
use super::tcp::TcpCore;
use crate::error::JobError;
use crate::mem::Buf;
use crate::stream::core::{Core, StreamRdma, StreamStats};
use crate::stream::side::{Exchange, Pools};
use crate::stream::wakers::Wakers;

/// The transport that carries a stream's bytes.
///
/// ```
/// # use std::net::SocketAddr;
/// # use tokio_doca::{Device, WorkQ, stream::StreamOptions};
/// use tokio_doca::stream::StreamTransport;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let device = Device::open_default()?;
/// # let workq = WorkQ::builder().build()?;
/// let options = StreamOptions::new().connections(1).or_tcp(true);
/// let listener = options.bind(&device, &workq, "127.0.0.1:0".parse::<SocketAddr>()?).await?;
/// let addr = listener.tcp_addr().expect("it listens at a TCP address");
/// let connector = options.connector(&device, &workq)?;
/// let accept = async { listener.accept().await?.accept(b"").await };
/// let (stream, _accepted) = tokio::try_join!(connector.connect(addr), accept)?;
/// match stream.transport() {
///     StreamTransport::Rdma => assert!(stream.rdma().is_some()),
///     StreamTransport::Tcp => println!("{} has no RDMA in common", stream.peer()),
///     _ => {}
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StreamTransport {
    /// The stream uses RDMA.
    Rdma,
    /// The stream uses the TCP or Unix socket at which the two sides met
    /// ([`StreamOptions::or_tcp`](crate::stream::StreamOptions::or_tcp)).
    Tcp,
}

pub(in crate::stream) enum Link {
    Rdma(Box<RdmaLink>),
    Tcp(Box<TcpCore>),
}

fn io_error(error: JobError) -> io::Error {
    error.of_stream().into()
}

/// Calls the method of the transport that the stream has.
macro_rules! either {
    ($link:expr, $core:ident => $call:expr) => {
        match $link {
            Link::Rdma($core) => $call,
            Link::Tcp($core) => $call,
        }
    };
}

impl Link {
    /// Returns a stream over RDMA whose sides are connected.
    pub(in crate::stream) fn over_rdma(
        core: Box<Core>,
        wakers: &Arc<Wakers>,
        runtime: &Handle,
    ) -> Link {
        Link::Rdma(Box::new(RdmaLink::new(core, wakers, runtime.clone())))
    }

    /// Returns a stream that continues over the connection of an exchange that has ended, with the
    /// frame length that both sides take.
    pub(in crate::stream) fn over_tcp(exchange: &mut Exchange, pools: Pools, frame: usize) -> Link {
        let (socket, runtime) = (Arc::clone(&exchange.socket), exchange.runtime.clone());
        let inbox = exchange.take_inbox();
        Link::Tcp(Box::new(TcpCore::new(socket, runtime, inbox, pools, frame)))
    }

    pub(super) fn transport(&self) -> StreamTransport {
        match self {
            Link::Rdma(_) => StreamTransport::Rdma,
            Link::Tcp(_) => StreamTransport::Tcp,
        }
    }

    /// Returns the part of the RDMA connection that the application may use.
    pub(super) fn view(&self) -> Option<&StreamRdma> {
        match self {
            Link::Rdma(link) => Some(link.view()),
            Link::Tcp(_) => None,
        }
    }

    pub(super) fn stats(&self) -> StreamStats {
        either!(self, core => core.stats())
    }

    /// Returns the maximum number of bytes of a message.
    pub(in crate::stream) fn max_message_size(&self) -> usize {
        either!(self, core => core.max_message_size())
    }

    /// Waits until there is something to read, or the end of the stream.
    #[inline]
    pub(super) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, core => core.poll_fill(cx)).map_err(io_error)
    }

    /// Returns the bytes that can be read at once.
    #[inline]
    pub(super) fn unread(&self) -> &[u8] {
        either!(self, core => core.unread())
    }

    #[inline]
    pub(super) fn consume(&mut self, len: usize, cx: &mut Context<'_>) {
        either!(self, core => core.consume(len, cx));
    }

    /// Takes what is left of the frame that the application reads; `None` at the end of the stream.
    pub(super) fn poll_take_buf(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Buf>>> {
        either!(self, core => core.poll_take_buf(cx)).map_err(io_error)
    }

    /// Takes a dropped `recv_buf` out of the line in which it waited for a Buf.
    pub(super) fn leave_bufs(&mut self, cx: &mut Context<'_>) {
        either!(self, core => core.leave_bufs(cx));
    }

    /// Sends a frame of the first of these bytes. Returns how many it has taken; `None` if the
    /// stream was closed.
    #[inline]
    pub(super) fn poll_write(
        &mut self,
        slices: &[IoSlice<'_>],
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Option<usize>>> {
        either!(self, core => core.poll_write(slices, cx)).map_err(io_error)
    }

    /// Sends the data of a Buf as a frame. Returns `None` if the stream was closed.
    pub(super) fn poll_send_buf(
        &mut self,
        buf: &Buf,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Option<()>>> {
        either!(self, core => core.poll_send_buf(buf, cx)).map_err(io_error)
    }

    /// Waits until the device or the kernel has everything that was written.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, core => core.poll_flush(cx)).map_err(io_error)
    }

    /// Sends the end of the stream, and waits until the peer has the whole stream.
    pub(super) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, core => core.poll_shutdown(cx)).map_err(io_error)
    }

    /// Shuts down a stream that the application does not read any more.
    pub(super) fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, core => core.poll_close(cx)).map_err(io_error)
    }

    /// Closes the connection without sending the end of the stream.
    pub(super) fn reset(&self) {
        match self {
            // This resets the connection, since the application may still hold a view of it.
            Link::Rdma(link) => _ = link.view().0.reset(),
            Link::Tcp(core) => core.reset(),
        }
    }
}
