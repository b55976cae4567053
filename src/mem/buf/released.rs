//! Waiting until no job and no guard has a Buf.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::buf::Buf;
use crate::mem::element::Watch;

impl Buf {
    /// Waits until no job, no guard and no [`Bytes`](bytes::Bytes) has the Buf, so that its memory
    /// can be used again. The future keeps a clone of the Buf.
    ///
    /// A job whose future was dropped, by a `tokio::time::timeout` for example, continues, and has
    /// its memory until it has completed. That this comes to an end is for the job: what it was
    /// submitted to is polled as for any other, by a Tokio runtime with I/O, by
    /// [`WorkQ::block_on`](crate::WorkQ::block_on), or by a loop of the caller's own. A receive
    /// that was dropped has its Buf until another receive takes it over, or its Rdma is reset or
    /// dropped. What failed with [`Reason::MemoryKept`](crate::error::Reason::MemoryKept) has it
    /// for ever.
    ///
    /// Other tasks that have the Buf may take it again before this one continues. A Buf of an
    /// inventory may share bytes with other Bufs, which this future does not wait for.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tokio::time::timeout;
    /// # use tokio_doca::{Buf, Dma, Error};
    /// # async fn copy(dma: &Dma, src: &Buf, dst: &Buf) -> Result<(), Error> {
    /// if timeout(Duration::from_millis(10), dma.copy(src, dst)).await.is_err() {
    ///     dst.released().await;
    ///     dst.reset_data_len()?; // nobody writes it any more
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
