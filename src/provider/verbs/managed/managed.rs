//! A connection that rdma_cm makes, from the address or a peer's request to the end. Either side
//! notifies the other of the end. DESIGN.md ("Real adapters") draws the states.
//!
//! Each event causes a step. The steps of a connection are done one after the other, by a thread
//! that may block ([`step`]). The queue pair is claimed from the first step on, so that a reset, a
//! drop or the time limit ends the attempt.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use super::super::adapter::greeting::{self, Greeting};
use super::super::cm::{Cm, CmEvent, CmId, Handler, What, step};
use super::super::connection::RcConnection;
use super::attempt::{Attempt, Next, check_private_data, left, unreachable};
use super::offered::Offered;
use crate::device::{CmAnswer, CmOptions};
use crate::error::{Error, ErrorKind, JobError, Reason, Result};
use crate::sync::{contain, lock, log};

pub(in super::super) struct Managed {
    line: Mutex<Line>,
    state: Mutex<State>,
}

/// Events that wait for their step.
#[derive(Default)]
struct Line {
    events: VecDeque<CmEvent>,
    /// True while a thread does the steps.
    busy: bool,
}

enum State {
    /// A peer has sent a request, which was not answered yet.
    Offered(CmId),
    Connecting(Box<Attempt>),
    Connected {
        /// The id is dropped once the connection has ended, which notifies the peer.
        id: Arc<CmId>,
        conn: Weak<RcConnection>,
        /// The id of the connection's queue pair.
        qp: u64,
    },
    Gone,
}

impl State {
    fn take_offer(&mut self) -> Result<CmId> {
        match std::mem::replace(self, State::Gone) {
            State::Offered(id) => Ok(id),
            _ => {
                let text = "the peer has given up, or its adapter here was removed";
                Err(Error::new(ErrorKind::ConnectionAborted, None, text))
            }
        }
    }
}

/// A function that notifies the application of the result of a connection. It is called without a
/// lock.
pub(super) type Tell = Box<dyn FnOnce()>;

/// Sets the state, releases its lock, and then calls `tell`, which notifies the application.
fn leave(mut state: MutexGuard<'_, State>, next: State, tell: Option<Tell>) {
    *state = next;
    drop(state);
    if let Some(tell) = tell {
        tell();
    }
}

/// Sets the state to the attempt, if it has begun. Otherwise sets the state `Gone`, and notifies
/// the application.
fn leave_begun(state: MutexGuard<'_, State>, begun: Result<Attempt, Tell>) {
    match begun {
        Ok(attempt) => leave(state, State::Connecting(Box::new(attempt)), None),
        Err(tell) => leave(state, State::Gone, Some(tell)),
    }
}

impl Managed {
    fn new(state: State) -> Arc<Managed> {
        Arc::new(Managed {
            line: Mutex::default(),
            state: Mutex::new(state),
        })
    }

    /// Returns a connection that a peer requests.
    pub(super) fn offered(id: CmId) -> Arc<Managed> {
        let managed = Managed::new(State::Gone);
        let handler: Arc<dyn Handler> = Arc::clone(&managed) as _;
        id.set_handler(Arc::downgrade(&handler));
        *lock(&managed.state) = State::Offered(id);
        managed
    }

    /// Returns the id of a request that was not answered yet.
    pub(super) fn take_offer(&self) -> Result<CmId> {
        lock(&self.state).take_offer()
    }

    fn next_event(&self) -> Option<CmEvent> {
        let mut line = lock(&self.line);
        let next = line.events.pop_front();
        line.busy = next.is_some();
        next
    }

    fn step(self: &Arc<Self>, event: CmEvent) {
        let mut state = lock(&self.state);
        let (next, tell): (_, Option<Tell>) = match std::mem::replace(&mut *state, State::Gone) {
            State::Connecting(attempt) => self.next(attempt, event),
            // The peer has given up, or the adapter is being removed. The kernel waits until the id
            // was destroyed.
            State::Offered(_) if event.is_end() => (State::Gone, None),
            State::Connected { id, conn, qp } if event.is_end() => {
                let cause = match event.what {
                    What::DeviceRemoved => Reason::DeviceGone,
                    _ => Reason::PeerClosed,
                };
                let conn = conn.upgrade().filter(|_| event.what != What::Ended);
                let fail = move || {
                    if let Some(conn) = conn {
                        conn.fail_queue_pair(qp, JobError::of(cause));
                    }
                    // The id is dropped last: destroying it may take long, and over iWARP flushes
                    // Jobs.
                    drop(id);
                };
                (State::Gone, Some(Box::new(fail)))
            }
            other => {
                let (what, text) = (event.what, "an event of rdma_cm");
                let write = move || {
                    log(|| tracing::debug!(target: "tokio_doca::verbs", ?what, "{text}"));
                };
                (other, Some(Box::new(write)))
            }
        };
        leave(state, next, tell);
    }

