//! [`JobFuture`], the future of one job inside an operation, from the first poll to the result.
//!
//! ```text
//!   Idle --> (finished inline) ----------------------------+
//!    |                                                     v
//!    +--> Queued (in line for a Slot) --> InFlight --> Finished
//!    +-----------------------------------^    |
//!                                             +-- dropped: the Slot is an orphan
//! ```
//!
//! `waiting/wait.rs` says how the future waits.

#![allow(unreachable_pub, reason = "named by what an operation is made of")]

use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use arrayvec::ArrayVec;
use pin_project::{pin_project, pinned_drop};

use crate::device::{AsJob, Token};
use crate::error::{JobError, Reason};
use crate::reactor::budget;
use crate::reactor::mode::Policy;
use crate::reactor::slots::{InFlight, Outcome, ReservedSlot, Target};
use crate::reactor::spin::Spin;
use crate::reactor::waiting::Waited;
use crate::reactor::workq::{Attachment, HasAttachment, LaunchError, Prepared, Shared};
use crate::sync::WaitNode;

#[derive(Debug)]
enum State {
    Idle,
    Queued(Spin),
    InFlight(Token, Spin),
    Ready(Outcome),
    Finished,
}

/// The future of an operation's job, pinned in the operation. `C` is the operation's request, by
/// which the job reaches its context, borrowed or owned.
#[pin_project(PinnedDrop)]
pub struct JobFuture<C: HasAttachment> {
    // Dropped before `context`, which keeps alive the list that the node is in.
    #[pin]
    node: WaitNode,
    context: C,
    state: State,
}

impl<C: HasAttachment> JobFuture<C> {
    #[inline(always)]
    pub(crate) fn new(context: C) -> JobFuture<C> {
        JobFuture {
            context,
            state: State::Idle,
            node: WaitNode::new(),
        }
    }

    /// Returns true if the job has not begun.
    #[inline(always)]
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    #[inline(always)]
    pub(crate) fn context(&self) -> &C {
        &self.context
    }

    /// Marks the future as finished: its job was refused, or has finished inline.
    #[inline(always)]
    pub(crate) fn finish(self: Pin<&mut Self>) {
        *self.project().state = State::Finished;
    }

    /// Keeps the outcome of a completed job until the next poll, since the task's budget is spent.
    #[cold]
    pub(crate) fn keep(self: Pin<&mut Self>, outcome: Outcome) -> Poll<Outcome> {
        *self.project().state = State::Ready(outcome);
        Poll::Pending
    }

    /// Submits the job without waiting, or returns why the job cannot be submitted now.
    pub(crate) fn try_start<J: AsJob>(
        &mut self,
        mut prepared: Prepared<J>,
    ) -> Result<(), JobError> {
        let attachment = self.context.attachment();
        let shared = &attachment.shared;
        if !shared.mode.load().is_busy() {
            shared.events.register(shared)?;
        }
        let slot = attachment.try_take()?;
        let token = attachment.launch(slot, &mut prepared, None)?;
        self.state = State::InFlight(token, Spin::default());
        Ok(())
    }

    /// Marks the job as in flight, after `Attachment::try_start_all` has submitted it.
    pub(crate) fn set_in_flight(&mut self, token: Token) {
        self.state = State::InFlight(token, Spin::default());
    }

    /// Stores the outcome of a job that finished inline when it was started. The next poll returns
    /// it.
    pub(crate) fn set_ready(&mut self, outcome: Outcome) {
        self.state = State::Ready(outcome);
    }

    /// Submits a job that was not finished inline, or puts it in line for a slot, and polls it
    /// once. If the job waited in line, `prepare` takes its Leases again once there is a slot.
    #[inline(never)]
    pub(crate) fn start<J: AsJob>(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        prepared: &mut Prepared<J>,
        prepare: impl Fn(&C) -> Result<Prepared<J>, JobError>,
    ) -> Poll<Outcome> {
        let this = self.project();
        let attachment = this.context.attachment();
        let policy = attachment.shared.mode.load();
        match attachment.begin(prepared, policy) {
            Ok(begun) => *this.state = begun,
            Err(error) => {
                *this.state = State::Finished;
                return Poll::Ready(Err(error));
            }
        }
        let (state, node) = (this.state, this.node.as_ref());
        let prepare = || prepare(this.context);
        attachment.poll_begun(state, Some(policy), node, cx, &prepare)
    }

