//! The counters of a stream, which are plain numbers: a frame that is sent or received adds to two
//! or three of them, and only a write that waits costs more.

use super::Core;

/// Counts of what an [`RdmaStream`](crate::stream::RdmaStream) has sent and received, and of how
/// often it had to wait, as returned by [`RdmaStream::stats`](crate::stream::RdmaStream::stats).
///
/// A frame carries the data of one write, or of several small ones that were made while it had to
/// wait. Frames without data, for credits and for the end, are not counted.
///
/// ```
/// # use std::net::SocketAddr;
/// # use tokio_doca::{Device, WorkQ, stream::StreamOptions};
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
/// use tokio_doca::stream::StreamStats;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let device = Device::open_default()?;
/// # let workq = WorkQ::builder().build()?;
/// # let options = StreamOptions::new().connections(1);
/// # let listener = options.bind(&device, &workq, "127.0.0.1:0".parse::<SocketAddr>()?).await?;
/// # let addr = listener.tcp_addr().expect("it listens at a TCP address");
/// # let connector = options.connector(&device, &workq)?;
/// # let accept = async { listener.accept().await?.accept(b"").await };
/// # let (mut stream, mut accepted) = tokio::try_join!(connector.connect(addr), accept)?;
/// stream.write_all(b"hello").await?;
/// accepted.read_exact(&mut [0; 5]).await?;
/// let stats: StreamStats = stream.stats();
/// assert_eq!((stats.frames_sent, stats.bytes_sent), (1, 5));
/// if stats.credit_waits > stats.frames_sent / 2 {
///     println!("the peer reads slowly, or its recv_window is small");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamStats {
    /// The number of bytes that writes have accepted, without the headers of frames.
    pub bytes_sent: u64,
    /// The number of frames with data that were sent.
    pub frames_sent: u64,
    /// The number of bytes that have arrived, read or not.
    pub bytes_received: u64,
    /// The number of frames with data that have arrived.
    pub frames_received: u64,
    /// The number of `frames_received` that were not read to their end.
    pub frames_unread: u64,
    /// The number of frames with data that this side may send now, as far as it knows: the stream
    /// learns of new credits while it is polled. Always 0 over TCP.
    pub credits: u64,
    /// The number of frames that had to wait for credits, because the peer had not read enough.
    /// Frames that still wait are included.
    pub credit_waits: u64,
    /// The number of frames that had to wait for anything else: for memory, for a slot of the
    /// WorkQ, or for one of [`send_window`](crate::stream::StreamOptions::send_window) frames in
    /// flight to complete. Frames that still wait are included.
    pub resource_waits: u64,
}

/// What the next frame waits for, or has waited for most recently.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    Credits,
    Resource,
}

impl Core {
    pub(in crate::stream) fn stats(&self) -> StreamStats {
        StreamStats {
            frames_received: self.flow.taken(),
            frames_unread: self.unread() as u64,
            credits: self.flow.credits().into(),
            ..self.counted
        }
    }

    /// Counts a write that has sent a frame of `len` bytes.
    pub(super) fn count_sent(&mut self, len: usize) {
        self.count_frame();
        self.count_accepted(len);
    }

    pub(super) fn count_frame(&mut self) {
        self.counted.frames_sent += 1;
        self.waits = None;
    }

    pub(super) fn count_accepted(&mut self, len: usize) {
        self.counted.bytes_sent += len as u64;
    }

    /// Counts that the next frame cannot be sent yet: once, however often it is polled.
    #[cold]
    pub(super) fn count_wait(&mut self) {
        let (wait, counter) = match self.flow.may_send() {
            true => (Wait::Resource, &mut self.counted.resource_waits),
            false => (Wait::Credits, &mut self.counted.credit_waits),
        };
        if self.waits.replace(wait) != Some(wait) {
            *counter += 1;
        }
    }
}
