//! The frames of a stream as messages, which are handed over as Bufs.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures::{Sink, Stream};
use tokio::io::AsyncWrite;

use super::RdmaStream;
use super::flow::HEAD;
use crate::error::{Error, ErrorKind};
use crate::mem::Buf;

const SEND: &str = "RdmaMessages::send_buf";

/// A stream of messages, each of which is one frame of an [`RdmaStream`]. Messages are sent and
/// received without a copy, except over TCP
/// ([`StreamOptions::or_tcp`](super::StreamOptions::or_tcp)).
///
/// [`RdmaStream::into_messages`] makes one from a stream. The data of a Buf that is sent arrives as
/// the data of a Buf of the peer. A Buf needs [`HEADROOM`](RdmaMessages::HEADROOM) for the header
/// of its frame, and must be in memory of the device on which the stream was made. Bufs that were
/// received have that headroom, so that they can be sent on. A Buf that was received over TCP is in
/// memory of the device as well, unless the device has no RDMA or cannot register more memory.
///
/// `RdmaMessages` is a `Stream` and a `Sink` of Bufs. The peer may use an `RdmaStream`, which reads
/// and writes the same bytes. Back-pressure, ends and errors are those of an `RdmaStream`.
///
/// A Buf that was received belongs to the memory for receives, which all streams of the listener or
/// connector share. The peer gets the credit back at once, but while you keep many Bufs, fewer are
/// left for the streams.
///
/// ```
/// use tokio_doca::stream::RdmaMessages;
/// # use std::net::SocketAddr;
/// # use tokio_doca::{BufPool, Device, Mmap, WorkQ, stream::StreamOptions};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let device = Device::open_default()?;
/// # let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(1 << 16)?).build()?;
/// # let workq = WorkQ::builder().build()?;
/// # let options = StreamOptions::new().connections(1);
/// # let listener = options.bind(&device, &workq, "127.0.0.1:0".parse::<SocketAddr>()?).await?;
/// # let addr = listener.tcp_addr().expect("it listens at a TCP address");
/// # let connector = options.connector(&device, &workq)?;
/// # let accept = async { listener.accept().await?.accept(b"").await };
/// # let (stream, accepted) = tokio::try_join!(connector.connect(addr), accept)?;
/// let (mut here, mut there) = (stream.into_messages(), accepted.into_messages());
/// let buf = pool.alloc().await;
/// buf.set_data(RdmaMessages::HEADROOM, 0)?;           // for the head of the frame
/// buf.extend_from_slice(b"hello")?;
/// here.send_buf(buf).await?;
/// let came = there.recv_buf().await?.expect("the peer has not ended");
/// assert_eq!(&came.data()?[..], b"hello");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a stream that is dropped ends"]
pub struct RdmaMessages {
    stream: RdmaStream,
    /// A Buf that was passed to the sink, and was not sent yet.
    fed: Option<Buf>,
}

impl RdmaStream {
    /// Turns the stream into one of messages. If a frame was read in part, the rest of it is the
    /// first message.
    pub fn into_messages(self) -> RdmaMessages {
        RdmaMessages {
            stream: self,
            fed: None,
        }
    }
}

impl RdmaMessages {
    /// The headroom that a Buf needs to be sent, in bytes.
    pub const HEADROOM: usize = HEAD;

    /// Returns the maximum length of a message in bytes: the smaller
    /// [`frame_size`](super::StreamOptions::frame_size) of the two sides, less the headroom.
    pub fn max_message_size(&self) -> usize {
        self.stream.held().max_message_size()
    }

    /// Returns the underlying stream.
    pub fn stream(&self) -> &RdmaStream {
        &self.stream
    }

    /// Returns the underlying stream. A Buf that was fed to the sink and not sent yet is dropped.
    pub fn into_stream(self) -> RdmaStream {
        self.stream
    }

    /// Sends the data of a Buf as a message. A Buf that was fed to the sink before is sent first.
    /// Returns once the device has the message. Afterwards other handles of the Buf see the header
    /// of the frame in front of the data: set the data anew ([`Buf::set_data`]) to send it again.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the Buf has no data, too much data, or too little headroom. If the Buf is
    /// in use, or its memory is not registered with the device, the source of the error is the
    /// [`JobError`](crate::error::JobError) that says so. The stream stays usable after these
    /// errors. All other errors are those of a write to an [`RdmaStream`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the Buf, which was not sent.
    pub async fn send_buf(&mut self, buf: Buf) -> io::Result<()> {
        self.check(&buf)?;
        poll_fn(|cx| {
            ready!(self.poll_fed(cx))?;
            self.check(&buf)?;
            self.stream.poll_send_buf(&buf, cx)
        })
        .await
    }

    /// Receives a message; returns `None` at the end of the stream.
    ///
    /// # Errors
    ///
    /// Fails as a read of an [`RdmaStream`] does.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no message.
    pub async fn recv_buf(&mut self) -> io::Result<Option<Buf>> {
        let recv = RecvBuf(&mut self.stream);
        poll_fn(|cx| recv.0.poll_recv_buf(cx)).await
    }

    fn check(&self, buf: &Buf) -> io::Result<()> {
        let (len, most, headroom) = (buf.data_len(), self.max_message_size(), buf.headroom());
        if (1..=most).contains(&len) && headroom >= HEAD {
            return Ok(());
        }
        let text = format!(
            "a Buf with {len} bytes of data and {headroom} of headroom cannot be sent: a message \
             of this stream has 1 to {most} bytes, and needs {HEAD} bytes of headroom"
        );
        Err(Error::new(ErrorKind::InvalidValue, SEND, text).into())
    }

    /// Sends the Buf that was fed to the sink.
    fn poll_fed(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(buf) = self.fed.take() else {
            return Poll::Ready(Ok(()));
        };
        // Another handle may have changed the Buf meanwhile.
        self.check(&buf)?;
        let sent = self.stream.poll_send_buf(&buf, cx);
        if sent.is_pending() {
            self.fed = Some(buf);
        }
        sent
    }
}

/// A `recv_buf`, which may wait in line for a Buf.
struct RecvBuf<'a>(&'a mut RdmaStream);

impl Drop for RecvBuf<'_> {
    fn drop(&mut self) {
        self.0.leave_bufs();
    }
}

impl Stream for RdmaMessages {
    type Item = io::Result<Buf>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.stream.poll_recv_buf(cx).map(Result::transpose)
    }
}

/// A Buf that was fed is sent by a flush, or before the next Buf. Dropping the `RdmaMessages` does
/// not send it.
impl Sink<Buf> for RdmaMessages {
    type Error = io::Error;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_fed(cx)
    }

    fn start_send(mut self: Pin<&mut Self>, buf: Buf) -> io::Result<()> {
        self.check(&buf)?;
        self.fed = Some(buf);
        Ok(())
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_fed(cx))?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_fed(cx))?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
