//! What whoever looks at an endpoint does: takes what came, and sends what can be sent.
#![expect(unsafe_code, reason = "does Jobs whose memory was lent")]

use std::time::Instant;

use super::super::fault::Fault;
use super::connection::Connection;
use super::messages::{Got, INLINE, Watch};
use super::remote::Step;
use super::state::{EndpointInner, Shared};
use crate::device::{Completion, EndpointState};
use crate::error::{JobError, Reason};
use crate::sync::deadline;

/// Bytes that are copied at one look.
const LOOK: usize = 256 << 10;

/// Notifies the peer of messages. Returns false if nobody has them: the next look takes what came
/// before, and fails. `told` says which of the completions are of messages, a bit for each of the
/// first 64.
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

/// Returns what a message to a peer that has left ends with.
#[cold]
fn gone(connection: &Connection) -> JobError {
    let left = connection.presence().err();
    JobError::flushed(left.unwrap_or(JobError::of(Reason::PeerGone)))
}

/// What a look at an endpoint came to.
#[derive(Default)]
pub(super) struct Look {
    /// Completions.
    pub(super) filled: usize,
    /// There is more to do at once.
    pub(super) more: bool,
    /// A message came.
    pub(super) traffic: bool,
    /// It is retired, and nothing is left.
    pub(super) finished: bool,
    /// What comes next, while there is a connection.
    pub(super) watch: Option<Watch>,
}

impl Look {
    /// Hands out a completion, for which there is room.
    fn put(&mut self, out: &mut [Completion], completion: Completion) {
        out[self.filled] = completion;
        self.filled += 1;
    }
}

impl EndpointInner {
    /// Hands out what has completed.
    fn drain(&mut self, out: &mut [Completion], look: &mut Look) {
        while look.filled < out.len()
            && let Some(completion) = self.done.pop_front()
        {
            look.put(out, completion);
        }
    }
}

impl Shared {
    /// Looks what there is to do, and does a part of it.
    ///
    /// # Safety
    ///
    /// The memory of what was accepted is valid and leased.
    pub(super) unsafe fn look(&self, out: &mut [Completion]) -> Look {
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

    /// Takes what came, and sends what can be sent. An error is what the endpoint fails with; who
    /// it is of was notified.
    ///
    /// # Safety
    ///
    /// As for `look`.
    unsafe fn work(
        &self,
        inner: &mut EndpointInner,
        out: &mut [Completion],
        look: &mut Look,
    ) -> Result<(), JobError> {
        let Some(mut connection) = inner.connection.take() else {
            // The guest has not come yet.
            inner.check_awaited()?;
            return self.wait(inner).map_err(|error| inner.fail_first(error));
        };
        // First: what it published before it left is still taken.
        let there = connection.presence();
        let received = match self.config.pooled_room {
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

    /// Looks whether messages have come that wait to be pulled.
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
    /// As for `look`.
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
            let dst = inner
                .posted
                .front()
                .map(|posted| (&posted.dst, posted.room));
            // SAFETY: the oldest receive's memory, which is valid and leased as the caller
            // promises.
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
                let have = posted.room as u64;
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
            connection.notify_room();
        }
        result
    }

    /// # Safety
    ///
    /// As for `look`.
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
            let Some(send) = inner.sends.front().copied() else {
                break Ok(());
            };
            if look.filled == out.len() || left == 0 {
                look.more = true;
                break Ok(());
            }
            let (token, job) = (send.token, send.job);
            if let Some(error) = send.fault.error() {
                break Err(error);
            }
            if send.fault == Fault::Lost {
                inner.sends.pop_front();
                continue;
            }
            let before = inner.copied;
            let to_nobody = has_left && job.verb.is_told();
            if to_nobody && connection.has_to_be_pulled() {
                // The connection stays until all that came was taken.
                self.complete(inner, connection);
                look.put(out, Completion::new(token, Err(gone(connection))));
                continue;
            }
            let step = match to_nobody {
                // It fails with the connection, once all that came before was taken.
                true => Ok(Step::Waits),
                // SAFETY: the Job's memory is valid and leased, as the caller promises.
                false => unsafe { connection.step(&job, &mut inner.copied, left) },
            };
            published |= job.verb.is_told() && !to_nobody;
            let moved = match step {
                Ok(Step::Done(_)) => job.len - before,
                _ => inner.copied - before,
            };
            // What moves nothing takes its time too.
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

    /// The first Job waits for the peer, and had `before` bytes sent. Returns whether to look once
    /// more: the peer must see that this side waits, or have posted before.
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
        // Of a peer that has left, messages were not taken in time.
        let left = connection.presence().err();
        let waited = self.wait(inner).map_err(|error| left.unwrap_or(error));
        waited.map(|()| false)
    }

    /// Completes the first Job.
    fn complete(&self, inner: &mut EndpointInner, connection: &mut Connection) {
        inner.sends.pop_front();
        inner.copied = 0;
        self.clear_timeout(inner, connection);
        self.ports.count();
    }

    /// The first Job continues.
    fn clear_timeout(&self, inner: &mut EndpointInner, connection: &mut Connection) {
        inner.due = None;
        if connection.wants {
            connection.want(false);
        }
    }

    /// The first Job waits for the peer, but not for ever.
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
