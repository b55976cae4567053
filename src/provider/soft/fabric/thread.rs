//! The fabric's thread, which answers clients and notices processes that end.
//!
//! The thread sleeps in epoll_wait(2). It uses a timeout only while a connected client has not sent
//! its request yet, or while it cannot accept connections because descriptors ran out. It never
//! waits for a client: a client that is slow, silent, or breaks the protocol loses its connection.

use std::cell::RefCell;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::{EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signal::SigSet;

use super::connections::{Connection, Connections, State, counted_user, patience};
use super::control::Owner;
use super::process::{BELL, FIRST, LISTENER, PROCESS, Server, Shared};
use super::protocol::{REQUEST_LEN, socket};
use super::server::{self, Then};
use crate::process::{Guarded, accept, hang_up, receive};
use crate::sync::lock;

/// The maximum number of connections that are accepted in one go.
const BATCH: usize = 64;
/// How long no connection is accepted after a failure.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) struct Worker {
    shared: Arc<Shared>,
    next: u64,
    connections: Connections,
    /// The time until which no connection is accepted.
    paused: Option<Instant>,
}

impl Worker {
    pub(super) fn new(shared: Arc<Shared>) -> Worker {
        Worker {
            shared,
            next: FIRST,
            connections: Connections::default(),
            paused: None,
        }
    }

    pub(super) fn run(mut self) {
        // Signal handlers of the application must run only on threads of the application.
        let _ = SigSet::all().thread_block();
        let mut events = [EpollEvent::empty(); 64];
        let mut owner = None;
        while !self.shared.is_over() {
            let timeout = self.timeout(Instant::now());
            let count = self.shared.epoll.wait(&mut events, timeout).unwrap_or(0);
            for event in &events[..count] {
                match event.data() {
                    // This event wakes the thread because the fabric has ended.
                    BELL => {}
                    LISTENER => {
                        // This thread must hold the owner's word before any client gets the control
                        // page.
                        let shared = Arc::clone(&self.shared);
                        // The listener accepts connections shortly before the server is stored.
                        let Some(server) = shared.server() else {
                            continue;
                        };
                        owner.get_or_insert_with(|| Owner::by_this_thread(&server.control));
                        self.accept(server);
                    }
                    number if number & PROCESS != 0 => self.ended(number),
                    number => self.ready(number),
                }
            }
            self.expire(Instant::now());
        }
        for connection in self.connections.drain() {
            hang_up(&connection.socket);
        }
    }

    fn ended(&self, number: u64) {
        let watched = lock(&self.shared.processes).watched(number);
        if let Some(watched) = watched {
            watched.end();
        }
    }

    /// Returns the time until the thread must act without an event.
    fn timeout(&self, now: Instant) -> EpollTimeout {
        let silent = self.connections.deadline();
        let Some(next) = silent.into_iter().chain(self.paused).min() else {
            return EpollTimeout::NONE;
        };
        let millis = next
            .saturating_duration_since(now)
            .as_micros()
            .div_ceil(1000);
        EpollTimeout::try_from(millis).unwrap_or(EpollTimeout::NONE)
    }

    fn accept(&mut self, server: &Server) {
        for _ in 0..BATCH {
            match accept(&server.listener) {
                Ok(socket) => self.accepted(server, socket),
                Err(Errno::EAGAIN) => return,
                Err(Errno::ECONNABORTED | Errno::EINTR) => {}
                // Descriptors or memory ran out. The listener stays readable, so without a pause
                // the thread would try again and again.
                Err(_) => return self.pause(server),
            }
        }
    }

    fn pause(&mut self, server: &Server) {
        let _ = self.shared.epoll.delete(&server.listener);
        self.paused = Some(Instant::now() + PAUSE);
    }

