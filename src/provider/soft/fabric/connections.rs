//! Connections to the fabric's thread: of clients that have not asked yet, that have not read their
//! reply yet, that may ask again, and that have to stay.
//!
//! Until its descriptors are read, a reply counts among those that this process's user has in
//! flight: as many as the user may have open files (`RLIMIT_NOFILE`), for all its programs
//! together. A user who asks and does not read could use all of them up, so each other user gets a
//! share. Replies to processes of the same user and of root are not counted: those can do worse.

use std::sync::Weak;
use std::time::{Duration, Instant};

use super::protocol::socket;
use super::server::Then;
use super::watch::Process;
use crate::process::{Guarded, is_own_user};

/// Connections that are silent at once; the oldest makes room.
const SILENT: usize = 64;
/// How long a connection may be silent.
const PATIENCE: Duration = Duration::from_secs(2);
/// Connections that stay: one for each process that can be watched in no other way.
const STAYING: usize = 256;
/// Connections of clients that may ask again; the oldest makes room, and its client dials anew.
pub(super) const KEPT: usize = 64;
/// Unread replies of one user.
const OF_ONE: usize = 32;
/// Unread replies of all users.
const OF_ALL: usize = 128;

pub(super) struct Connection {
    pub(super) number: u64,
    pub(super) socket: Guarded,
    pub(super) state: State,
    /// The epoll descriptor has it, for what its state waits for.
    pub(super) registered: bool,
}

pub(super) enum State {
    /// Its client has not asked yet, and has to by then.
    Silent(Instant),
    /// A client of this user has not read its reply yet.
    Unread(u32, Then),
    /// Its client has asked, and may ask again. The client's process, if it is watched.
    Kept(Weak<Process>),
    /// Its end is all that one of the two can watch.
    Stays,
}

impl Connection {
    pub(super) fn new(number: u64, socket: Guarded, state: State) -> Connection {
        Connection {
            number,
            socket,
            state,
            registered: false,
        }
    }
}

/// All connections of the thread, by age.
#[derive(Default)]
pub(super) struct Connections(Vec<Connection>);

/// Returns the user whose share a reply on this connection takes a part of, if there is one.
pub(super) fn counted_user(socket: &Guarded) -> Option<u32> {
    // If that cannot be known it is nobody's, whose share is like others'.
    let uid = socket::user(socket).unwrap_or(u32::MAX);
    (uid != 0 && !is_own_user(uid)).then_some(uid)
}

/// Returns when a connection that begins now has been silent for too long.
pub(super) fn patience() -> Instant {
    Instant::now() + PATIENCE
}

impl Connections {
    pub(super) fn push(&mut self, connection: Connection) {
        self.0.push(connection);
    }

    /// Takes the connection with this number out.
    pub(super) fn take(&mut self, number: u64) -> Option<Connection> {
        let at = self.0.iter().position(|it| it.number == number)?;
        Some(self.0.remove(at))
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = Connection> {
        self.0.drain(..)
    }

    fn count(&self, of: impl Fn(&State) -> bool) -> usize {
        self.0.iter().filter(|it| of(&it.state)).count()
    }

    /// Returns whether one more may stay.
    pub(super) fn may_stay(&self) -> bool {
        self.count(|state| matches!(state, State::Stays)) < STAYING
    }

    /// Returns whether this user may be sent one more reply.
    pub(super) fn may_be_sent(&self, user: u32) -> bool {
        let of_one = |state: &State| matches!(state, State::Unread(of, _) if *of == user);
        let of_all = |state: &State| matches!(state, State::Unread(..));
        self.count(of_one) < OF_ONE && self.count(of_all) < OF_ALL
    }

    /// Returns when the silent connection that is the oldest has been silent for too long.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.0.iter().find_map(|it| match it.state {
            State::Silent(until) => Some(until),
            _ => None,
        })
    }

    /// Takes out a connection that has been silent for too long at this time, or that makes room
    /// for another one.
    pub(super) fn take_spare(&mut self, now: Instant) -> Option<Connection> {
        let is_silent = |state: &State| matches!(state, State::Silent(_));
        let is_kept = |state: &State| matches!(state, State::Kept(_));
        let late = self.deadline().is_some_and(|until| until <= now);
        let spare = match late || self.count(is_silent) > SILENT {
            true => self.0.iter().position(|it| is_silent(&it.state)),
            false if self.count(is_kept) > KEPT => self.0.iter().position(|it| is_kept(&it.state)),
            false => None,
        };
        spare.map(|at| self.0.remove(at))
    }
}
