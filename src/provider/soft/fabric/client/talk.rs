//! How this process asks another: one connection, one request, one answer.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use arrayvec::ArrayVec;
use nix::errno::Errno;

use super::super::process::Fabric;
use super::super::protocol::wire::{self, Bad, VERSION};
use super::super::protocol::{Address, Contact, DESCRIPTORS, Id, Place, greeting, place, socket};
use super::super::watch::{Identity, Process, Watch};
use crate::error::{Error, ErrorKind, Result};
use crate::process::{Guarded, hang_up, refuse};

/// How often somebody is asked who hangs up. One that lives does so if strangers connect without end, and push out who has not
/// spoken yet; at one that has ended nobody listens when it is asked again.
const TRIES: u32 = 8;

/// The longest answer.
const ROOM: usize = if greeting::ANSWER_LEN > wire::ANSWER_LEN {
    greeting::ANSWER_LEN
} else {
    wire::ANSWER_LEN
};

/// What came with an answer.
pub(super) type Descriptors = ArrayVec<Guarded, DESCRIPTORS>;

/// What somebody is asked for, in words.
pub(super) struct Role {
    /// Who is asked.
    pub(in super::super) who: &'static str,
    /// What a blob was made of.
    pub(in super::super) what: &'static str,
}

/// Who is asked.
#[derive(Clone, Copy)]
pub(in super::super) struct Other<'a> {
    pub(super) role: &'static Role,
    pub(in super::super) contact: &'a Contact,
}

/// A connection.
pub(in super::super) struct Talk {
    pub(in super::super) socket: Guarded,
    pub(in super::super) nonce: Id,
    /// Of who answers; `None` where there is no such thing, so that the connection has to stay.
    pub(in super::super) pidfd: Option<OwnedFd>,
}

