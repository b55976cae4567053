//! The guest's side: asks the host of an invitation, and is welcomed or not.

use std::sync::Arc;
use std::time::Instant;

use nix::errno::Errno;

use super::super::current;
use super::super::protocol::greeting::{Answer, HELLO, Hello, Knock};
use super::super::protocol::wire::Status;
use super::super::protocol::{Address, DESCRIPTORS};
use super::super::watch::Process;
use super::invitation::Invitation;
use super::talk::{Descriptors, Other, Talk};
use crate::error::{Error, ErrorKind, Result};
use crate::process::Guarded;

/// What a guest got.
pub(in super::super::super) struct Visit {
    pub(in super::super::super) hello: Hello,
    /// Of the link, and of the channel. Nothing is known of them: [`Arena::received`](super::super::Arena::received) looks.
    pub(in super::super::super) memfds: [Guarded; DESCRIPTORS],
    /// The connection, which the host has too if it wanted to keep it.
    pub(in super::super::super) socket: Guarded,
    /// Whether the connection has to stay as long as the two are connected, since its end is all that one of them can watch.
    pub(in super::super::super) stays: bool,
    pub(in super::super::super) process: Arc<Process>,
}

impl Invitation {
    /// Asks the host. It waits until the deadline at most.
    ///
    /// # Errors
    ///
    /// `ConnectionAborted` if the endpoint was reset or dropped, or refuses; `ConnectionReset` if its process has ended; `NotSupported` from
    /// another host or network namespace; `NotPermitted` if who answers is not the host; `TimedOut`; `BadState` in a fork; what could not be
    /// had.
    pub(in super::super::super) fn visit(&self, hello: &Hello, deadline: Instant) -> Result<Visit> {
        let fabric = current::fabric()?;
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

    /// Refuses a guest that has gone: one whose process has ended, or whose blob is stale, because
    /// it was reset or dropped since.
    ///
    /// It knocks at the guest's, with a hello that no endpoint says and that is therefore refused.
    /// A stale blob is refused for its slot, generation and key. A guest that cannot be reached
    /// from here may come all the same.
    ///
    /// # Errors
    ///
    /// `ConnectionReset` if the guest's process has ended, `ConnectionAborted` if the blob is
    /// stale, `TimedOut`.
    pub(in super::super::super) fn find_guest(&self, deadline: Instant) -> Result<()> {
        let fabric = current::fabric()?;
        let guest = self.host();
        let asked = guest.ask(
            deadline,
            |talk| {
                let knock = Knock {
                    slot: self.slot,
                    generation: self.generation,
                    nonce: talk.nonce,
                    keep: false,
                    instance: fabric.instance,
                    hello: [0; HELLO],
                };
                knock.format(&self.key)
            },
            |_, answer, _| match Answer::parse(answer) {
                Ok(answer) if answer.status == Status::Unknown => Err(self.unknown()),
                _ => Ok(()),
            },
        );
        let is_path = matches!(self.contact.address, Address::Path(_));
        match asked.map_err(|error| (error.kind(), error)) {
            // A path may not be visible here.
            Err((ErrorKind::ConnectionReset, _)) if is_path => Ok(()),
            Err((
                ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::TimedOut,
                error,
            )) => Err(error),
            // It has answered something else, or cannot be asked from here.
            _ => Ok(()),
        }
    }

    pub(in super::super) fn host(&self) -> Other<'_> {
        Other {
            role: &self.kind.role,
            contact: &self.contact,
        }
    }

    /// What an answer to a knock is worth, which may be any bytes with any descriptors.
    pub(in super::super) fn greeted(
        &self,
        knock: &Knock,
        answer: &[u8],
        with: Descriptors,
    ) -> Result<(Answer, [Guarded; DESCRIPTORS])> {
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
                return Err(Error::os(None, what, Errno::from_raw(errno).into()));
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