    fn next(self: &Arc<Self>, mut attempt: Box<Attempt>, event: CmEvent) -> (State, Option<Tell>) {
        let said = match attempt.step(&event, Arc::clone(self) as _) {
            Ok(Next::Wait) => return (State::Connecting(attempt), None),
            Ok(Next::Connected(said)) => said,
            Err(error) => return (State::Gone, Some(attempt.fail(error))),
        };
        let Some((peer, path)) = attempt.ready else {
            let text = "rdma_cm says that it is connected before it was";
            let error = Error::new(ErrorKind::Unexpected, None, text);
            return (State::Gone, Some(attempt.fail(error)));
        };
        let (qp, waits) = (attempt.conn.id(), attempt.accepts && attempt.is_iwarp());
        if let Err(error) = attempt.conn.set_connected(&attempt.qp, peer, path, waits) {
            return (State::Gone, Some(attempt.fail(error)));
        }
        let Attempt {
            id, conn, answer, ..
        } = *attempt;
        id.clear_deadline();
        let state = State::Connected {
            id,
            conn: Arc::downgrade(&conn),
            qp,
        };
        let tell = move || {
            conn.notify();
            contain("a waker", || answer(Ok(said)));
        };
        (state, Some(Box::new(tell)))
    }
}

impl Handler for Managed {
    fn handle(self: Arc<Self>, event: CmEvent) {
        let mut line = lock(&self.line);
        line.events.push_back(event);
        if std::mem::replace(&mut line.busy, true) {
            return;
        }
        drop(line);
        let this = Arc::clone(&self);
        let run = move |this: &Arc<Managed>| {
            while let Some(event) = this.next_event() {
                contain("a step of rdma_cm", || this.step(event));
            }
        };
        if step(move || run(&this)).is_err() {
            // If no thread can be started, this thread does the steps.
            run(&self);
        }
    }
}

impl RcConnection {
    /// Connects to the side that listens at `addr`. `answer` is called within the time limit.
    pub(in super::super) fn connect_to(
        self: Arc<Self>,
        addr: SocketAddr,
        options: CmOptions,
        answer: CmAnswer,
    ) {
        let managed = Managed::new(State::Gone);
        // The lock makes events wait until the attempt has begun, since the time limit or a reset
        // may come at any time.
        let state = lock(&managed.state);
        let begun = self.begin_managed(&managed, (options, answer), greeting::CONNECT, None);
        let begun = begun.and_then(|attempt| {
            let transport = &attempt.conn.config.transport;
            let of_gid = || transport.gid?.to_ipv4_mapped().map(IpAddr::from);
            let source = transport.source.or_else(of_gid);
            let limit = left(&attempt.options);
            match attempt.id.resolve_addr(source, addr, limit) {
                Ok(()) => Ok(attempt),
                Err(error) => Err(attempt.fail(unreachable(error))),
            }
        });
        leave_begun(state, begun);
    }

    /// Accepts a peer's request. `answer` is called within the time limit, as for `connect_to`.
    pub(in super::super) fn accept(
        self: Arc<Self>,
        offered: Offered,
        options: CmOptions,
        answer: CmAnswer,
    ) {
        let (managed, greeting, reads) = offered.into_parts();
        let wrong = match (greeting.is_some(), options.foreign) {
            (false, false) => {
                Some("the peer is a program without this library: accept it with foreign(true)")
            }
            (true, true) => Some("the peer has this library, and was to be a foreign one"),
            _ => None,
        };
        if let Some(text) = wrong {
            return answer(Err(Error::new(ErrorKind::InvalidValue, None, text)));
        }
        // The lock makes events wait, as in `connect_to`.
        let mut state = lock(&managed.state);
        let offered = match state.take_offer() {
            Ok(id) => Some(id),
            Err(error) => return leave_begun(state, Err(Box::new(|| answer(Err(error))))),
        };
        let begun = self.begin_managed(&managed, (options, answer), greeting::ACCEPT, offered);
        let begun = begun.and_then(|mut attempt| match attempt.accept(greeting, reads) {
            Ok(()) => Ok(attempt),
            Err(error) => Err(attempt.fail(error)),
        });
        leave_begun(state, begun);
    }

    /// Claims the queue pair, and makes `managed` the handler of its id's events and of the time
    /// limit. On failure, returns a function that gives the error to the application. The caller
    /// calls it without a lock.
    fn begin_managed(
        self: Arc<Self>,
        managed: &Arc<Managed>,
        (options, answer): (CmOptions, CmAnswer),
        most: usize,
        offered: Option<CmId>,
    ) -> Result<Attempt, Tell> {
        let accepts = offered.is_some();
        let begin = || {
            // This also refuses a child of fork(2).
            let cm = Cm::get(&self.core.context)?;
            check_private_data(&options.private_data, most, options.foreign)?;
            let id = match offered {
                Some(id) => id,
                None => CmId::create(cm, self.core.context.traits.iwarp)?,
            };
            let handler: Arc<dyn Handler> = Arc::clone(managed) as _;
            let qp = self.claim(&handler)?;
            id.set_handler(Arc::downgrade(&handler));
            id.set_deadline(options.deadline, handler);
            Ok((id, qp))
        };
        match begin() {
            Ok((id, qp)) => Ok(Attempt {
                id: Arc::new(id),
                conn: self,
                qp,
                accepts,
                half: false,
                ready: None,
                options,
                answer,
            }),
            Err(error) => Err(Box::new(|| answer(Err(error)))),
        }
    }

    /// Returns the greeting of this side for a peer that has this library.
    pub(super) fn greeting(&self) -> Greeting {
        Greeting {
            origin: self.origin(),
            permissions: self.config.permissions,
            answers: self.core.context.traits.rd_atomics[0],
        }
    }
}
