//! A future that waits until no job and no guard uses a Buf.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::buf::Buf;
use crate::mem::element::Watch;

impl Buf {
    /// Waits until no job, no guard and no [`Bytes`](bytes::Bytes) uses the Buf, so that its memory
    /// can be used again. The future keeps a clone of the Buf.
    ///
    /// A job whose future was dropped, for example by a `tokio::time::timeout`, continues, and uses
    /// its memory until it has completed. Like any other job, it completes only if its WorkQ is
    /// polled: by a Tokio runtime with I/O, by [`WorkQ::block_on`](crate::WorkQ::block_on), or by a
    /// loop of the application. A dropped receive keeps its Buf until another receive replaces it,
    /// or until its Rdma is reset or dropped. A job that failed with
    /// [`Reason::MemoryKept`](crate::error::Reason::MemoryKept) keeps its Buf for ever.
    ///
    /// Other tasks that have a handle of the Buf may use it again before this task continues. A Buf
    /// of an inventory may share bytes with other Bufs, which this future does not wait for.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tokio::time::timeout;
    /// # use tokio_doca::{Buf, Dma, Error};
    /// # async fn copy(dma: &Dma, src: &Buf, dst: &Buf) -> Result<(), Error> {
    /// if timeout(Duration::from_millis(10), dma.copy(src, dst)).await.is_err() {
    ///     dst.released().await;
    ///     dst.reset_data_len()?; // no job writes it any more
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub fn released(&self) -> Released {
        Released(Watch::new(self.0.clone()))
    }
}

/// The future of [`Buf::released`].
#[must_use = "futures do nothing unless polled"]
pub struct Released(Watch);

impl Future for Released {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let budget = ready!(tokio::task::coop::poll_proceed(cx));
        self.0.poll(cx.waker()).map(|()| budget.made_progress())
    }
}

impl fmt::Debug for Released {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Released").finish_non_exhaustive()
    }
}
