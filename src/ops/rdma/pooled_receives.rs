//! The receiving side of [`Rdma::messages`]: takes messages from the endpoint, into Bufs of a pool.
//!
//! An endpoint with a pool posts no receives. It lends its peer credits for a few messages. These
//! need no Buf: the provider keeps the messages until a stream takes them, one by one. So an idle
//! connection has no Buf, and a connection whose messages are not taken stops only its own peer
//! (ADR 0040).

use std::pin::Pin;
use std::task::{Context, Poll};

use super::Rdma;
use super::context::Pair;
use super::recv::Message;
use crate::device::RegistrationUse;
use crate::error::{JobError, Reason};
use crate::mem::{self, Buf, BufWait};
use crate::reactor::{DisconnectWait, RecvBuf};

/// Messages that a stream takes from its endpoint.
pub(super) struct PooledReceives {
    /// The wait for Bufs of the pool, in line while the pool is empty. `None` if the Rdma has no
    /// pool.
    bufs: Option<Pin<Box<BufWait>>>,
    /// The wait for a message, and for the end of the connection.
    wait: Pin<Box<DisconnectWait<Pair>>>,
    rdma: Rdma,
    /// The life of the endpoint to which the messages belong. A reset begins another life.
    life: u32,
    /// How many messages the peer may send, if a stream of bytes uses this. At most the credits of
    /// the pool.
    lent: usize,
}

impl PooledReceives {
    pub(super) fn new(rdma: &Rdma) -> PooledReceives {
        let bufs = rdma.recv_pool().map(|pool| BufWait::new(pool.bufs()));
        PooledReceives {
            bufs: bufs.map(Box::pin),
            wait: Box::pin(DisconnectWait::new(Pair(rdma.clone()))),
            rdma: rdma.clone(),
            life: rdma.port().receives().life(),
            lent: 0,
        }
    }

    pub(super) fn keep(&mut self, lent: usize) {
        self.lent = lent;
    }

    /// Returns how many messages the peer may have on their way: the number that `keep` was given
    /// last. A message that is taken does not lower it, since it returns its credit.
    pub(super) fn lent(&self) -> usize {
        self.lent
    }

    pub(super) fn rdma(&self) -> &Rdma {
        &self.rdma
    }

    pub(super) fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<Message, JobError>> {
        let Some(bufs) = &mut self.bufs else {
            return Poll::Ready(Err(JobError::of(Reason::NoRecvPool)));
        };
        let port = self.rdma.port();
        // Messages of a later connection are for another stream.
        if let Some(error) = port.ended_since(self.life) {
            return Poll::Ready(Err(error));
        }
        loop {
            if !port.has_message() {
                // Without a message this task leaves the line: a Buf that returns to the pool is
                // for other tasks.
                bufs.as_mut().stop();
                if let Poll::Ready(error) = self.wait.as_mut().poll(cx) {
                    return Poll::Ready(Err(error));
                }
                // A message may have come, and its notification may have been sent, before this
                // wait was registered.
                if !port.has_message() {
                    return Poll::Pending;
                }
            }
            let Some(buf) = bufs.as_mut().poll(cx.waker()) else {
                return self.wait.as_mut().poll(cx).map(Err);
            };
            // The wait stays registered: a stream of bytes has two tasks with one waker, and the
            // other task may sleep. Only an event that wakes both tasks ends the registration.
            if let Some(message) = take(&self.rdma, buf)? {
                return Poll::Ready(Ok(message));
            }
            // Another stream has taken the message, so try again.
        }
    }

    /// Ends the waits for Bufs, for messages and for the end of the connection.
    pub(super) fn end(&mut self) {
        if let Some(bufs) = &mut self.bufs {
            bufs.as_mut().stop();
        }
        self.wait.as_mut().stop();
    }
}

/// Takes the oldest message, if there is one.
fn take(rdma: &Rdma, buf: Buf) -> Result<Option<Message>, JobError> {
    let holder = rdma.attachment().holder(RegistrationUse::Rdma);
    let to = RecvBuf::new(mem::receive(&buf, holder)?);
    let taken = rdma.port().take_message(to)?;
    Ok(taken.map(|received| Message::new(buf, received)))
}
