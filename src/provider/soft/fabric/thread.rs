//! The fabric's thread: answers clients, and says which processes have ended.
//!
//! It sleeps in epoll_wait(2) without a timeout. It has one only while a client is connected that
//! has not asked yet, or while it could not accept for want of descriptors. It never waits for
//! anybody: a client that is slow, silent or talks nonsense loses its connection.

use std::sync::Arc;
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

/// Connections that are accepted in one go.
const BATCH: usize = 64;
/// How long to accept nothing when it fails.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) struct Worker {
    shared: Arc<Shared>,
    next: u64,
    connections: Connections,
    /// Until when nothing is accepted.
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
        // Handlers of the application's run on threads of the application's.
        let _ = SigSet::all().thread_block();
        let mut events = [EpollEvent::empty(); 64];
        let mut owner = None;
        while !self.shared.is_over() {
            let timeout = self.timeout(Instant::now());
            let count = self.shared.epoll.wait(&mut events, timeout).unwrap_or(0);
            for event in &events[..count] {
                match event.data() {
                    // It says that the fabric is over.
                    BELL => {}
                    LISTENER => {
                        // Before anybody gets the control page.
                        let shared = Arc::clone(&self.shared);
                        // Nobody can connect before it is there: this is a matter of nanoseconds.
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

    /// Until the next thing that happens by itself.
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
                // No descriptors, no memory. The listener stays readable, and would be asked again
                // and again.
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

    /// A client has connected. Most have asked by now.
    fn accepted(&mut self, server: &Server, socket: Guarded) {
        self.next += 1;
        let number = self.next;
        let Some(socket) = self.hear(server, number, socket) else {
            return;
        };
        self.keep(
            number,
            socket,
            EpollFlags::EPOLLIN,
            State::Silent(patience()),
        );
        self.hang_up_silent();
    }

    /// A client asks, has read its reply, or has hung up.
    fn ready(&mut self, number: u64) {
        let Some(connection) = self.connections.take(number) else {
            return;
        };
        if matches!(connection.state, State::Unread(..)) && socket::has_unread(&connection.socket) {
            return self.connections.push(connection);
        }
        // In a child of fork(2) it may stay open.
        let _ = self.shared.epoll.delete(&connection.socket);
        let Connection { socket, state, .. } = connection;
        match state {
            State::Unread(_, then) => self.go_on(number, socket, then),
            State::Stays => hang_up(&socket),
            State::Silent(_) => {
                let shared = Arc::clone(&self.shared);
                let silent = match shared.server() {
                    Some(server) => self.hear(server, number, socket),
                    None => Some(socket),
                };
                if let Some(socket) = silent {
                    // Ready, and with nothing to read: that is no client of ours.
                    hang_up(&socket);
                }
            }
        }
    }

    /// Answers a request; gives the connection back if there is none yet.
    fn hear(&mut self, server: &Server, number: u64, socket: Guarded) -> Option<Guarded> {
        // A byte more than a request has, by which a longer message shows.
        let mut message = [0; REQUEST_LEN + 1];
        let len = match receive(&socket, &mut message) {
            Err(Errno::EAGAIN) => return Some(socket),
            received => received.unwrap_or(0),
        };
        let user = counted_user(&socket);
        let then = match user.is_some_and(|user| !self.connections.may_be_sent(user)) {
            true => server::refuse(&socket, Errno::ETOOMANYREFS.into()),
            false => {
                let may_stay = self.connections.may_stay();
                server::answer(&self.shared, server, &message[..len], &socket, may_stay)
            }
        };
        match (then, user) {
            (None, _) => hang_up(&socket),
            (Some(then), None) => self.go_on(number, socket, then),
            (Some(then), Some(user)) => {
                // Rung at once, and whenever something was read.
                let events = EpollFlags::EPOLLOUT | EpollFlags::EPOLLET;
                self.keep(number, socket, events, State::Unread(user, then));
            }
        }
        None
    }

    /// The reply was read, or need not be.
    fn go_on(&mut self, number: u64, socket: Guarded, then: Then) {
        match then {
            Then::HangUp => hang_up(&socket),
            Then::HandOver(to) => to(socket),
            // Until the other side hangs up.
            Then::Stay => self.keep(number, socket, EpollFlags::EPOLLRDHUP, State::Stays),
        }
    }

    /// Keeps a connection until one of these events comes.
    fn keep(&mut self, number: u64, socket: Guarded, events: EpollFlags, state: State) {
        match self
            .shared
            .epoll
            .add(&socket, EpollEvent::new(events, number))
        {
            Ok(()) => self.connections.push(Connection {
                number,
                socket,
                state,
            }),
            Err(_) => hang_up(&socket),
        }
    }

    /// Hangs up on clients that have been silent for too long, or that are too many.
    fn hang_up_silent(&mut self) {
        while let Some(silent) = self.connections.take_silent(Instant::now()) {
            // The epoll descriptor forgets it first: in a child of fork(2) it may stay open.
            let _ = self.shared.epoll.delete(&silent.socket);
            hang_up(&silent.socket);
        }
    }

    fn expire(&mut self, now: Instant) {
        self.hang_up_silent();
        if self.paused.is_some_and(|until| until <= now) {
            self.resume();
        }
    }
}
