//! [`EventWaitFuture`], the future of one wait for a sync event inside an operation, from the first
//! poll to the value.
//!
//! ```text
//!   Idle --> Looking (no entry, each poll loads) --> Waiting (an entry, asleep) --> Finished
//!                |                                      ^   |
//!                +--> Queued (in line for an entry) ----+   +-- dropped: cancelled
//! ```
//!
//! While the mode is to spin, a wait only loads the value. It takes an entry when it is about to
//! sleep, or if the device cannot be asked without an entry.
//!
//! The waits that have the entries may never end, or never be polled again. A wait in line does not
//! rely on them: each of its polls reads the counter, and it pauses between two polls, as on a
//! device that cannot wait.

#![allow(
    unreachable_pub,
    private_bounds,
    reason = "named by what an operation is made of"
)]

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use pin_project::{pin_project, pinned_drop};

use super::event_port::EventPortHandle;
use crate::device::EventWait;
use crate::error::{JobError, Reason};
use crate::reactor::budget;
use crate::reactor::entry_table::Wanted;
use crate::reactor::mode::{LOOKS, Policy};
use crate::reactor::slots::{Awaited, Outcome};
use crate::reactor::spin::Spin;
use crate::reactor::tables::{PostedEntry, PostedWait, Ticket, WaitTable};
use crate::reactor::waiting::{Backoff, Waited};
use crate::reactor::workq::{HasAttachment, Shared};
use crate::sync::WaitNode;
use crate::sync::atomic::{Ordering, fence};

/// A request to wait for a sync event: its context, and the condition.
pub(crate) trait Waiter: HasAttachment {
    fn port(&self) -> &EventPortHandle;

    fn wait(&self) -> EventWait;

    /// Returns an error if the device cannot wait for this.
    fn check(&self) -> Result<(), JobError>;

    /// Returns the highest value of the event for which the device can wait.
    fn highest(&self) -> u64;
}

#[derive(Debug)]
enum State {
    Idle,
    Looking(Spin),
    Queued(Spin),
    Waiting(Ticket, Spin),
    /// The wait has ended, but the task's budget was spent.
    Ready(Outcome),
    Finished,
}

/// The future of an operation's wait for a sync event, pinned in the operation.
#[pin_project(PinnedDrop)]
pub struct EventWaitFuture<W: Waiter> {
    // Dropped before `waiter`, which keeps alive the list that the node is in.
    #[pin]
    node: WaitNode,
    /// The pauses between polls while the wait is in line.
    #[pin]
    nap: Option<Backoff>,
    waiter: W,
    state: State,
}

/// A wait with an entry, whose completion an operation awaits.
pub(in crate::reactor) struct Begun<'a>(pub(super) &'a WaitTable, pub(in crate::reactor) Ticket);

impl Awaited for Begun<'_> {
    type End = Outcome;

    #[inline(always)]
    fn take(&self) -> Option<Outcome> {
        self.0.take(self.1)
    }

    fn register(&self, waker: &Waker) {
        self.0.register(self.1, waker);
    }
}

impl<W: Waiter> EventWaitFuture<W> {
    pub(crate) fn new(waiter: W) -> EventWaitFuture<W> {
        EventWaitFuture {
            node: WaitNode::new(),
            nap: None,
            waiter,
            state: State::Idle,
        }
    }

    pub(crate) fn waiter(&self) -> &W {
        &self.waiter
    }

    /// Begins the wait with an entry, without waiting in line, or returns why it cannot begin now.
    pub(crate) fn start(&mut self) -> Result<(), JobError> {
        let policy = ready_to_wait(&self.waiter)?;
        let shared = &self.waiter.attachment().shared;
        if !policy.is_busy() {
            shared.events.register(shared)?;
        }
        self.state = State::Waiting(begin_now(&self.waiter)?, Spin::default());
        Ok(())
    }

    /// Begins the wait for the caller's own loop, without waiting in line, or returns why it cannot
    /// begin now. The future stays idle.
    pub(crate) fn post(&self, user_data: u64) -> Result<(), JobError> {
        let waiter = &self.waiter;
        waiter.attachment().check_open()?;
        waiter.check()?;
        let ticket = begin_now(waiter)?;
        let (shared, port) = (&waiter.attachment().shared, waiter.port());
        let waits = Arc::clone(port.waits());
        let port = Arc::clone(port.port());
        let posted = PostedWait {
            waits,
            port,
            ticket,
        };
        let entries = shared.own_loop.entries_or_new();
        entries.add(shared, user_data, PostedEntry::Wait(posted));
        Ok(())
    }

