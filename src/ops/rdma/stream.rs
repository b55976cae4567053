//! [`RecvStream`]: messages as they come, in Bufs of a pool.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures::Stream;
use futures::stream::FusedStream;

use super::Rdma;
use super::pooled_receives::PooledReceives;
use super::posted_receives::PostedReceives;
use super::recv::Message;
use crate::error::JobError;
use crate::mem::BufPool;
use crate::reactor::budget;

/// The stream of [`Rdma::recv_stream`] and of [`Rdma::messages`].
///
/// ```
/// use futures::StreamExt;
/// use tokio_doca::rdma::RecvStream;
/// # use tokio_doca::{BufPool, Device, Mmap, Rdma, WorkQ};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tokio_doca::Result<()> {
/// # let device = Device::open_default()?;
/// # let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(1 << 16)?).build()?;
/// # let workq = WorkQ::builder().build()?;
/// # let (a, b) = (Rdma::builder(&device).attach(&workq)?, Rdma::builder(&device).attach(&workq)?);
/// # let (of_a, of_b) = (a.export()?, b.export()?);
/// # tokio::try_join!(a.connect(&of_b), b.connect(&of_a))?;
/// // `a` and `b` are connected.
/// # let request = pool.alloc().await;
/// # request.extend_from_slice(b"hello")?;
/// let mut requests: RecvStream = b.recv_stream(&pool, 8);     // keeps 8 receives posted
/// let serve = async {
///     while let Some(Ok(request)) = requests.next().await {
///         println!("{} bytes", request.received.len);
///     }
/// };
/// let ask = async {
///     a.send(&request).await?;
///     a.close().await                                         // ends the stream of `b`
/// };
/// let ((), closed) = tokio::join!(serve, ask);
/// closed?;
/// # Ok(())
/// # }
/// ```
#[must_use = "streams do nothing unless polled"]
pub struct RecvStream {
    receives: Receives,
    failed: bool,
}

enum Receives {
    Posted(PostedReceives),
    Pooled(PooledReceives),
}

impl RecvStream {
    pub(super) fn posted(rdma: &Rdma, pool: &BufPool, receives: usize) -> RecvStream {
        RecvStream {
            receives: Receives::Posted(PostedReceives::new(rdma, pool, receives)),
            failed: false,
        }
    }

    pub(super) fn pooled(rdma: &Rdma) -> RecvStream {
        RecvStream {
            receives: Receives::Pooled(PooledReceives::new(rdma)),
            failed: false,
        }
    }
}

// Methods for streams of bytes, which lend their peer a number of receives.
impl RecvStream {
    /// Keeps `receives` receives posted from now on, and posts the missing ones as far as the pool
    /// allows. Returns how many messages the peer can send, or has sent, that have not been
    /// yielded.
    pub(crate) fn lend(&mut self, receives: usize, cx: &mut Context<'_>) -> usize {
        self.keep(receives);
        if let (Receives::Posted(receives), false) = (&mut self.receives, self.failed) {
            receives.lend(cx);
        }
        self.lent()
    }

    /// Keeps `receives` receives posted from the next poll on.
    pub(crate) fn keep(&mut self, receives: usize) {
        match &mut self.receives {
            Receives::Posted(posted) => posted.keep(receives),
            Receives::Pooled(pooled) => pooled.keep(receives),
        }
    }

    /// Returns how many messages the peer can send, or has sent, that have not been yielded.
    pub(crate) fn lent(&self) -> usize {
        match &self.receives {
            Receives::Posted(receives) => receives.len(),
            Receives::Pooled(receives) => receives.lent(),
        }
    }
}

impl Stream for RecvStream {
    type Item = Result<Message, JobError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.failed {
            return Poll::Ready(None);
        }
        let Poll::Ready(budget) = tokio::task::coop::poll_proceed(cx) else {
            if let Receives::Posted(receives) = &mut self.receives {
                receives.begin(cx);
            }
            return Poll::Pending;
        };
        let outcome = ready!(match &mut self.receives {
            Receives::Posted(receives) => receives.poll_message(cx),
            Receives::Pooled(receives) => receives.poll_message(cx),
        });
        budget.made_progress();
        if let (Receives::Pooled(_), Ok(message)) = (&self.receives, &outcome) {
            // The message was copied in this poll. If its bytes exhaust the budget, the next poll
            // waits.
            _ = budget::finished_all(cx, 0, message.received.len);
        }
        if outcome.as_ref().is_err_and(|error| !error.cannot_wait()) {
            self.failed = true;
            match &mut self.receives {
                Receives::Posted(receives) => receives.end(),
                Receives::Pooled(receives) => receives.end(),
            }
        }
        Poll::Ready(Some(outcome))
    }
}

impl FusedStream for RecvStream {
    fn is_terminated(&self) -> bool {
        self.failed
    }
}

impl fmt::Debug for RecvStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rdma, kind) = match &self.receives {
            Receives::Posted(receives) => (receives.rdma(), "posted"),
            Receives::Pooled(receives) => (receives.rdma(), "pooled"),
        };
        f.debug_struct("RecvStream")
            .field("rdma", rdma)
            .field("receives", &kind)
            .finish()
    }
}
