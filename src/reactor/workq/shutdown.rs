//! The shutdown of a WorkQ, which waits until nothing is in flight.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use pin_project::pin_project;

use super::handle::WorkQ;
use crate::error::Result;
use crate::sync::atomic::fence;
use crate::sync::{WaitNode, log};

/// The future of [`WorkQ::shutdown`].
///
/// ```
/// use std::time::Duration;
/// use tokio_doca::WorkQ;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let workq = WorkQ::builder().build()?;
/// let limit = Duration::from_secs(5);                 // for jobs in flight
/// tokio::time::timeout(limit, workq.shutdown()).await??;
/// # Ok(())
/// # }
/// ```
#[pin_project]
#[must_use = "futures do nothing unless polled"]
pub struct Shutdown {
    // Dropped before the handle, which keeps its list alive.
    #[pin]
    node: WaitNode,
    workq: WorkQ,
}

impl WorkQ {
    /// Refuses new jobs from now on, and waits until nothing is in flight. Operations that wait for
    /// a slot end with `Shutdown`; those in flight are finished, and their results can be fetched.
    /// Receives and waits that were posted end with `Shutdown` too: [`progress`](WorkQ::progress)
    /// hands them out. When nothing is in flight, its Rdmas and streams leave their peers, as those
    /// that are dropped do. If the future is dropped before, they leave with the next call.
    ///
    /// # Cancel safety
    ///
    /// The WorkQ stays shut down if the future is dropped. A later call continues to wait.
    #[doc(alias = "doca_workq_destroy")]
    #[doc(alias = "doca_pe_destroy")]
    pub fn shutdown(&self) -> Shutdown {
        Shutdown {
            node: WaitNode::new(),
            workq: self.clone(),
        }
    }
}

impl Future for Shutdown {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let this = self.project();
        let shared = &this.workq.0;
        if !shared.closed.swap(true, Ordering::SeqCst) {
            let in_flight = shared.core.table.count().0;
            log(|| tracing::debug!(target: "tokio_doca::workq", in_flight, "shutdown"));
            // A waiter in line for a slot will not get one.
            shared.waiters.wake_all();
            shared.stream_slots.line.wake_all();
            // What has come is not lost: if nothing is in flight, the Rdmas leave their peers now.
            shared.turn();
            // A future that waits for a message will not get one either.
            shared.core.registry.wake_all();
        }
        // Pairs with the exchange by which a slot is taken before `submit` checks `closed`.
        fence(Ordering::SeqCst);
        let table = &shared.core.table;
        if table.any_in_flight() {
            let policy = shared.mode.load();
            if !policy.is_busy() {
                // First: it panics in a runtime without I/O.
                shared.events.register(shared)?;
            }
            shared.enqueue_drained(this.node.as_ref(), cx.waker());
            if policy.is_busy() {
                shared.turn();
                shared.misses.add();
                cx.waker().wake_by_ref();
            } else {
                // Hybrid mode polls for short jobs only, and this may take long. Registered once
                // more: the handle may have been replaced before this future could be found in
                // line.
                shared.events.register(shared)?;
                shared.arm();
                shared.turn();
                if !shared.mode.is_still(policy) {
                    cx.waker().wake_by_ref();
                }
            }
            // Arm, then check: the turn may have collected the last job.
            if table.any_in_flight() {
                return Poll::Pending;
            }
        }
        // Nothing is in flight: the Rdmas leave their peers. A turn collects their receives.
        shared.core.registry.wake_all();
        shared.turn();
        Poll::Ready(Ok(()))
    }
}
