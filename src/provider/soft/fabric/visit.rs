//! The guest's side: asks the host of an invitation, and is welcomed or not.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use nix::errno::Errno;

use super::greeting::{Answer, Hello, Knock};
use super::invitation::Invitation;
use super::place::Place;
use super::process::Fabric;
use super::socket::{Address, DESCRIPTORS};
use super::talk::{Descriptors, Other, Talk};
use super::watch::Process;
use super::wire::Status;
use crate::error::{Error, ErrorKind, Result};

/// What a guest got.
pub(in super::super) struct Visit {
    pub(in super::super) hello: Hello,
    /// Of the link, and of the channel. Nothing is known of them: [`Arena::received`](super::Arena::received) looks.
    pub(in super::super) memfds: [OwnedFd; DESCRIPTORS],
    /// The connection, which the host has too if it wanted to keep it.
    pub(in super::super) socket: OwnedFd,
    /// Whether the connection has to stay as long as the two are connected, since its end is all that one of them can watch.
    pub(in super::super) stays: bool,
    pub(in super::super) process: Arc<Process>,
}

impl Invitation {
    /// Asks the host. It waits until the deadline at most.
    ///
    /// # Errors
    ///
    /// `ConnectionAborted` if the endpoint was reset or dropped, or refuses; `ConnectionReset` if its process has ended; `NotSupported` from
    /// another host or network namespace; `NotPermitted` if who answers is not the host; `TimedOut`; `BadState` in a fork; what could not be
    /// had.
    pub(in super::super) fn visit(&self, hello: &Hello, deadline: Instant) -> Result<Visit> {
        let fabric = Fabric::current(self.kind.role.op)?;
        let knock = |talk: &Talk| Knock {
            slot: self.slot,
            generation: self.generation,
            nonce: talk.nonce,
            keep: talk.pidfd.is_none(),
            instance: fabric.instance,
            hello: *hello,
        };
        let host = self.host();
        let ((answer, memfds), talk) = host.ask(
            deadline,
            |talk| knock(talk).format(&self.key),
            |talk, answer, with| self.greeted(&knock(talk), answer, with),
        )?;
        let process = Process::across(&fabric, self.instance, &talk.socket, talk.pidfd);
        Ok(Visit {
            hello: answer.greeting.hello,
            memfds,
            socket: talk.socket,
            stays: answer.greeting.keep,
            process: process.map_err(|errno| host.os("to watch", errno))?,
        })
    }

    /// Refuses a guest whose process has ended: nobody else would tell the host. It is asked for nothing, and one that could not be found
    /// from here, at a path or in another network namespace, may come all the same.
    ///
    /// # Errors
    ///
    /// `ConnectionReset`.
    pub(in super::super) fn find_guest(&self, deadline: Instant) -> Result<()> {
        let guest = self.host();
        let abstract_name = matches!(self.contact.address, Address::Abstract(_));
        if !abstract_name || guest.reachable(&Place::here(self.kind.role.op)?).is_err() {
            return Ok(());
        }
        match guest.connect(deadline) {
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Err(error),
            _ => Ok(()),
        }
    }

    pub(super) fn host(&self) -> Other<'_> {
        Other {
            role: &self.kind.role,
            contact: &self.contact,
        }
    }

    /// What an answer to a knock is worth, which may be any bytes with any descriptors.
    pub(super) fn greeted(
        &self,
        knock: &Knock,
        answer: &[u8],
        with: Descriptors,
    ) -> Result<(Answer, [OwnedFd; DESCRIPTORS])> {
        let host = self.host();
        let answer = match Answer::parse(answer) {
            Ok(answer) => answer,
            Err(bad) => return host.bad(bad),
        };
        let refused = |text: &str| host.fail(ErrorKind::ConnectionAborted, text.to_owned());
        match answer.status {
            Status::Granted => {}
            Status::Unknown => return Err(self.unknown()),
            Status::Busy => {
                let (kind, text) = self.kind.busy;
                return host.fail(kind, text.to_owned());
            }
            Status::Unwanted => {
                return refused(
                    "the peer does not expect this one: connect each of two Rdmas to what the other exported",
                );
            }
            Status::Failed(errno) => {
                let what = "the peer could not connect";
                return Err(Error::os(
                    self.kind.role.op,
                    what,
                    Errno::from_raw(errno).into(),
                ));
            }
            // Its version is ours.
            Status::Version => return host.nonsense(),
        }
        let right = answer.is_proved(&self.key, knock)
            && answer.greeting.instance == self.instance
            && (answer.greeting.keep || !knock.keep);
        match (right, with.into_inner()) {
            (true, Ok(memfds)) => Ok((answer, memfds)),
            _ => host.fail(
                ErrorKind::NotPermitted,
                format!(
                    "who answers at {} is not the process that exported this {}",
                    self.address, self.kind.noun
                ),
            ),
        }
    }
}

#[cfg(test)]
mod tests;