    pub(crate) fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let this = self.project();
        let fresh = matches!(this.state, State::Idle);
        let mut begun_under = None;
        if let State::Ready(outcome) = *this.state {
            *this.state = State::Finished;
            return Poll::Ready(outcome);
        }
        // A wait that begins, or is in line, is polled before the budget is checked, so that other
        // waits do not pass it meanwhile.
        let budget = match this.state {
            State::Idle | State::Queued(_) => None,
            _ => Some(ready!(tokio::task::coop::poll_proceed(cx))),
        };
        if fresh {
            match ready_to_wait(this.waiter) {
                Ok(policy) => {
                    begun_under = Some(policy);
                    *this.state = State::Looking(Spin::default());
                }
                // A loop of refused waits must not starve other tasks either.
                Err(error) => return finish(this.state, Err(error), cx),
            }
        }
        let (node, nap) = (this.node.as_ref(), this.nap);
        let polled = poll_waiter(this.waiter, this.state, node, nap, begun_under, cx);
        let outcome = ready!(polled);
        match budget {
            Some(budget) => {
                budget.made_progress();
                *this.state = State::Finished;
                Poll::Ready(outcome)
            }
            None => finish(this.state, outcome, cx),
        }
    }
}

impl PostedWait {
    pub(in crate::reactor) fn poll(
        &mut self,
        shared: &Arc<Shared>,
        waker: &Waker,
    ) -> Poll<Outcome> {
        let (waits, ticket) = (&*self.waits, self.ticket);
        let mut outcome = waits.take(ticket);
        if outcome.is_none() {
            waits.register(ticket, waker);
            // The outcome is checked after the waker was stored: pairs with the drop of the
            // SyncEvent, and with `Shutdown`.
            fence(Ordering::SeqCst);
            outcome = waits.take(ticket);
        }
        let outcome = if let Some(outcome) = outcome {
            outcome
        } else if !shared.core.registry.has(waits) {
            waits.leave(ticket);
            Err(JobError::of(Reason::ContextGone))
        } else if shared.closed.load(Ordering::SeqCst) {
            self.port.cancel(waits.token(ticket));
            waits.leave(ticket);
            Err(JobError::of(Reason::Shutdown))
        } else {
            return Poll::Pending;
        };
        shared.notify_line(waits, false);
        Poll::Ready(outcome)
    }
}

/// Finishes a wait that has ended within the poll that began it. If the budget is spent, the
/// outcome is kept for the next poll.
fn finish(state: &mut State, outcome: Outcome, cx: &mut Context<'_>) -> Poll<Outcome> {
    let polled = budget::finished(cx, 0).map(|()| outcome);
    *state = match polled {
        Poll::Ready(_) => State::Finished,
        Poll::Pending => State::Ready(outcome),
    };
    polled
}

/// Begins a wait without waiting in line, or returns why it cannot begin now.
fn begin_now(waiter: &impl Waiter) -> Result<Ticket, JobError> {
    let port = waiter.port();
    let waits = port.waits();
    let ticket = match waits.line().lets_pass(None, || true) {
        true => port.post(waiter.wait())?,
        false => None,
    };
    ticket.ok_or_else(|| JobError::new(Reason::WaitsFull, waits.size() as u64, 0))
}

/// Checks that a wait can begin. Returns the policy.
#[inline]
fn ready_to_wait(waiter: &impl Waiter) -> Result<Policy, JobError> {
    waiter.attachment().check_open()?;
    waiter.check()?;
    Ok(waiter.attachment().shared.policy())
}

fn poll_waiter(
    waiter: &impl Waiter,
    state: &mut State,
    node: Pin<&WaitNode>,
    mut nap: Pin<&mut Option<Backoff>>,
    begun: Option<Policy>,
    cx: &mut Context<'_>,
) -> Poll<Outcome> {
    let port = waiter.port();
    let mut begun = begun;
    if let State::Looking(spin) = state {
        match ready!(check_and_begin(waiter, spin, begun, cx)) {
            Ok(next) => *state = next,
            Err(outcome) => return Poll::Ready(outcome),
        }
    }
    if let State::Queued(spin) = state {
        let polled = ready!(poll_queued(waiter, spin, node, nap.as_mut(), cx));
        nap.set(None);
        let ticket = match polled {
            Ok(ticket) => ticket,
            Err(outcome) => return Poll::Ready(outcome),
        };
        *state = State::Waiting(ticket, Spin::default());
        begun = None;
    }
    let State::Waiting(ticket, spin) = state else {
        panic!("an Op was polled after it had finished")
    };
    let ticket = *ticket;
    // If the policy has changed, the new policy is followed from the next poll on, as for jobs.
    let policy = begun.unwrap_or_else(|| waiter.attachment().shared.policy());
    let begun_now = Begun(port.waits(), ticket);
    match waiter
        .attachment()
        .poll_end(&begun_now, begun.is_some(), policy, spin, cx)
    {
        Poll::Ready(Waited::Done(outcome)) => {
            port.free_on();
            Poll::Ready(outcome)
        }
        Poll::Ready(Waited::Lost(error)) => {
            port.cancel(ticket);
            Poll::Ready(Err(error))
        }
        Poll::Pending => {
            // The WorkQ is checked after the wait was marked as asleep: pairs with `Shutdown`.
            fence(Ordering::SeqCst);
            if let Err(error) = waiter.attachment().check_open() {
                port.cancel(ticket);
                return Poll::Ready(Err(error));
            }
            Poll::Pending
        }
    }
}

