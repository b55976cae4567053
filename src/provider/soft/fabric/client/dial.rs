//! The connection for a request: one that was kept, or a new one.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use nix::errno::Errno;
use zerocopy::IntoBytes;

use super::super::process::Fabric;
use super::super::protocol::{Id, Line, Netns, Payload, REPLY_LEN, Request, Ticket, netns, socket};
use super::super::watch::Process;
use super::connect::Descriptors;
use crate::error::{Error, ErrorKind, Result};

/// How often a client connects again to a server that hangs up. A live server hangs up if strangers
/// connect endlessly, and displace clients that have not sent their request yet. If the server has
/// ended, the next attempt finds no listener.
const TRIES: u32 = 8;

/// An answer as it was received: any bytes, with any descriptors.
pub(in super::super) struct Answer {
    pub(super) bytes: [u8; REPLY_LEN],
    pub(super) len: usize,
    pub(super) descriptors: Descriptors,
}

/// A connection to a server.
pub(in super::super) struct Dialed {
    pub(in super::super) line: Line,
    pub(in super::super) nonce: Id,
    /// The server's pidfd. `None` if the kernel provides none; then the connection must stay open.
    pub(in super::super) pidfd: Option<OwnedFd>,
    /// The process, if it has answered on this connection before. It is watched by a pidfd.
    pub(super) known: Option<Arc<Process>>,
}

impl Dialed {
    fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        let known = self.known.as_ref().map(|process| process.descriptor());
        known.or_else(|| self.pidfd.as_ref().map(|pidfd| pidfd.as_fd()))
    }
}

impl Ticket {
    /// Sends the request until an answer comes. Tries the kept connections to the process first;
    /// the server may have hung up on them.
    pub(super) fn ask(
        &self,
        fabric: &Fabric,
        payload: &Payload,
        deadline: Instant,
    ) -> Result<(Dialed, Request, Answer)> {
        let once = |dialed: Dialed| -> Result<_> {
            let request = self.request_on(fabric, &dialed, payload);
            let answer = self.exchange(&dialed, &request, deadline)?;
            Ok((dialed, request, answer))
        };
        let has_hung_up = |error: &Error| error.kind() == ErrorKind::ConnectionReset;
        while let Some(kept) = self.kept(fabric) {
            let asked = kept.and_then(|mut kept| {
                kept.line.expect();
                once(kept)
            });
            match asked {
                Err(error) if has_hung_up(&error) => {}
                done => return done,
            }
        }
        self.reachable(&Netns::here()?)?;
        for _ in 1..TRIES {
            match self.dial(deadline).and_then(once) {
                Err(error) if has_hung_up(&error) => {}
                done => return done,
            }
        }
        self.dial(deadline).and_then(once)
    }

    /// Returns a kept connection to the process, if there is one.
    pub(super) fn kept(&self, fabric: &Fabric) -> Option<Result<Dialed>> {
        let (process, line) = fabric.lines.take(self)?;
        Some(netns::random().map(|nonce| Dialed {
            line,
            nonce,
            pidfd: None,
            known: Some(process),
        }))
    }

    pub(super) fn request_on(
        &self,
        fabric: &Fabric,
        dialed: &Dialed,
        payload: &Payload,
    ) -> Request {
        let stays = dialed.pidfd().is_none();
        self.request(fabric.instance, dialed.nonce, stays, payload)
    }

    pub(in super::super) fn dial(&self, deadline: Instant) -> Result<Dialed> {
        let socket = match socket::connect(&self.address, deadline) {
            Ok(socket) => socket,
            Err(Errno::ECONNREFUSED | Errno::ENOENT | Errno::ESRCH) => return Err(self.gone()),
            Err(Errno::EAGAIN) => return Err(self.late()),
            Err(Errno::ENOTSOCK) => return Err(self.forged("which is no socket")),
            Err(errno) => {
                let what = format!("connect to the {} at {}", self.kind.who, self.address);
                return Err(Error::os(None, what, errno.into()));
            }
        };
        // The pidfd is taken before the answer comes: if the process is still alive when it
        // answers, the pidfd belongs to the process that has answered.
        let line = Line::new(self, socket);
        let pidfd = match socket::pidfd(line.socket()) {
            Ok(pidfd) => pidfd,
            Err(Errno::ESRCH) => return Err(self.gone()),
            Err(errno) => return Err(self.os("a pidfd of", errno)),
        };
        Ok(Dialed {
            line,
            nonce: netns::random()?,
            pidfd,
            known: None,
        })
    }

    /// Sends a request, and waits for the answer.
    pub(in super::super) fn exchange(
        &self,
        dialed: &Dialed,
        request: &Request,
        deadline: Instant,
    ) -> Result<Answer> {
        self.send(dialed, request)?;
        let socket = dialed.line.socket().as_fd();
        let waited = socket::wait([Some(socket), dialed.pidfd()], deadline);
        match waited.map_err(|errno| self.os("poll of", errno))? {
            [true, _] => {}
            [false, true] => return Err(self.gone()),
            [false, false] => return Err(self.late()),
        }
        self.answer(dialed)
    }

    pub(super) fn send(&self, dialed: &Dialed, request: &Request) -> Result<()> {
        let socket = dialed.line.socket().as_fd();
        match socket::send(socket, request.as_bytes(), &[]) {
            Ok(()) => Ok(()),
            Err(Errno::EPIPE | Errno::ECONNRESET) => Err(self.gone()),
            Err(errno) => Err(self.os("send to", errno)),
        }
    }

    /// Reads the answer, which must have come.
    pub(super) fn answer(&self, dialed: &Dialed) -> Result<Answer> {
        let mut bytes = [0; REPLY_LEN];
        match socket::receive_with(dialed.line.socket(), &mut bytes) {
            Ok((0, _)) | Err(Errno::ECONNRESET) => {
                let text = format!(
                    "the {} at {} hung up without an answer: it has ended, or is of another release",
                    self.kind.who, self.address
                );
                Err(Error::new(ErrorKind::ConnectionReset, None, text))
            }
            Ok((len, descriptors)) => Ok(Answer {
                bytes,
                len,
                descriptors,
            }),
            Err(Errno::EBADMSG) => Err(self.nonsense()),
            Err(Errno::EAGAIN) => Err(match &dialed.known {
                // A child of the process may hold the connection.
                Some(process) if process.has_ended() => self.gone(),
                _ => self.late(),
            }),
            Err(errno) => Err(self.os("recvmsg from", errno)),
        }
    }
}

#[cfg(fuzzing)]
impl Answer {
    /// Returns an answer that was not received from a socket, or `None` if it is longer than any
    /// answer.
    pub(in super::super) fn made_up(bytes: &[u8], descriptors: Descriptors) -> Option<Answer> {
        let mut read = [0; REPLY_LEN];
        read.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Answer {
            bytes: read,
            len: bytes.len(),
            descriptors,
        })
    }
}
