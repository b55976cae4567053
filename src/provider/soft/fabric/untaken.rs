//! Answers to other users that nobody has read yet.
//!
//! Until its descriptors were read, an answer counts among those that this process's user has in
//! flight: as many as it may have open files (`RLIMIT_NOFILE`), for all its programs together. A
//! user who asks and does not read could use all of them up, so each gets a share.
//!
//! Answers to processes of the same user and of root are not counted: those can do worse.

use super::connection::{Connection, Then};
use super::protocol::socket;
use crate::process::is_own_user;

/// Answers to one user at once.
const OF_ONE: usize = 32;
/// Answers to all of them.
const OF_ALL: usize = 128;

/// The answers, and what becomes of their connections once they were read.
#[derive(Default)]
pub(super) struct Untaken(Vec<(u32, Connection, Then)>);

impl Untaken {
    /// Returns the user whose share an answer on this connection takes a part of, if it has one.
    pub(super) fn user(connection: &Connection) -> Option<u32> {
        // If that cannot be known it is nobody's, whose share is like others'.
        let uid = socket::user(&connection.socket).unwrap_or(u32::MAX);
        (uid != 0 && !is_own_user(uid)).then_some(uid)
    }

    /// Returns whether this user may be sent one more.
    pub(super) fn has_room(&self, user: u32) -> bool {
        let of_one = self.0.iter().filter(|(of, ..)| *of == user).count();
        of_one < OF_ONE && self.0.len() < OF_ALL
    }

    pub(super) fn push(&mut self, user: u32, connection: Connection, then: Then) {
        self.0.push((user, connection, then));
    }

    pub(super) fn has(&self, number: u64) -> bool {
        self.0.iter().any(|(_, of, _)| of.number == number)
    }

    /// Takes out the one with this number, if its answer was read.
    pub(super) fn taken(&mut self, number: u64) -> Option<(Connection, Then)> {
        let of = |(_, of, _): &(u32, Connection, Then)| of.number == number;
        let at = self.0.iter().position(of)?;
        if socket::has_unread(&self.0[at].1.socket) {
            return None;
        }
        let (_, connection, then) = self.0.swap_remove(at);
        Some((connection, then))
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = Connection> {
        self.0.drain(..).map(|(_, connection, _)| connection)
    }
}
