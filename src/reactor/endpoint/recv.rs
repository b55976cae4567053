//! [`RecvFuture`], the future of one receive in an operation, from its first poll to its message.
//!
//! ```text
//!   Idle --> Posted (its own entry, or an orphan's) -----> Finished
//!     |        ^   |                                        ^
//!     +--------|---|------- Refused ------------------------+
//!     +--> Queued  +-- dropped: an orphan, whose message is for the next
//! ```

#![allow(unreachable_pub, private_bounds, reason = "operations are made of it")]

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker, ready};

use arrayvec::ArrayVec;
use pin_project::{pin_project, pinned_drop};

use super::endpoint_port::EndpointPort;
use crate::error::{JobError, Reason};
use crate::mem::{Grow, Writing};
use crate::reactor::budget;
use crate::reactor::entry_table::{Ended, Wanted};
use crate::reactor::mode::Policy;
use crate::reactor::slots::Awaited;
use crate::reactor::spin::Spin;
use crate::reactor::tables::{
    PostedEntry, PostedRecv, Receipt, Received, RecvBuf, RecvCompletion, RecvTable, Watching,
};
use crate::reactor::waiting::Waited;
use crate::reactor::workq::{HasAttachment, Shared};
use crate::sync::atomic::fence;
use crate::sync::{WaitNode, discard};

/// The context and the destination of a receive.
pub(crate) trait Receiver: HasAttachment {
    fn port(&self) -> &EndpointPort;

    /// Returns an error if no message can be put into the destination.
    fn check(&self) -> Result<(), JobError>;

    /// Leases the destination.
    fn begin(&self) -> Result<RecvBuf, JobError>;

    /// Copies a message that lies in the memory of another operation to the destination.
    fn adopt(&self, landed: &RecvCompletion) -> Result<(), JobError>;

    /// Returns true if `lease` is a Lease on the destination.
    fn is_for(&self, lease: &Writing) -> bool;
}

#[derive(Debug)]
enum State {
    Idle,
    /// In line for an entry.
    Queued {
        spin: Spin,
        /// Makes the device signal the end of the connection while this waits in line: the
        /// operations whose receives use up the entries may never be polled.
        _watching: Watching,
    },
    Posted(Receipt, Spin),
    /// The receive was not posted.
    LaunchError(JobError),
    Finished,
}

/// The future of an operation's receive, pinned in the operation.
#[pin_project(PinnedDrop)]
pub struct RecvFuture<R: Receiver> {
    // Dropped before `receiver`, which keeps alive the list that the node is in.
    #[pin]
    node: WaitNode,
    receiver: R,
    state: State,
}

/// A posted receive whose completion an operation awaits.
pub(in crate::reactor) struct Posted<'a>(
    pub(in crate::reactor) &'a RecvTable,
    pub(in crate::reactor) Receipt,
);

impl Awaited for Posted<'_> {
    type End = ();

    #[inline(always)]
    fn take(&self) -> Option<()> {
        self.0.is_over(self.1).then_some(())
    }

    fn register(&self, waker: &Waker) {
        self.0.register(self.1, waker);
    }
}

impl<R: Receiver> RecvFuture<R> {
    #[inline(always)]
    pub(crate) fn new(receiver: R) -> RecvFuture<R> {
        RecvFuture {
            node: WaitNode::new(),
            receiver,
            state: State::Idle,
        }
    }

    pub(crate) fn receiver(&self) -> &R {
        &self.receiver
    }

    /// Posts the receive without waiting, or returns why it cannot be posted now.
    #[inline(always)]
    pub(crate) fn start(&mut self) -> Result<(), JobError> {
        ready_to_wait(&self.receiver)?;
        self.state = State::Posted(post_now(&self.receiver)?, Spin::default());
        Ok(())
    }