impl Other<'_> {
    /// Asks until there is an answer. `request` says what is sent, `judge` what the answer is worth.
    ///
    /// # Errors
    ///
    /// `NotSupported` from another host or network namespace; `ConnectionReset` if the process has ended; `TimedOut`; `NotPermitted` for
    /// what is no answer; what `judge` says.
    pub(super) fn ask<T>(
        &self,
        deadline: Instant,
        request: impl Fn(&Talk) -> Vec<u8>,
        judge: impl Fn(&Talk, &[u8], Descriptors) -> Result<T>,
    ) -> Result<(T, Talk)> {
        self.reachable(&Place::here()?)?;
        let once = || -> Result<_> {
            let mut talk = self.connect(deadline)?;
            let mut answer = [0; ROOM];
            let answered = self.exchange(&talk, &request(&talk), &mut answer, deadline);
            refuse(&mut talk.socket);
            let judged = answered.and_then(|(len, with)| judge(&talk, &answer[..len], with));
            if judged.is_err() {
                // Now, whenever it is closed.
                hang_up(&talk.socket);
            }
            Ok((judged?, talk))
        };
        for _ in 1..TRIES {
            match once() {
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
                done => return done,
            }
        }
        once()
    }

    /// Whether it can be reached from here at all.
    pub(in super::super) fn reachable(&self, here: &Place) -> Result<()> {
        let (contact, Role { who, what, .. }) = (self.contact, self.role);
        if here.boot != contact.place.boot {
            return self.fail(
                ErrorKind::NotSupported,
                format!(
                    "the {what} was exported on another host, or before a restart of this one (boot id {}, and here {}): software devices \
                     share memory within a host",
                    place::hex(&contact.place.boot),
                    place::hex(&here.boot)
                ),
            );
        }
        if here.net != contact.place.net && matches!(contact.address, Address::Abstract(_)) {
            return self.fail(
                ErrorKind::NotSupported,
                format!(
                    "the {who} is in another network namespace (inode {}, and here {}), and listens at an abstract name: have it listen \
                     at a path that both see, with soft::set_socket_path or TOKIO_DOCA_SOFT_SOCKET",
                    contact.place.net.1, here.net.1
                ),
            );
        }
        Ok(())
    }

    pub(in super::super) fn connect(&self, deadline: Instant) -> Result<Talk> {
        let Role { who, .. } = self.role;
        let socket = match socket::connect(&self.contact.address, deadline) {
            Ok(socket) => socket,
            Err(Errno::ECONNREFUSED | Errno::ENOENT | Errno::ESRCH) => return self.gone(),
            Err(Errno::EAGAIN) => return self.late(),
            Err(errno) => {
                let what = format!("connect to the {who} at {}", self.contact.address);
                return Err(Error::os(None, what, errno.into()));
            }
        };
        // Before it answers: then it is the process that answered.
        let pidfd = match socket::pidfd(&socket) {
            Ok(pidfd) => pidfd,
            Err(Errno::ESRCH) => return self.gone(),
            Err(errno) => return Err(self.os("a pidfd of", errno)),
        };
        Ok(Talk {
            socket,
            nonce: place::random()?,
            pidfd,
        })
    }

    /// Sends a request, and waits for the answer.
    pub(super) fn exchange(
        &self,
        talk: &Talk,
        request: &[u8],
        answer: &mut [u8],
        deadline: Instant,
    ) -> Result<(usize, Descriptors)> {
        match socket::send(talk.socket.as_fd(), request, &[]) {
            Ok(()) => {}
            Err(Errno::EPIPE | Errno::ECONNRESET) => return self.gone(),
            Err(errno) => return Err(self.os("send to", errno)),
        }
        let ends = talk.pidfd.as_ref().map(|pidfd| pidfd.as_fd());
        let waited = socket::wait([Some(talk.socket.as_fd()), ends], deadline);
        match waited.map_err(|errno| self.os("poll of", errno))? {
            [true, _] => {}
            [false, true] => return self.gone(),
            [false, false] => return self.late(),
        }
        match socket::receive_with(talk.socket.as_fd(), answer) {
            Ok((0, _)) | Err(Errno::ECONNRESET) => self.fail(
                ErrorKind::ConnectionReset,
                format!(
                    "the {} at {} hung up without an answer: it has ended, or is of another release",
                    self.role.who, self.contact.address
                ),
            ),
            Ok(received) => Ok(received),
            Err(Errno::EBADMSG) => self.nonsense(),
            Err(errno) => Err(self.os("recvmsg from", errno)),
        }
    }

    pub(super) fn fail<T>(&self, kind: ErrorKind, text: String) -> Result<T> {
        Err(Error::new(kind, None, text))
    }

    /// A system call failed, and what it was to do with the other.
    pub(in super::super) fn os(&self, what: &str, errno: Errno) -> Error {
        let what = format!("{what} the {}", self.role.who);
        Error::os(None, what, errno.into())
    }

    fn gone<T>(&self) -> Result<T> {
        self.fail(
            ErrorKind::ConnectionReset,
            format!(
                "nobody listens at {}: the process that exported this {} has ended, or has dropped all its exports; a path must \
                 be visible here as well",
                self.contact.address, self.role.what
            ),
        )
    }

    fn late<T>(&self) -> Result<T> {
        self.fail(
            ErrorKind::TimedOut,
            format!(
                "the {} at {} does not answer: it is stopped, or too busy",
                self.role.who, self.contact.address
            ),
        )
    }

    /// What came is no message, or of another version.
    pub(super) fn bad<T>(&self, bad: Bad) -> Result<T> {
        match bad {
            Bad::Malformed => self.nonsense(),
            Bad::Version(theirs) => self.fail(
                ErrorKind::UnsupportedVersion,
                format!(
                    "the {} speaks version {theirs}, and this library version {VERSION}: use one release on both sides",
                    self.role.who
                ),
            ),
        }
    }

    pub(super) fn nonsense<T>(&self) -> Result<T> {
        self.fail(
            ErrorKind::NotPermitted,
            format!(
                "who answers at {} is no {} of software devices, or this process has no descriptors left",
                self.contact.address, self.role.who
            ),
        )
    }

    /// The process that answered.
    pub(in super::super) fn process(
        &self,
        fabric: &Arc<Fabric>,
        talk: Talk,
    ) -> Result<Arc<Process>> {
        let watched = || {
            let pid = socket::pid(&talk.socket)?;
            let watch = match talk.pidfd {
                Some(pidfd) => Watch::Pidfd(pidfd),
                None => Watch::Connection(Arc::new(talk.socket)),
            };
            let identity = Identity::of(self.contact.instance, pid, &watch)?;
            Process::watched(fabric, identity, watch)
        };
        watched().map_err(|errno| self.os("to watch", errno))
    }
}
