//! The connections of the fabric's thread. They belong to clients that have not sent their request
//! yet, that have not read their reply yet, or that may ask again; others must stay open so that a
//! process can be watched.
//!
//! Until its descriptors are read, a reply counts against a limit of this process's user: all
//! programs of a user together may have at most `RLIMIT_NOFILE` descriptors (the limit of open
//! files) in flight. Clients that ask and do not read could use up the whole limit, so each other
//! user gets a share. Replies to processes of the same user and of root are not counted, since
//! those processes can do more harm anyway.

use std::sync::Weak;
use std::time::{Duration, Instant};

use super::protocol::socket;
use super::server::Then;
use super::watch::Process;
use crate::process::{Guarded, is_own_user};

/// The maximum number of silent connections. If one more comes, the oldest is closed.
const SILENT: usize = 64;
/// The time for which a connection may be silent.
const PATIENCE: Duration = Duration::from_secs(2);
/// The maximum number of connections that stay: one for each process that cannot be watched in
/// another way.
const STAYING: usize = 256;
/// The maximum number of connections that stay open because their client may ask again. If one more
/// comes, the oldest is closed; its client connects anew.
pub(super) const KEPT: usize = 64;
/// The maximum number of unread replies to one user.
const OF_ONE: usize = 32;
/// The maximum number of unread replies to all users.
const OF_ALL: usize = 128;

pub(super) struct Connection {
    pub(super) number: u64,
    pub(super) socket: Guarded,
    pub(super) state: State,
    /// True if the epoll descriptor watches the connection for the event that its state waits for.
    pub(super) registered: bool,
}

pub(super) enum State {
    /// The client has not sent its request yet, and must send it by this time.
    Silent(Instant),
    /// A client of this user has not read its reply yet. `Then` follows once it has.
    Unread(u32, Then),
    /// The client has asked, and may ask again. Contains the client's process if it is watched.
    Kept(Weak<Process>),
    /// The connection is the only means by which one of the two processes can watch the other.
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

/// All connections of the thread, oldest first.
#[derive(Default)]
pub(super) struct Connections(Vec<Connection>);

/// Returns the user at the other end, whose unread replies are limited in number; `None` for root
/// and for this process's own user, who have no limit.
pub(super) fn counted_user(socket: &Guarded) -> Option<u32> {
    // If the user is unknown, the reply counts in the share of the user with the last number.
    let uid = socket::user(socket).unwrap_or(u32::MAX);
    (uid != 0 && !is_own_user(uid)).then_some(uid)
}

/// Returns the time until which a connection that begins now may be silent.
pub(super) fn patience() -> Instant {
    Instant::now() + PATIENCE
}

impl Connections {
    pub(super) fn push(&mut self, connection: Connection) {
        self.0.push(connection);
    }

    /// Removes the connection with this number from the list, and returns it.
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

    /// Returns true if one more connection may stay open after its request ([`State::Stays`]).
    pub(super) fn may_stay(&self) -> bool {
        self.count(|state| matches!(state, State::Stays)) < STAYING
    }

    /// Returns true if one more reply may be sent to this user.
    pub(super) fn may_be_sent(&self, user: u32) -> bool {
        let of_one = |state: &State| matches!(state, State::Unread(of, _) if *of == user);
        let of_all = |state: &State| matches!(state, State::Unread(..));
        self.count(of_one) < OF_ONE && self.count(of_all) < OF_ALL
    }

    /// Returns the time by which the oldest silent connection must have sent its request.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.0.iter().find_map(|it| match it.state {
            State::Silent(until) => Some(until),
            _ => None,
        })
    }

    /// Removes and returns a connection that has been silent for too long by `now`, or the oldest
    /// connection of a state that has too many.
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