    /// Posts the receive for the caller's own loop, without waiting, or returns why it cannot be
    /// posted now. The future stays idle.
    pub(crate) fn post(&self, user_data: u64) -> Result<(), JobError> {
        let receiver = &self.receiver;
        receiver.attachment().check_open()?;
        receiver.check()?;
        let receipt = post_now(receiver)?;
        let receives = receiver.port().receives();
        let to = if !receipt.adopted || receives.is_leased(receipt, |lease| receiver.is_for(lease))
        {
            None
        } else {
            // If this destination is too small for the message, the next receive gets the message.
            let buf = receiver.begin();
            Some(buf.inspect_err(|_| abandon(receiver.port(), receipt))?)
        };
        let receives = Arc::clone(receives);
        let posted = PostedRecv {
            receives,
            receipt,
            to,
        };
        let shared = &receiver.attachment().shared;
        let entries = shared.own_loop.entries_or_new();
        entries.add(shared, user_data, PostedEntry::Recv(posted));
        Ok(())
    }

    /// Posts the receive, and first waits for an entry if none is free. Hands the caller its
    /// receipt.
    pub(crate) fn poll_receipt(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Receipt, JobError>> {
        ready!(self.as_mut().poll_begin(cx));
        let state = std::mem::replace(self.project().state, State::Finished);
        Poll::Ready(match state {
            State::Posted(receipt, _) => Ok(receipt),
            State::LaunchError(error) => Err(error),
            _ => panic!("a receive was polled after it had finished"),
        })
    }

    /// Posts the receive if it is not posted yet, and first waits for an entry if none is free.
    /// Ready once the receive is posted or refused, with the policy if this call has posted it
    /// without a wait.
    fn poll_begin(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Policy>> {
        let this = self.project();
        let mut begun_under = None;
        if let State::Idle = this.state {
            let begun = ready_to_wait(this.receiver).and_then(|policy| {
                begun_under = Some(policy);
                let first = this.receiver.port().receives().line.is_empty();
                if first { post(this.receiver) } else { Ok(None) }
            });
            *this.state = match begun {
                Ok(Some(receipt)) => State::Posted(receipt, Spin::default()),
                Ok(None) => State::Queued {
                    spin: Spin::default(),
                    _watching: this.receiver.attachment().shared.core.registry.watch(),
                },
                Err(error) => State::LaunchError(error),
            };
        }
        if let State::Queued { spin, .. } = this.state {
            let posted = ready!(post_in_line(this.receiver, spin, this.node.as_ref(), cx));
            *this.state = match posted {
                Ok(receipt) => State::Posted(receipt, Spin::default()),
                Err(error) => State::LaunchError(error),
            };
            begun_under = None;
        }
        Poll::Ready(begun_under)
    }

    pub(crate) fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Received, JobError>> {
        let fresh = matches!(self.state, State::Idle | State::Queued { .. });
        // The receive is posted or put in line before the budget is checked, so that other receives
        // do not pass it meanwhile.
        let begun_under = ready!(self.as_mut().poll_begin(cx));
        let this = self.project();
        // The budget is checked before the receive: if the future is dropped now, its message goes
        // to the next receive.
        let budget = if fresh {
            ready!(budget::proceed(cx));
            None
        } else {
            Some(ready!(tokio::task::coop::poll_proceed(cx)))
        };
        let (receipt, spin) = match this.state {
            State::Posted(receipt, spin) => (*receipt, spin),
            State::LaunchError(error) => {
                let error = *error;
                *this.state = State::Finished;
                budget::spent(0);
                return Poll::Ready(Err(error));
            }
            _ => panic!("an Op was polled after it had finished"),
        };
        let ended = ready!(poll_posted(this.receiver, receipt, begun_under, spin, cx));
        // Set first, as a log subscriber may panic in `settle`: the entry is not ours any more.
        *this.state = State::Finished;
        match budget {
            Some(budget) => budget.made_progress(),
            // A loop of refused receives must not starve other tasks either.
            None => budget::spent(0),
        }
        Poll::Ready(settle(this.receiver, receipt, ended))
    }
}

/// Checks that a receive can begin, and has this runtime notice its completion. Returns the policy.
fn ready_to_wait(receiver: &impl Receiver) -> Result<Policy, JobError> {
    receiver.attachment().check_open()?;
    receiver.check()?;
    let shared = &receiver.attachment().shared;
    let policy = shared.policy();
    if !policy.is_busy() {
        shared.events.register(shared)?;
    }
    Ok(policy)
}

/// Adopts the oldest receive whose operation was dropped, or posts a receive. Returns `None` if
/// there is neither such a receive nor a free entry.
#[inline(always)]
fn post(receiver: &impl Receiver) -> Result<Option<Receipt>, JobError> {
    let port = receiver.port();
    loop {
        if let Some(receipt) = port.receives().adopt() {
            return Ok(Some(receipt));
        }
        let mut buf = ArrayVec::from([receiver.begin()?]);
        let mut receipt = ArrayVec::<Receipt, 1>::new();
        port.post(&mut buf, &mut receipt)?;
        // An entry may be available by now: another receive may have become an orphan.
        if !receipt.is_empty() || port.receives().available() == 0 {
            return Ok(receipt.pop());
        }
    }
}

/// Posts a receive without waiting in line, or returns why it cannot be posted now.
#[inline(always)]
fn post_now(receiver: &impl Receiver) -> Result<Receipt, JobError> {
    let receives = receiver.port().receives();
    let receipt = match receives.lets_pass() {
        true => post(receiver)?,
        false => None,
    };
    receipt.ok_or_else(|| JobError::new(Reason::RecvQueueFull, receives.size() as u64, 0))
}

/// Waits in line for an entry, and posts the receive.
fn post_in_line(
    receiver: &impl Receiver,
    spin: &mut Spin,
    node: Pin<&WaitNode>,
    cx: &mut Context<'_>,
) -> Poll<Result<Receipt, JobError>> {
    let port = receiver.port();
    let enqueue = |waker: &Waker| port.enqueue(node, waker);
    let receives = &**port.receives();
    let take = || match receives.available() {
        0 => Ok(None),
        _ => Ok(post(receiver)?),
    };
    let polled = receiver
        .attachment()
        .poll_in_line(receives, node, spin, cx, enqueue, take);
    if polled.is_pending() {
        receiver.attachment().shared.arm_for_changes();
        if let Some(error) = port.failure() {
            receives.line.leave(node);
            receiver.attachment().shared.notify_line(receives, false);
            return Poll::Ready(Err(error));
        }
    }
    polled
}

/// Waits for the completion of a posted receive. `begun` is the policy if the receive was posted in
/// this poll. The result is an error if no runtime or loop would notice the completion, or the
/// WorkQ was shut down. The caller passes the result to [`settle`].
pub(crate) fn poll_posted(
    receiver: &impl Receiver,
    receipt: Receipt,
    begun: Option<Policy>,
    spin: &mut Spin,
    cx: &mut Context<'_>,
) -> Poll<Result<(), JobError>> {
    let (attachment, receives) = (receiver.attachment(), receiver.port().receives());
    // If the policy has changed, the new policy is followed from the next poll on, as for jobs.
    let policy = begun.unwrap_or_else(|| attachment.shared.policy());
    let posted = Posted(receives, receipt);
    // An adopted receive is not fresh, since it may have completed already.
    let fresh = begun.is_some() && !receipt.adopted;
    match attachment.poll_end(&posted, fresh, policy, spin, cx) {
        Poll::Ready(Waited::Done(())) => Poll::Ready(Ok(())),
        Poll::Ready(Waited::Lost(error)) => Poll::Ready(Err(error)),
        Poll::Pending => {
            // The WorkQ is checked after the receive was marked as asleep: pairs with `Shutdown`.
            fence(Ordering::SeqCst);
            match attachment.check_open() {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            }
        }
    }
}

/// Brings the message of a receive to its destination. `ended` is the result of [`poll_posted`]; on
/// an error, the message is left to the next receive.
#[inline(always)]
pub(crate) fn settle(
    receiver: &impl Receiver,
    receipt: Receipt,
    ended: Result<(), JobError>,
) -> Result<Received, JobError> {
    ended.inspect_err(|_| abandon(receiver.port(), receipt))?;
    let (shared, receives) = (receiver.port().shared(), receiver.port().receives());
    receive(shared, receives, receipt, |landed| receiver.adopt(landed))
}

/// Brings the message of a receive that has completed to its destination. `adopt` copies the
/// message of an adopted receive, which lies in the memory of another operation.
#[inline(always)]
fn receive(
    shared: &Shared,
    receives: &RecvTable,
    receipt: Receipt,
    adopt: impl FnOnce(&RecvCompletion) -> Result<(), JobError>,
) -> Result<Received, JobError> {
    let outcome = match receipt.adopted {
        false => {
            let (outcome, lease) = receives.finish(receipt);
            if let (Ok(received), Some(lease)) = (&outcome, &lease) {
                lease.grow(received.landed());
            }
            outcome
        }
        true => receive_adopted(shared, receives, receipt, adopt),
    };
    shared.notify_line(receives, false);
    outcome.map_err(|error| shared.why(error))
}

#[cold]
fn receive_adopted(
    shared: &Shared,
    receives: &RecvTable,
    receipt: Receipt,
    adopt: impl FnOnce(&RecvCompletion) -> Result<(), JobError>,
) -> Result<Received, JobError> {
    let landed = receives.take_adopted(receipt);
    let adopt = |received| adopt(&landed).map(|()| received);
    let adopted = landed.outcome.and_then(adopt);
    if adopted.is_err() && landed.outcome.is_ok() {
        let RecvCompletion { buf, .. } = landed;
        give_up(shared, receives, receives.put_back(receipt, buf));
    } else {
        receives.settle(receipt);
    }
    adopted
}

impl PostedRecv {
    pub(in crate::reactor) fn poll(
        &mut self,
        shared: &Arc<Shared>,
        waker: &Waker,
    ) -> Poll<Result<Received, JobError>> {
        let (receives, receipt) = (&*self.receives, self.receipt);
        if !receives.is_over(receipt) {
            receives.register(receipt, waker);
            // Pairs with the drop of the Rdma and with `Shutdown`, which wake the stored waker.
            fence(Ordering::SeqCst);
        }
        if !receives.is_over(receipt) {
            let reason = if !shared.core.registry.has(receives) {
                Reason::ContextGone
            } else if shared.closed.load(Ordering::SeqCst) {
                Reason::Shutdown
            } else {
                return Poll::Pending;
            };
            give_up(shared, receives, receives.abandon(receipt));
            return Poll::Ready(Err(JobError::of(reason)));
        }
        let to = self.to.take();
        Poll::Ready(receive(shared, receives, receipt, |landed| {
            match &to {
                Some(to) => return landed.hand_over(to),
                None => landed.grow(),
            }
            Ok(())
        }))
    }
}

/// Abandons a receive that its operation no longer waits for: the next receive gets its message.
pub(crate) fn abandon(port: &EndpointPort, receipt: Receipt) {
    let receives = port.receives();
    give_up(port.shared(), receives, receives.abandon(receipt));
}

fn give_up(shared: &Shared, receives: &RecvTable, ended: Ended) {
    discard(ended.waker);
    drop(ended.lease);
    if ended.freed {
        shared.notify_line(receives, false);
    }
}

#[pinned_drop]
impl<R: Receiver> PinnedDrop for RecvFuture<R> {
    fn drop(self: Pin<&mut Self>) {
        let this = self.project();
        match *this.state {
            State::Posted(receipt, _) => abandon(this.receiver.port(), receipt),
            // The drop of `node` leaves the line, and passes a notification on.
            State::Idle | State::Queued { .. } | State::LaunchError(_) | State::Finished => {}
        }
    }
}
