//! What a poll of an endpoint does: it takes arrived messages, and sends queued jobs.
#![expect(unsafe_code, reason = "does Jobs whose memory was lent")]

use std::time::Instant;

use super::super::fault::Fault;
use super::connection::Connection;
use super::messages::{Got, INLINE, Watch};
use super::remote::Step;
use super::state::{EndpointInner, Send, Shared};
use crate::device::{Completion, EndpointState};
use crate::error::{JobError, Reason};
use crate::sync::deadline;

/// The maximum number of bytes that one poll copies in each direction.
const LOOK: usize = 256 << 10;

/// Notifies the peer of messages. Returns false if the peer has ended: the completions of these
/// messages then become errors; the next poll takes what arrived before, and then fails the
/// endpoint. `told` has a bit for each of the first 64 completions, which is set for the completion
/// of a message.
fn notify(connection: &Connection, done: &mut [Completion], told: u64) -> bool {
    let notified = connection.notify_message();
    if !notified {
        let error = gone(connection);
        let of_message = |at: &usize| told.checked_shr(*at as u32).is_some_and(|it| it & 1 == 1);
        for at in (0..done.len()).filter(of_message) {
            done[at].result = Err(error);
        }
    }
    notified
}

/// Returns the error of a message to a peer that has left.
#[cold]
fn gone(connection: &Connection) -> JobError {
    let left = connection.presence().err();
    JobError::flushed(left.unwrap_or(JobError::of(Reason::PeerGone)))
}

/// The result of a poll of an endpoint.
#[derive(Default)]
pub(super) struct Look {
    /// The number of completions.
    pub(super) filled: usize,
    /// True if there is more to do now.
    pub(super) more: bool,
    /// True if a message, or a part of one, has come.
    pub(super) traffic: bool,
    /// True if the endpoint is retired, and nothing is left to do.
    pub(super) finished: bool,
    /// What must arrive next, if there is a connection.
    pub(super) watch: Option<Watch>,
}

impl Look {
    /// Puts a completion into `out`, which has capacity for it.
    fn put(&mut self, out: &mut [Completion], completion: Completion) {
        out[self.filled] = completion;
        self.filled += 1;
    }
}

impl EndpointInner {
    /// Moves completions that wait into `out`.
    fn drain(&mut self, out: &mut [Completion], look: &mut Look) {
        while look.filled < out.len()
            && let Some(completion) = self.done.pop_front()
        {
            look.put(out, completion);
        }
    }
}

impl Shared {
    /// Polls the endpoint: does a part of its work.
    ///
    /// # Safety
    ///
    /// The memory of all accepted jobs and receives is valid and leased.
    pub(super) unsafe fn serve(&self, out: &mut [Completion]) -> Look {
        let mut guard = self.inner();
        let inner = &mut *guard;
        let mut look = Look::default();
        inner.drain(out, &mut look);
        if inner.state == EndpointState::Connected {
            // SAFETY: as the caller promises.
            if let Err(cause) = unsafe { self.work(inner, out, &mut look) } {
                self.fail(inner, cause);
            }
            inner.drain(out, &mut look);
        }
        look.more |= !inner.done.is_empty();
        look.finished = inner.retired && inner.done.is_empty();
        let connection = inner.connection.as_ref();
        look.watch = connection.map(|connection| connection.receiving.watch());
        look
    }

    /// Takes arrived messages, and sends queued jobs. If this returns an error, the endpoint fails
    /// with it; a job that caused the error has its completion already.
    ///
    /// # Safety
    ///
    /// As for `serve`.
    unsafe fn work(
        &self,
        inner: &mut EndpointInner,
        out: &mut [Completion],
        look: &mut Look,
    ) -> Result<(), JobError> {
        let Some(mut connection) = inner.connection.take() else {
            // The client has not connected yet.
            inner.check_awaited()?;
            return self.wait(inner).map_err(|error| inner.fail_first(error));
        };
        // The presence is read first, so that everything that the peer published before it left is
        // taken.
        let there = connection.presence();
        let received = match self.config.pooled_len {
            Some(_) => self.note(&mut connection, look),
            // SAFETY: as the caller promises.
            None => unsafe { self.receive(inner, &mut connection, out, look) },
        };
        let sent = received.and_then(|()| match inner.sends.is_empty() {
            true => Ok(()),
            // SAFETY: as above.
            false => unsafe { self.send(inner, &mut connection, out, look) },
        });
        let left = there
            .err()
            .filter(|_| !look.more && !connection.receiving.has_more(&connection.messages));
        inner.connection = Some(connection);
        sent.and(left.map_or(Ok(()), Err))
    }

    /// Checks whether messages have come that wait to be pulled, and whether a caller must be
    /// notified.
    fn note(&self, connection: &mut Connection, look: &mut Look) -> Result<(), JobError> {
        let nonsense = |_| JobError::of(Reason::PeerNonsense);
        let told = connection.receiving.note(&connection.messages);
        if told.map_err(nonsense)? {
            look.traffic = true;
            self.set_changed();
        }
        Ok(())
    }

