//! The state of an endpoint, and the jobs and receives that are posted to it.
//!
//! One lock guards everything that changes. One-sided operations do not take it if nothing is
//! queued before them: they are copies, and read a word which shows whether the endpoint is
//! connected and idle, and what the peer permits.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use super::super::counter::Counter;
use super::super::fabric::{Ended, Process, Published, words_of};
use super::super::fault::{Fault, Faults};
use super::super::ports::Ports;
use super::connection::Connection;
use super::messages::{MessageRing, Presence, Watch};
use super::payload::Identity;
use crate::device::{Completion, EndpointConfig, EndpointState, RdmaJob, Receive, Token};
use crate::error::{JobError, Reason, Result};
use crate::sync::{BriefGuard, BriefMutex, lock, try_lock};

pub(in super::super) struct Shared {
    pub(super) ports: Arc<Ports>,
    pub(super) number: u32,
    pub(super) config: EndpointConfig,
    /// The words that one-sided operations read, without the lock, to find out whether they may run
    /// at once.
    pub(super) open: Open,
    /// Copies of the queue's `faults` and `inline_jobs`, for faster access.
    pub(super) faults: Faults,
    pub(super) inline_jobs: Arc<Counter>,
    pub(super) inner: BriefMutex<EndpointInner>,
    /// True if the state has changed or a message has come, and the crate was not notified yet.
    pub(super) changed: AtomicBool,
    pub(super) me: Weak<Shared>,
}

/// Words that one-sided operations read. They are set while the endpoint is connected and nothing
/// is queued.
#[derive(Default)]
pub(super) struct Open {
    /// [`IDLE`] together with the bits of the access that the peer permits; 0 if an operation may
    /// not run at once.
    pub(super) word: AtomicU64,
    /// The instance of the peer's fabric, in two halves.
    pub(super) peer: [AtomicU64; 2],
    /// The number of one-sided operations so far. It is approximate, since several threads may
    /// count at once.
    pub(super) turn: AtomicU32,
}

pub(super) const IDLE: u64 = 1 << 32;

pub(super) struct EndpointInner {
    pub(super) state: EndpointState,
    /// The peer that the endpoint is connected to or, in the state Init, listens for.
    pub(super) expected: Option<Identity>,
    /// True if the endpoint is connected only once the expected peer has come.
    pub(super) listens: bool,
    /// The peer that came before this side connected.
    pub(super) visitor: Option<(Identity, Connection)>,
    /// The connection to the peer. Boxed, so that the thread that polls can take it out.
    pub(super) connection: Option<Box<Connection>>,
    pub(super) published: Option<Published>,
    /// The process of the client for which this endpoint waits. If it ends before the client
    /// connects, the endpoint fails.
    pub(super) awaited: Option<Arc<Process>>,
    pub(super) sends: VecDeque<Send>,
    /// The number of bytes of the first send that are done.
    pub(super) copied: usize,
    /// When the first send fails if it still waits for the peer.
    pub(super) due: Option<Instant>,
    pub(super) posted: VecDeque<Receive>,
    pub(super) done: VecDeque<Completion>,
    pub(super) retired: bool,
}

/// What a connection kept alive in the fabric: its published ticket, and the client's process.
pub(super) type Kept = (Option<Published>, Option<Arc<Process>>);

#[derive(Clone, Copy)]
pub(super) struct Send {
    pub(super) token: Token,
    pub(super) job: RdmaJob,
    pub(super) fault: Fault,
}

impl Shared {
    pub(super) fn new(ports: Arc<Ports>, number: u32, config: EndpointConfig) -> Arc<Shared> {
        Arc::new_cyclic(|me| Shared {
            me: Weak::clone(me),
            number,
            open: Open::default(),
            faults: ports.faults().clone(),
            inline_jobs: Arc::clone(&ports.inline_jobs),
            changed: AtomicBool::new(false),
            inner: BriefMutex::new(EndpointInner {
                state: EndpointState::Init,
                expected: None,
                listens: false,
                visitor: None,
                connection: None,
                published: None,
                awaited: None,
                sends: VecDeque::new(),
                copied: 0,
                due: None,
                posted: VecDeque::new(),
                done: VecDeque::new(),
                retired: false,
            }),
            ports,
            config,
        })
    }