    fn resume(&mut self) {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, LISTENER);
        let added = self
            .shared
            .server()
            .map(|server| self.shared.epoll.add(&server.listener, event));
        self.paused = match added {
            Some(Err(_)) => Some(Instant::now() + PAUSE),
            _ => None,
        };
    }

    /// Handles a new connection. Most clients have sent their request by now.
    fn accepted(&mut self, server: &Server, socket: Guarded) {
        self.next += 1;
        let state = State::Silent(patience());
        self.answer_request(server, Connection::new(self.next, socket, state));
        self.hang_up_spare();
    }

    /// Handles a connection whose client has sent a request, has read its reply, or has hung up.
    fn ready(&mut self, number: u64) {
        let Some(connection) = self.connections.take(number) else {
            return;
        };
        let is_unread =
            matches!(connection.state, State::Unread(..)) && socket::has_unread(&connection.socket);
        match connection {
            it if is_unread => self.connections.push(it),
            Connection {
                number,
                socket,
                state: State::Unread(_, then),
                ..
            } => {
                let _ = self.shared.epoll.delete(&socket);
                self.proceed(number, socket, then);
            }
            it if matches!(it.state, State::Stays) => self.leave(it),
            it => {
                let shared = Arc::clone(&self.shared);
                match shared.server() {
                    Some(server) => self.answer_request(server, it),
                    None => self.leave(it),
                }
            }
        }
    }

    /// Answers the request of a connection, or keeps the connection until the request comes.
    fn answer_request(&mut self, server: &Server, mut connection: Connection) {
        // The buffer is one byte longer than a request, so that longer messages are recognized.
        let mut message = [0; REQUEST_LEN + 1];
        let len = match receive(&connection.socket, &mut message) {
            // A connection that was reported as ready but has nothing to read is not from an honest
            // client.
            Err(Errno::EAGAIN) if !connection.registered => {
                return self.keep(connection, EpollFlags::EPOLLIN);
            }
            received => received.unwrap_or(0),
        };
        // Connections to other users are not kept.
        let (user, process) = match &connection.state {
            State::Kept(process) => (None, Weak::clone(process)),
            _ => (counted_user(&connection.socket), Weak::new()),
        };
        let known = RefCell::new(process);
        let then = match user.is_some_and(|user| !self.connections.may_be_sent(user)) {
            true => server::refuse(&connection.socket, Errno::ETOOMANYREFS.into()),
            false => server::answer(
                &self.shared,
                server,
                &message[..len],
                &connection.socket,
                &known,
                self.connections.may_stay(),
            ),
        };
        match (then, user) {
            (None, _) => self.leave(connection),
            (Some(Then::Keep), None) => {
                connection.state = State::Kept(known.into_inner());
                self.keep(connection, EpollFlags::EPOLLIN);
            }
            (Some(then), None) => {
                self.forget(&mut connection);
                self.proceed(connection.number, connection.socket, then);
            }
            (Some(then), Some(user)) => {
                self.forget(&mut connection);
                connection.state = State::Unread(user, then);
                // The event comes at once, and again whenever the client has read something.
                self.keep(connection, EpollFlags::EPOLLOUT | EpollFlags::EPOLLET);
            }
        }
    }

    /// Continues with a connection once the client has read the reply, or if the server need not
    /// wait for that.
    fn proceed(&mut self, number: u64, socket: Guarded, then: Then) {
        match then {
            Then::Keep => hang_up(&socket),
            Then::HandOver(to) => to(socket),
            // The connection stays until the other side hangs up.
            Then::Stay => {
                let connection = Connection::new(number, socket, State::Stays);
                self.keep(connection, EpollFlags::EPOLLRDHUP);
            }
        }
    }

    /// Registers a connection for these events, and adds it to the list.
    fn keep(&mut self, mut connection: Connection, events: EpollFlags) {
        if !connection.registered {
            let event = EpollEvent::new(events, connection.number);
            if self.shared.epoll.add(&connection.socket, event).is_err() {
                return hang_up(&connection.socket);
            }
            connection.registered = true;
        }
        self.connections.push(connection);
    }

    /// Removes the connection from epoll, since a child of fork(2) may keep the descriptor open.
    fn forget(&self, connection: &mut Connection) {
        if std::mem::take(&mut connection.registered) {
            let _ = self.shared.epoll.delete(&connection.socket);
        }
    }

    fn leave(&self, mut connection: Connection) {
        self.forget(&mut connection);
        hang_up(&connection.socket);
    }

    /// Hangs up on clients that have been silent for too long, and on the oldest of too many.
    fn hang_up_spare(&mut self) {
        while let Some(spare) = self.connections.take_spare(Instant::now()) {
            self.leave(spare);
        }
    }

    fn expire(&mut self, now: Instant) {
        self.hang_up_spare();
        if self.paused.is_some_and(|until| until <= now) {
            self.resume();
        }
    }
}