/// Polls the device while the policy is to spin, and then takes an entry or begins to wait in line
/// for one. `Err` has the outcome of a wait that ends without an entry.
#[inline]
fn check_and_begin(
    waiter: &impl Waiter,
    spin: &mut Spin,
    begun: Option<Policy>,
    cx: &mut Context<'_>,
) -> Poll<Result<State, Outcome>> {
    let shared = &waiter.attachment().shared;
    let policy = begun.unwrap_or_else(|| shared.policy());
    let found = ask_device(waiter, policy);
    if let Some(Poll::Ready(outcome)) = found {
        shared.spun(policy, spin);
        return Poll::Ready(Err(outcome));
    }
    let mut begin = || {
        waiter.attachment().check_open()?;
        let finish = !shared.spins(policy, spin);
        if !policy.is_busy() && (begun.is_some() || finish) {
            // Registered before the operation sleeps, since its runtime may have changed since the
            // last poll.
            shared.events.register(shared)?;
        }
        if found.is_some() && !finish {
            return Ok(None);
        }
        let port = waiter.port();
        let ticket = match port.waits().line().is_empty() {
            true => port.post(waiter.wait())?,
            false => None,
        };
        Ok(Some(match ticket {
            Some(ticket) => State::Waiting(ticket, *spin),
            None => State::Queued(*spin),
        }))
    };
    match begin() {
        Ok(Some(next)) => Poll::Ready(Ok(next)),
        Ok(None) => {
            if shared.ready() {
                shared.turn();
            }
            shared.misses.add();
            cx.waker().wake_by_ref();
            Poll::Pending
        }
        Err(error) => Poll::Ready(Err(Err(error))),
    }
}

/// Waits in line for an entry. `Err` has the outcome of a wait that ends without an entry.
#[cold]
fn poll_queued(
    waiter: &impl Waiter,
    spin: &mut Spin,
    node: Pin<&WaitNode>,
    mut nap: Pin<&mut Option<Backoff>>,
    cx: &mut Context<'_>,
) -> Poll<Result<Ticket, Outcome>> {
    let port = waiter.port();
    let leave = |outcome: Outcome| {
        port.leave(node);
        Poll::Ready(Err(outcome))
    };
    if let Some(outcome) = port.peek(&waiter.wait(), waiter.highest()).transpose() {
        return leave(outcome);
    }
    let enqueue = |waker: &Waker| port.enqueue(node, waker);
    let take = || Ok(port.post(waiter.wait())?);
    let waits = &**port.waits();
    if let Poll::Ready(taken) = waiter
        .attachment()
        .poll_in_line(waits, node, spin, cx, enqueue, take)
    {
        return Poll::Ready(taken.map_err(Err));
    }
    if nap.is_none() {
        nap.set(Some(Backoff::new(waiter.attachment().workq())));
    }
    match nap.as_pin_mut().map(|nap| nap.resume(cx)) {
        Some(Err(error)) => leave(Err(error)),
        _ => Poll::Pending,
    }
}

/// Polls the device, several times if `policy` is to spin. Returns `None` if the device cannot be
/// asked without a wait.
#[inline]
fn ask_device(waiter: &impl Waiter, policy: Policy) -> Option<Poll<Outcome>> {
    let (port, wait) = (waiter.port(), waiter.wait());
    for _ in 0..if policy.is_event() { 1 } else { LOOKS } {
        if let Poll::Ready(outcome) = port.ask(&wait)? {
            return Some(Poll::Ready(outcome));
        }
    }
    Some(Poll::Pending)
}

#[pinned_drop]
impl<W: Waiter> PinnedDrop for EventWaitFuture<W> {
    fn drop(self: Pin<&mut Self>) {
        let this = self.project();
        // The drop of `node` leaves the line, and passes a notification on.
        if let State::Waiting(ticket, _) = *this.state {
            this.waiter.port().cancel(ticket);
        }
    }
}
