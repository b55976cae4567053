//! A frame of credits that could not be sent at once, and the task that sends it.
//!
//! The application may not poll the stream again for long, so that a task waits for the end of the
//! last frame of credits, and for a Slot. Its runtime may be driven by nobody any more: a poll of
//! the stream on another runtime has a task there go on, with the same place in line.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::error::JobError;
use crate::mem::Buf;
use crate::ops::{Rdma, Sends};
use crate::stream::flow::HEAD;
use crate::sync::{Mutex, lock};

type Sending = Pin<Box<dyn Future<Output = Result<(), JobError>> + Send>>;

pub(super) struct Late {
    pub(super) head: [u8; HEAD],
    /// `None` while it is polled, once it has ended, and once another task has it.
    sending: Arc<Mutex<Option<Sending>>>,
    task: JoinHandle<Result<(), JobError>>,
    runtime: Handle,
}

impl Late {
    /// Has a frame with this head sent in `frame`.
    pub(super) fn new(rdma: &Rdma, frame: &Buf, head: [u8; HEAD], runtime: Handle) -> Late {
        let (mut sends, frame) = (Sends::new(rdma), frame.clone());
        // If it is dropped before it has ended the device does not have the frame.
        let sending = async move {
            frame.released().await;
            frame.reset_data_len()?;
            frame.extend_from_slice(&head)?;
            poll_fn(|cx| sends.poll_send(cx, || Ok(frame.clone()))).await
        };
        Late::on(runtime, Box::pin(sending), head)
    }

    fn on(runtime: Handle, sending: Sending, head: [u8; HEAD]) -> Late {
        let sending = Arc::new(Mutex::new(Some(sending)));
        let place = Arc::clone(&sending);
        let task = runtime.spawn(poll_fn(move |cx| {
            let Some(mut sending) = lock(&*place).take() else {
                return Poll::Ready(Ok(()));
            };
            let polled = sending.as_mut().poll(cx);
            if polled.is_pending() {
                *lock(&*place) = Some(sending);
            }
            polled
        }));
        Late {
            head,
            sending,
            task,
            runtime,
        }
    }

    /// Waits until it was sent, or its task has failed or was dropped with its runtime.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        if let Poll::Ready(ended) = Pin::new(&mut self.task).poll(cx) {
            return Poll::Ready(matches!(ended, Ok(Ok(()))));
        }
        let here = Handle::try_current().ok();
        if let Some(here) = here.filter(|here| here.id() != self.runtime.id()) {
            // The old task ends when it finds nothing. If it polls now it may be the last time.
            if let Some(sending) = self.take() {
                *self = Late::on(here, sending, self.head);
            }
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    fn take(&self) -> Option<Sending> {
        lock(&*self.sending).take()
    }
}

impl Drop for Late {
    /// Gives up the place in line, also if nobody drives the runtime.
    fn drop(&mut self) {
        self.task.abort();
        drop(self.take());
    }
}
