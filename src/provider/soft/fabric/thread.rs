//! The fabric's thread: answers importers and guests, and says which processes have ended.
//!
//! It sleeps in epoll_wait(2) without a timeout. One it has only while somebody is connected who has not spoken yet, or while it
//! could not accept for want of descriptors. It never waits for anybody: a peer that is slow, silent or talks nonsense loses its connection.

use std::sync::Arc;
use std::time::{Duration, Instant};

use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::sys::epoll::{EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signal::SigSet;

use super::connection::{After, BELL, Connection, FIRST, LISTENER, PROCESS, Then};
use super::control::Owner;
use super::process::{Shared, Station};
use super::protocol::wire::{self, Status};
use super::protocol::{greeting, socket};
use super::untaken::Untaken;
use super::{exporter, host};
use crate::process::{Guarded, accept, hang_up, receive};
use crate::sync::lock;

/// Connections that have not spoken; the oldest makes room.
const SILENT: usize = 64;
/// How long they may be silent.
const PATIENCE: Duration = Duration::from_secs(2);
/// Connections that stay because the other side has nothing else to watch: one for each such process.
const KEPT: usize = 256;
/// Connections that are accepted in one go.
const BATCH: usize = 64;
/// How long to accept nothing when it fails.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) struct Worker {
    shared: Arc<Shared>,
    next: u64,
    /// By age.
    silent: Vec<Connection>,
    kept: Vec<Connection>,
    untaken: Untaken,
    paused: Option<Instant>,
}

/// The longest request, and a byte, by which a longer one shows.
const ROOM: usize = 1 + if greeting::KNOCK_LEN > wire::REQUEST_LEN {
    greeting::KNOCK_LEN
} else {
    wire::REQUEST_LEN
};

