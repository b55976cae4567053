//! [`Shutdown`], the future of a WorkQ's shutdown, which waits until nothing is in flight.

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
    // Dropped before `workq`, which keeps alive the list that the node is in.
    #[pin]
    node: WaitNode,
    workq: WorkQ,
}

impl WorkQ {
    /// Shuts the WorkQ down: from the first poll of the future on, it refuses new jobs, and the
    /// future waits until nothing is in flight. Operations that wait for a slot fail with
    /// `Shutdown`; operations in flight complete, and their results can be fetched. Posted receives
    /// and waits fail with `Shutdown` too; in a loop of your own, [`progress`](WorkQ::progress)
    /// returns these failures. When nothing is in flight, the WorkQ's Rdmas and streams disconnect
    /// from their peers, as if they were dropped. If the future is dropped before that, they
    /// disconnect when a later call is awaited.
    ///
    /// # Errors
    ///
    /// `BadState` or `OperatingSystem` if jobs are in flight, and the WorkQ cannot be awaited where
    /// the future is polled, such as outside of a runtime in event or Hybrid mode. The WorkQ is
    /// shut down all the same.
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
            // The turn collects messages that have come. Otherwise they would be lost: if nothing
            // is in flight, the Rdmas disconnect now.
            shared.turn();
            // A future that waits for a message will not get one.
            shared.core.registry.wake_all();
        }
        // Pairs with the exchange by which a slot is taken before `submit` checks `closed`.
        fence(Ordering::SeqCst);
        let table = &shared.core.table;
        if table.any_in_flight() {
            let policy = shared.mode.load();
            if !policy.is_busy() {
                // `register` comes before the future is in line, since it panics in a runtime
                // without I/O.
                shared.events.register(shared)?;
            }
            shared.enqueue_drained(this.node.as_ref(), cx.waker());
            if policy.is_busy() {
                shared.turn();
                shared.misses.add();
                cx.waker().wake_by_ref();
            } else {
                // Hybrid mode sleeps here too: it polls for short jobs only, and a shutdown may
                // take long. Registered once more: the handle may have been replaced before this
                // future was in line.
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
        // Nothing is in flight, so the Rdmas disconnect from their peers. The turn collects the
        // receives that this ends.
        shared.core.registry.wake_all();
        shared.turn();
        Poll::Ready(Ok(()))
    }
}