    /// Continues a job that has begun.
    #[inline(never)]
    pub(crate) fn resume<J: AsJob>(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        prepare: impl Fn(&C) -> Result<Prepared<J>, JobError>,
    ) -> Poll<Outcome> {
        let this = self.as_mut().project();
        match *this.state {
            State::Queued(..) | State::InFlight(..) => {
                // A job in line is submitted before the budget is checked, so that other jobs do
                // not pass it meanwhile.
                let budget = match this.state {
                    State::Queued(..) => None,
                    _ => Some(ready!(tokio::task::coop::poll_proceed(cx))),
                };
                let prepare = || prepare(this.context);
                let attachment = this.context.attachment();
                let (state, node) = (this.state, this.node.as_ref());
                let outcome = ready!(attachment.poll_begun(state, None, node, cx, &prepare));
                match budget {
                    Some(budget) => {
                        budget.made_progress();
                        Poll::Ready(outcome)
                    }
                    None => match budget::finished(cx, 0) {
                        Poll::Ready(()) => Poll::Ready(outcome),
                        Poll::Pending => self.keep(outcome),
                    },
                }
            }
            State::Ready(outcome) => {
                *this.state = State::Finished;
                Poll::Ready(outcome)
            }
            State::Idle | State::Finished => panic!("an Op was polled after it had finished"),
        }
    }
}

/// A slot that is held while the device tries to finish its job inline, which may panic. Dropping
/// it frees the slot, and notifies a waiter in line and the futures that wait for a shutdown.
pub(crate) struct Reserved<'a> {
    shared: &'a Shared,
    slot: Option<ReservedSlot<'a>>,
}

impl<'a> Reserved<'a> {
    #[inline(always)]
    pub(in crate::reactor) fn take(mut self) -> ReservedSlot<'a> {
        self.slot.take().expect("it is taken once")
    }
}

impl Drop for Reserved<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            drop(slot);
            self.shared.after_free();
        }
    }
}