    /// # Safety
    ///
    /// As for `serve`.
    unsafe fn receive(
        &self,
        inner: &mut EndpointInner,
        connection: &mut Connection,
        out: &mut [Completion],
        look: &mut Look,
    ) -> Result<(), JobError> {
        let mut left = LOOK;
        let mut streamed = false;
        let result = loop {
            if look.filled == out.len() {
                look.more |= connection.receiving.has_more(&connection.messages);
                break Ok(());
            }
            let dst = inner.posted.front().map(|posted| (&posted.dst, posted.len));
            // SAFETY: this is the memory of the oldest receive, which is valid and leased as the
            // caller promises.
            let got = unsafe { connection.receiving.take(&connection.messages, dst, left) };
            let head = match got {
                Err(_) => break Err(JobError::of(Reason::PeerNonsense)),
                Ok(Got::Nothing) => break Ok(()),
                Ok(Got::Part { more }) => {
                    (streamed, look.traffic) = (true, true);
                    look.more |= more;
                    break Ok(());
                }
                Ok(Got::All(head)) => head,
            };
            look.traffic = true;
            streamed |= head.len as usize > INLINE;
            let posted = inner.posted.pop_front().expect("the message was for it");
            let len = head.len as usize;
            let Some(arrival) = head.arrival() else {
                let have = posted.len as u64;
                let error = JobError::new(Reason::ReceiveTooSmall, len as u64, have);
                look.put(out, Completion::new(posted.token, Err(error)));
                break Err(error);
            };
            let completion = Completion::received(posted.token, arrival, len);
            look.put(out, completion);
            left = left.saturating_sub(len);
            if left == 0 {
                look.more |= connection.receiving.has_more(&connection.messages);
                break Ok(());
            }
        };
        if streamed {
            connection.notify_freed();
        }
        result
    }

    /// # Safety
    ///
    /// As for `serve`.
    #[inline(never)]
    unsafe fn send(
        &self,
        inner: &mut EndpointInner,
        connection: &mut Connection,
        out: &mut [Completion],
        look: &mut Look,
    ) -> Result<(), JobError> {
        let mut left = LOOK;
        let has_left = connection.presence().is_err();
        let (mut published, mut told, first) = (false, 0_u64, look.filled);
        let result = loop {
            let Some(Send { token, job, fault }) = inner.sends.front().copied() else {
                break Ok(());
            };
            if look.filled == out.len() || left == 0 {
                look.more = true;
                break Ok(());
            }
            if let Some(error) = fault.error() {
                break Err(error);
            }
            if fault == Fault::Lost {
                inner.sends.pop_front();
                self.faults.add_lost(&self.ports.signal);
                continue;
            }
            let before = inner.copied;
            let to_nobody = has_left && job.verb.is_told();
            if to_nobody && connection.has_to_be_pulled() {
                // The connection stays until all messages were pulled, so only this job fails.
                self.complete(inner, connection);
                look.put(out, Completion::new(token, Err(gone(connection))));
                continue;
            }
            let step = match to_nobody {
                // The job fails together with the connection, once everything that arrived before
                // was taken.
                true => Ok(Step::Waits),
                // SAFETY: the job's memory is valid and leased, as the caller promises.
                false => unsafe { connection.step(&job, &mut inner.copied, left) },
            };
            published |= job.verb.is_told() && !to_nobody;
            let moved = match step {
                Ok(Step::Done(_)) => job.len - before,
                _ => inner.copied - before,
            };
            // Operations without bytes take time as well, so each counts as at least 64 bytes.
            left = left.saturating_sub(moved.max(64));
            match step {
                Ok(Step::Done(answer)) => {
                    self.complete(inner, connection);
                    let bit = 1_u64.checked_shl((look.filled - first) as u32);
                    told |= bit.filter(|_| job.verb.is_told()).unwrap_or(0);
                    look.put(out, Completion::new(token, Ok(answer)));
                }
                Ok(Step::More) => {
                    self.clear_timeout(inner, connection);
                    look.more = true;
                    break Ok(());
                }
                Ok(Step::Waits) => match self.waits(inner, connection, before) {
                    Ok(true) => {}
                    waited => break waited.map(drop),
                },
                Err(error) => break Err(error),
            }
        };
        look.more |= published && !notify(connection, &mut out[first..look.filled], told);
        if inner.sends.is_empty() {
            self.reopen(inner);
        }
        result.map_err(|error| inner.fail_first(error))
    }

    /// Has the first job wait for the peer; `before` bytes of it were sent before this poll.
    /// Returns true if the caller must try once more: the peer has only now been told that this
    /// side waits, and may have posted before.
    fn waits(
        &self,
        inner: &mut EndpointInner,
        connection: &mut Connection,
        before: usize,
    ) -> Result<bool, JobError> {
        if inner.copied != before {
            inner.due = None;
        }
        if !connection.wants {
            connection.want(true);
            return Ok(true);
        }
        // If the peer has left, its messages were not pulled in time.
        let left = connection.presence().err();
        let waited = self.wait(inner).map_err(|error| left.unwrap_or(error));
        waited.map(|()| false)
    }

    /// Completes the first job.
    fn complete(&self, inner: &mut EndpointInner, connection: &mut Connection) {
        inner.sends.pop_front();
        inner.copied = 0;
        self.clear_timeout(inner, connection);
        self.ports.count();
    }

    /// Clears the time limit of the first job, since the job makes progress.
    fn clear_timeout(&self, inner: &mut EndpointInner, connection: &mut Connection) {
        inner.due = None;
        if connection.wants {
            connection.want(false);
        }
    }

    /// Has the first job wait for the peer, until its time limit.
    fn wait(&self, inner: &mut EndpointInner) -> Result<(), JobError> {
        if inner.sends.is_empty() {
            return Ok(());
        }
        let timeout = self.config.rnr_timeout;
        let due = *inner.due.get_or_insert_with(|| deadline(timeout));
        if due <= Instant::now() {
            let millis = timeout.as_millis() as u64;
            return Err(JobError::new(Reason::NoReceive, millis, 0));
        }
        self.ports.note_due(due);
        Ok(())
    }
}