    pub(super) fn inner(&self) -> BriefGuard<'_, EndpointInner> {
        lock(&self.inner)
    }

    pub(super) fn try_inner(&self) -> Option<BriefGuard<'_, EndpointInner>> {
        try_lock(&self.inner)
    }

    /// Updates the words that one-sided operations read without the lock.
    pub(super) fn reopen(&self, inner: &EndpointInner) {
        let word = match (&inner.state, &inner.expected) {
            (EndpointState::Connected, Some(peer)) if inner.sends.is_empty() => {
                for (half, word) in self.open.peer.iter().zip(words_of(&peer.instance)) {
                    half.store(word, Ordering::Relaxed);
                }
                IDLE | u64::from(peer.permissions.bits())
            }
            _ => 0,
        };
        self.open.word.store(word, Ordering::Release);
    }

    /// Changes the state. The crate is notified once no lock is held.
    pub(super) fn set_state(&self, inner: &mut EndpointInner, state: EndpointState) {
        inner.state = state;
        self.set_changed();
        self.reopen(inner);
    }

    /// Notes that a message has come for which a caller has asked. The crate is notified once no
    /// lock is held.
    pub(super) fn set_changed(&self) {
        self.changed.store(true, Ordering::Relaxed);
    }

    /// Returns true if the crate must be notified of a change.
    #[inline]
    pub(super) fn has_changed(&self) -> bool {
        self.changed.load(Ordering::Relaxed)
    }

    /// Notifies the crate of a change. The caller holds no lock.
    pub(in super::super) fn notify(&self) {
        if self.has_changed() && self.changed.swap(false, Ordering::Relaxed) {
            (self.config.changed)();
        }
    }

    /// Joins a connection whose other side has joined or will join it. Publishes the receives to
    /// the peer.
    pub(super) fn join(&self, inner: &mut EndpointInner, mut connection: Connection) {
        connection.messages.set_parked(true);
        match self.config.pooled_len {
            Some(capacity) => connection.lend(self.config.recv_queue_size, capacity),
            None => inner
                .posted
                .iter()
                .for_each(|posted| connection.post(posted.len)),
        }
        connection.messages.say(Presence::Connected);
        // This wakes the peer only if it waits for a receive; otherwise the peer has nothing to do
        // yet.
        connection.notify_freed();
        // An endpoint that listens and sends nothing waits for the peer's next action. That action
        // wakes a sleeping queue if this page is armed.
        let is_quiet = inner.listens && inner.sends.is_empty() && connection.presence().is_ok();
        let is_woken = is_quiet && connection.doorbell.is_armed();
        inner.connection = Some(Box::new(connection));
        inner.due = None;
        match is_woken {
            true => self.ports.set_ready(self.number),
            false => self.ports.mark_ready(self.number),
        }
    }

    /// Changes the state to Connected, whether the peer has come or not.
    pub(super) fn connected(&self, inner: &mut EndpointInner, peer: Identity) {
        inner.expected = Some(peer);
        self.set_state(inner, EndpointState::Connected);
    }

    /// Fails the endpoint, and with it all jobs and receives.
    pub(super) fn fail(&self, inner: &mut EndpointInner, cause: JobError) {
        self.set_state(inner, EndpointState::Error(cause));
        inner.flush(JobError::flushed(cause));
        inner.leave(Presence::Failed, self.number);
        self.ports.mark_ready(self.number);
    }

    /// Ends the connection, and resets the endpoint to its initial state. Once this returns, no
    /// memory is touched any more. The caller must drop the result without holding the lock, since
    /// the drop takes locks of the fabric.
    pub(super) fn end(&self, inner: &mut EndpointInner) -> Kept {
        inner.flush(JobError::flushed(JobError::of(Reason::Reset)));
        inner.leave(Presence::Closed, self.number);
        (inner.expected, inner.listens) = (None, false);
        self.set_state(inner, EndpointState::Init);
        self.ports.mark_ready(self.number);
        (inner.published.take(), inner.awaited.take())
    }

    /// Returns the published ticket for the peer, which stays the same until a reset.
    pub(super) fn published<'a>(
        self: &Arc<Self>,
        inner: &'a mut EndpointInner,
    ) -> Result<&'a Published> {
        Ok(match &mut inner.published {
            Some(published) => published,
            none => none.insert(self.publish()?),
        })
    }

    /// Marks the message ring as not parked: it is polled without hints from now on. Returns the
    /// ring and what must arrive next, if there is a connection.
    pub(super) fn start_polling(&self) -> Option<(Arc<MessageRing>, Watch)> {
        let inner = self.inner();
        let connection = inner.connection.as_ref()?;
        connection.messages.set_parked(false);
        Some((
            Arc::clone(&connection.messages),
            connection.receiving.watch(),
        ))
    }
}

impl Ended for Shared {
    /// Is called when the process of the awaited client has ended. If the client has not come, the
    /// next poll notices that.
    fn ended(&self) {
        self.ports.mark_ready(self.number);
    }
}

impl EndpointInner {
    /// Returns an error if the client has not come and its process has ended.
    pub(super) fn check_awaited(&self) -> Result<(), JobError> {
        match &self.awaited {
            Some(process) if process.is_dead() => Err(JobError::of(Reason::PeerGone)),
            _ => Ok(()),
        }
    }

    /// Returns true if the endpoint's current ticket has the slot and the generation of this
    /// identity.
    pub(super) fn is(&self, identity: &Identity) -> bool {
        let ticket = self.published.as_ref().map(|published| &published.ticket);
        ticket.is_some_and(|ticket| {
            (ticket.slot, ticket.generation) == (identity.slot, identity.generation)
        })
    }

    /// Fails the first job, and returns the error.
    pub(super) fn fail_first(&mut self, error: JobError) -> JobError {
        if let Some(send) = self.sends.pop_front() {
            self.done.push_back(Completion::new(send.token, Err(error)));
        }
        error
    }

    /// Completes all accepted jobs and receives with this error.
    fn flush(&mut self, error: JobError) {
        let sends = self.sends.drain(..).map(|send| send.token);
        let receives = self.posted.drain(..).map(|posted| posted.token);
        self.done.extend(
            sends
                .chain(receives)
                .map(|token| Completion::new(token, Err(error))),
        );
        (self.copied, self.due) = (0, None);
    }

    /// Closes all connections, which notifies the peers.
    fn leave(&mut self, presence: Presence, number: u32) {
        let visitor = self.visitor.take().map(|(_, connection)| connection);
        let connection = self.connection.take().map(|connection| *connection);
        for connection in connection.into_iter().chain(visitor) {
            connection.leave(presence, number);
        }
    }
}