impl Worker {
    pub(super) fn new(shared: Arc<Shared>) -> Worker {
        Worker {
            shared,
            next: FIRST,
            silent: Vec::with_capacity(SILENT),
            kept: Vec::new(),
            untaken: Untaken::default(),
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
                        let Some(station) = shared.station() else {
                            continue;
                        };
                        owner.get_or_insert_with(|| Owner::by_this_thread(&station.control));
                        self.accept(station);
                    }
                    number if number & PROCESS != 0 => self.ended(number),
                    number => self.spoke(number),
                }
            }
            self.expire(Instant::now());
        }
        let kept = self.kept.drain(..).chain(self.untaken.drain());
        for connection in self.silent.drain(..).chain(kept) {
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
        let silent = self.silent.first().map(|connection| connection.until);
        let Some(next) = silent.into_iter().chain(self.paused).min() else {
            return EpollTimeout::NONE;
        };
        let millis = next
            .saturating_duration_since(now)
            .as_micros()
            .div_ceil(1000);
        EpollTimeout::try_from(millis).unwrap_or(EpollTimeout::NONE)
    }

    fn accept(&mut self, station: &Station) {
        for _ in 0..BATCH {
            match accept(&station.listener) {
                Ok(socket) => self.greet(station, socket),
                Err(Errno::EAGAIN) => return,
                Err(Errno::ECONNABORTED | Errno::EINTR) => {}
                // No descriptors, no memory: as it stays readable, it would be asked again and again.
                Err(_) => return self.pause(station),
            }
        }
    }

    fn pause(&mut self, station: &Station) {
        let _ = self.shared.epoll.delete(&station.listener);
        self.paused = Some(Instant::now() + PAUSE);
    }

    fn resume(&mut self) {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, LISTENER);
        let added = self
            .shared
            .station()
            .map(|station| self.shared.epoll.add(&station.listener, event));
        self.paused = match added {
            Some(Err(_)) => Some(Instant::now() + PAUSE),
            _ => None,
        };
    }

    /// Most have spoken by now.
    fn greet(&mut self, station: &Station, socket: Guarded) {
        self.next += 1;
        let connection = Connection {
            number: self.next,
            socket,
            until: Instant::now() + PATIENCE,
        };
        let Some(connection) = self.hear(station, connection) else {
            return;
        };
        if self.silent.len() == SILENT {
            let oldest = self.silent.remove(0);
            self.close(oldest);
        }
        let event = EpollEvent::new(EpollFlags::EPOLLIN, connection.number);
        match self.shared.epoll.add(&connection.socket, event) {
            Ok(()) => self.silent.push(connection),
            Err(_) => hang_up(&connection.socket),
        }
    }

    /// A connection says something, or has ended.
    fn spoke(&mut self, number: u64) {
        if self.untaken.has(number) {
            if let Some((connection, then)) = self.untaken.taken(number) {
                let _ = self.shared.epoll.delete(&connection.socket);
                self.go_on(connection, then);
            }
            return;
        }
        let with = |connection: &Connection| connection.number == number;
        if let Some(at) = self.kept.iter().position(with) {
            let connection = self.kept.remove(at);
            return self.close(connection);
        }
        let Some(at) = self.silent.iter().position(with) else {
            return;
        };
        let connection = self.silent.remove(at);
        let _ = self.shared.epoll.delete(&connection.socket);
        let shared = Arc::clone(&self.shared);
        let still = match shared.station() {
            Some(station) => self.hear(station, connection),
            None => Some(connection),
        };
        if let Some(connection) = still {
            // Ready, and with nothing to read: that is no importer of ours.
            hang_up(&connection.socket);
        }
    }

    /// Answers a request; gives the connection back if there is none yet.
    fn hear(&mut self, station: &Station, connection: Connection) -> Option<Connection> {
        let mut message = [0; ROOM];
        let len = match receive(&connection.socket, &mut message) {
            Err(Errno::EAGAIN) => return Some(connection),
            received => received.unwrap_or(0),
        };
        let room = self.kept.len() < KEPT;
        let (message, from) = (&message[..len], &connection.socket);
        let is_knock = greeting::is_knock(message);
        let user = Untaken::user(&connection);
        if user.is_some_and(|user| !self.untaken.has_room(user)) {
            let status = Status::Failed(libc::ETOOMANYREFS);
            let refusal = match is_knock {
                true => greeting::refusal(status).to_vec(),
                false => wire::refusal(status).to_vec(),
            };
            let _ = socket::send(from.as_fd(), &refusal, &[]);
            hang_up(&connection.socket);
            return None;
        }
        let after = match is_knock {
            true => host::answer(&self.shared.instance, station, message, from, room),
            false => exporter::answer(&self.shared.instance, station, message, from, room),
        };
        match (after, user) {
            (After::Refused, _) => hang_up(&connection.socket),
            (After::Answered(then), None) => self.go_on(connection, then),
            (After::Answered(then), Some(user)) => {
                // Rung at once, and whenever something was read.
                let events = EpollFlags::EPOLLOUT | EpollFlags::EPOLLET;
                let event = EpollEvent::new(events, connection.number);
                match self.shared.epoll.add(&connection.socket, event) {
                    Ok(()) => self.untaken.push(user, connection, then),
                    Err(_) => hang_up(&connection.socket),
                }
            }
        }
        None
    }

    /// The answer was read, or need not be.
    fn go_on(&mut self, connection: Connection, then: Then) {
        match then {
            Then::HangUp => hang_up(&connection.socket),
            Then::HandOver(to) => to(connection.socket),
            Then::Keep => self.keep(connection),
        }
    }

    /// Keeps a connection until the other side hangs up.
    fn keep(&mut self, connection: Connection) {
        let event = EpollEvent::new(EpollFlags::EPOLLRDHUP, connection.number);
        match self.shared.epoll.add(&connection.socket, event) {
            Ok(()) => self.kept.push(connection),
            Err(_) => hang_up(&connection.socket),
        }
    }

    fn expire(&mut self, now: Instant) {
        while self
            .silent
            .first()
            .is_some_and(|oldest| oldest.until <= now)
        {
            let oldest = self.silent.remove(0);
            self.close(oldest);
        }
        if self.paused.is_some_and(|until| until <= now) {
            self.resume();
        }
    }

    /// The epoll descriptor forgets it first: in a child of fork(2) it may stay open.
    fn close(&mut self, connection: Connection) {
        let _ = self.shared.epoll.delete(&connection.socket);
        hang_up(&connection.socket);
    }
}