impl Attachment {
    /// Takes a free slot without waiting. The caller may pass the operations in line if all of them
    /// were notified and have not been polled. It may pass operations of its own connection or
    /// event only if an earlier call was refused after they were notified.
    ///
    /// # Errors
    ///
    /// `Again` if no slot is free, or if the caller may not pass the operations in line.
    fn try_take(&self) -> Result<ReservedSlot<'_>, JobError> {
        let shared = &self.shared;
        let (line, table) = (&shared.waiters, &shared.core.table);
        let order = self.order.as_deref();
        let free = line
            .lets_pass(order, || table.free().free() > 0)
            .then(|| table.take())
            .flatten();
        free.ok_or_else(|| JobError::new(Reason::QueueFull, table.free().slots() as u64, 0))
    }

    /// Submits at most `N` jobs together, in order, without waiting. Adds the Tokens of the
    /// accepted jobs to `tokens`, which must be empty. If a job was not accepted, returns the
    /// reason; the Leases of such a job are given back when it is dropped.
    #[inline(always)]
    pub(crate) fn try_start_all<J: AsJob, const N: usize>(
        &self,
        batch: &mut [Prepared<J>],
        tokens: &mut ArrayVec<Token, N>,
    ) -> Option<JobError> {
        let shared = &self.shared;
        if !shared.mode.load().is_busy()
            && let Err(error) = shared.events.register(shared)
        {
            return Some(error);
        }
        let mut full = None;
        let batch = batch.iter_mut().map_while(|job| match self.try_take() {
            Ok(slot) => Some((slot, job, None)),
            Err(error) => {
                full = Some(error);
                None
            }
        });
        let refused = self.launch_all(batch, tokens);
        refused.map(JobError::from).or(full)
    }

    /// Takes a slot as `try_start_all` does, for a job that the device may finish inline.
    pub(crate) fn try_reserve(&self) -> Result<Reserved<'_>, JobError> {
        let slot = Some(self.try_take()?);
        let shared = &self.shared;
        Ok(Reserved { shared, slot })
    }

    /// Frees a slot that was taken or whose job has completed, and notifies the next waiter in
    /// line.
    #[inline(always)]
    pub(in crate::reactor) fn give_back(&self, index: u32) {
        self.shared.give_back(index);
    }

    /// Submits a job that was not finished inline. If it must wait for a slot, gives its Leases
    /// back and returns `Queued`.
    #[inline(always)]
    fn begin<J: AsJob>(
        &self,
        prepared: &mut Prepared<J>,
        policy: Policy,
    ) -> Result<State, JobError> {
        let shared = &self.shared;
        if !policy.is_busy() {
            // Registered before the job is submitted: without a runtime no thread would notice that
            // it completes.
            shared.events.register(shared)?;
        }
        if shared.waiters.is_empty()
            && let Some(slot) = shared.core.table.take()
        {
            match self.launch(slot, prepared, None) {
                // The job waits in line, and is submitted again from there.
                Err(LaunchError::Full(_)) => {}
                Err(LaunchError::Error(error)) => return Err(error),
                Ok(token) => return Ok(State::InFlight(token, Spin::default())),
            }
        }
        prepared.give_back();
        Ok(State::Queued(Spin::default()))
    }

    /// Waits in line for a slot and submits the job. Once there is a slot, `prepare` returns the
    /// job with its Leases, and the target to notify once it has completed.
    pub(in crate::reactor) fn poll_queued<J: AsJob>(
        &self,
        node: Pin<&WaitNode>,
        spin: &mut Spin,
        cx: &mut Context<'_>,
        prepare: &impl Fn() -> Result<(Prepared<J>, Option<Target>), JobError>,
    ) -> Poll<Result<Token, JobError>> {
        let shared = &self.shared;
        let enqueue = |waker: &Waker| shared.enqueue(self.order.as_ref(), node, waker);
        let take = || {
            // While the line is paused, the device would refuse the job.
            let may_ask = !shared.pause.is_on();
            let Some(slot) = may_ask.then(|| shared.core.table.take()).flatten() else {
                return Ok(None);
            };
            let (mut prepared, target) = match prepare() {
                Ok(prepared) => prepared,
                Err(error) => {
                    drop(slot);
                    shared.after_free();
                    return Err(error.into());
                }
            };
            self.launch(slot, &mut prepared, target).map(Some)
        };
        self.poll_in_line(&**shared, node, spin, cx, enqueue, take)
    }

    /// Polls a job that is in line or in flight. `begun` is the policy under which the job began,
    /// if it began in this very poll. If the policy has changed since, the new policy is followed
    /// from the next poll on, since this runtime may not be registered.
    fn poll_begun<J: AsJob>(
        &self,
        state: &mut State,
        begun: Option<Policy>,
        node: Pin<&WaitNode>,
        cx: &mut Context<'_>,
        prepare: &impl Fn() -> Result<Prepared<J>, JobError>,
    ) -> Poll<Outcome> {
        let resumed = begun.is_none();
        let mut begun = begun;
        if let State::Queued(spin) = state {
            let prepare = || Ok((prepare()?, None));
            match self.poll_queued(node, spin, cx, &prepare) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(token)) => {
                    *state = State::InFlight(token, Spin::default());
                    begun = None;
                }
                Poll::Ready(Err(error)) => {
                    *state = State::Finished;
                    return Poll::Ready(Err(error));
                }
            }
        }
        let State::InFlight(token, spin) = state else {
            unreachable!("a queued Job has just been launched")
        };
        let token = *token;
        // True if the job was submitted in this very poll, and so on this runtime.
        let fresh = begun.is_some();
        let policy = begun.unwrap_or_else(|| self.shared.mode.load());
        let job = InFlight(self.shared.core.table.slot(token), token);
        // Another operation's turn, or an event's, has reaped most completions by now.
        let ended = match resumed {
            true => self.take_end(&job, policy),
            false => None,
        };
        let outcome = match ended {
            Some(outcome) => Poll::Ready(Waited::Done(outcome)),
            None => self.poll_end(&job, fresh, policy, spin, cx),
        };
        if let Poll::Ready(outcome) = outcome {
            // `Lost` is an error of the runtime and not of the job. The job stays in flight, as an
            // orphan.
            match outcome {
                Waited::Done(outcome) => {
                    *state = State::Finished;
                    self.give_back(token.index());
                    return Poll::Ready(outcome);
                }
                Waited::Lost(error) => {
                    self.abandon(token);
                    *state = State::Finished;
                    return Poll::Ready(Err(error));
                }
            }
        }
        Poll::Pending
    }

    /// Abandons the job of an operation that is dropped; the job may still be in flight.
    pub(in crate::reactor) fn abandon(&self, token: Token) {
        let shared = &self.shared;
        if shared.core.table.slot(token).abandon() {
            self.give_back(token.index());
            return;
        }
        // A thread must notice the orphan's completion, or its memory stays leased. If this thread
        // has a runtime, that runtime notices it (the runtime that polled may be gone); otherwise
        // the next poll of any operation does.
        let heard = shared.events.try_register(shared);
        shared.arm_for_orphans(heard);
    }
}

#[pinned_drop]
impl<C: HasAttachment> PinnedDrop for JobFuture<C> {
    fn drop(self: Pin<&mut Self>) {
        let this = self.project();
        match *this.state {
            State::InFlight(token, _) => this.context.attachment().abandon(token),
            // The drop of `node` leaves the line, and passes a notification on.
            State::Idle | State::Queued(..) | State::Ready(_) | State::Finished => {}
        }
    }
}
