//! How this process connects to the object of a ticket: one connection, one request, one reply.

use std::mem;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use arrayvec::ArrayVec;
use nix::errno::Errno;

use super::super::process::Fabric;
use super::super::protocol::message::{Bad, VERSION};
use super::super::protocol::{
    Address, DESCRIPTORS, Id, Line, Netns, PAYLOAD, Payload, Reply, Request, Status, Ticket, netns,
};
use super::super::publish::instance;
use super::super::service::Service;
use super::super::watch::Process;
use super::super::{current, listener};
use super::dial::{Answer, Dialed};
use crate::error::{Error, ErrorKind, Result};
use crate::process::Guarded;
use crate::sync::lock;

/// The descriptors that came with a reply.
pub(in super::super) type Descriptors = ArrayVec<Guarded, DESCRIPTORS>;

/// The result of a request that was granted.
pub(in super::super::super) struct Granted {
    pub(in super::super::super) payload: Payload,
    /// The descriptors, not checked yet: the caller that maps them checks what they are. `None` if
    /// none came.
    pub(in super::super::super) descriptors: Option<[Guarded; DESCRIPTORS]>,
    /// True if the connection must stay open, because it is the only means by which one of the two
    /// processes can watch the other.
    pub(in super::super::super) stays: bool,
    /// The connection to the server. A service may keep its end, and use the connection itself.
    /// Otherwise later requests to the server can use the connection ([`Process::keep_line`]).
    pub(in super::super::super) line: Line,
    pub(in super::super::super) process: Arc<Process>,
}

/// A request that was sent. Its answer can be read once its descriptor is readable.
pub(in super::super::super) struct Begun(Dialed, Request);

impl AsFd for Begun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.line.socket().as_fd()
    }
}

impl Granted {
    /// Returns the two descriptors of the reply.
    ///
    /// # Errors
    ///
    /// `NotPermitted` if none came.
    pub(in super::super::super) fn both(&self, ticket: &Ticket) -> Result<&[Guarded; DESCRIPTORS]> {
        self.descriptors.as_ref().ok_or_else(|| ticket.forger())
    }
}

impl Ticket {
    /// Returns the service if it is in this process, and `None` if it is in another process.
    ///
    /// # Errors
    ///
    /// As for [`connect`](Ticket::connect), if the object is not exported any more; `BadState` in a
    /// fork.
    pub(in super::super::super) fn local(&self) -> Option<Result<Arc<dyn Service>>> {
        let fabric = match current::fabric() {
            Ok(fabric) => fabric,
            Err(error) => return Some(Err(error)),
        };
        if self.instance != fabric.instance {
            return None;
        }
        let claimed = fabric.server().and_then(|server| {
            let table = lock(&server.table);
            let slot = (self.slot, self.generation);
            let (_, entry) = table.claimed(slot, |key| *key == self.key)?;
            (entry.kind == self.kind.number).then(|| entry.service.clone())
        });
        // The lock is not held here, as this may drop the last reference to the service.
        let service = claimed.and_then(|service| service.upgrade());
        Some(service.ok_or_else(|| self.unknown()))
    }

    /// Returns true if, of two endpoints that have each other's ticket, the one in this process is
    /// the server. It is the one whose process has the smaller instance number.
    ///
    /// # Errors
    ///
    /// As for [`instance`].
    pub(in super::super::super) fn is_ours_to_serve(&self) -> Result<bool> {
        Ok(instance()? < self.instance)
    }

    /// Connects to the service in another process. Waits at most until the deadline.
    ///
    /// # Errors
    ///
    /// - `ConnectionAborted` if the service refuses, or if the object is not exported any more
    ///   (`NotPermitted` for memory).
    /// - `InUse` if another client has the sync event.
    /// - `ConnectionReset` if the process has ended.
    /// - `NotSupported` from another host or network namespace.
    /// - `NotPermitted` if the process that answers is not the one that exported the object.
    /// - `TimedOut` if the deadline has passed.
    /// - `BadState` in a fork.
    /// - `OperatingSystem` if a system call fails.
    pub(in super::super::super) fn connect(
        &self,
        payload: &Payload,
        deadline: Instant,
    ) -> Result<Granted> {
        let fabric = current::fabric()?;
        let (dialed, request, answer) = self.ask(&fabric, payload, deadline)?;
        self.connected(&fabric, dialed, &request, answer)
    }

    /// Begins to connect without blocking, on a kept connection to the process. Sends the payload
    /// that `ask` returns; the second value of `ask` is true if the answer may bring descriptors.
    /// If that value is false, a server that must send descriptors hangs up. Returns `None` if no
    /// connection was kept, or the server has hung up.
    pub(in super::super::super) fn begin_connect(
        &self,
        ask: impl FnOnce() -> Result<(Payload, bool)>,
    ) -> Option<Begun> {
        let fabric = current::fabric().ok()?;
        let mut dialed = self.kept(&fabric)?.ok()?;
        let (payload, expects) = ask().ok()?;
        if expects {
            dialed.line.expect();
        }
        let request = self.request_on(&fabric, &dialed, &payload);
        self.send(&dialed, &request).ok()?;
        Some(Begun(dialed, request))
    }

    /// Completes a connect that was begun, once the answer can be read.
    ///
    /// # Errors
    ///
    /// As for [`connect`](Ticket::connect). `ConnectionReset` may mean that the server has hung up
    /// on the connection that was kept, but would answer on another one.
    pub(in super::super::super) fn complete_connect(&self, begun: Begun) -> Result<Granted> {
        let fabric = current::fabric()?;
        let Begun(dialed, request) = begun;
        let answer = self.answer(&dialed)?;
        self.connected(&fabric, dialed, &request, answer)
    }

    fn connected(
        &self,
        fabric: &Arc<Fabric>,
        dialed: Dialed,
        request: &Request,
        answer: Answer,
    ) -> Result<Granted> {
        let (reply, descriptors) = self.granted(request, answer)?;
        let Dialed {
            mut line,
            pidfd,
            known,
            ..
        } = dialed;
        if reply.stays || descriptors.is_none() {
            line.refuse();
        }
        let watch = || {
            let shared = self.kind.shares_watch;
            Process::across(fabric, self.instance, line.socket(), pidfd, shared)
        };
        let process = known.map_or_else(watch, Ok);
        Ok(Granted {
            payload: reply.payload,
            descriptors,
            stays: reply.stays,
            process: process.map_err(|errno| self.os("to watch", errno))?,
            line,
        })
    }

    /// Checks whether the process of the ticket, whose endpoint will connect as the client, has
    /// ended, and whether the ticket is stale: the endpoint was reset or dropped since it made the
    /// ticket.
    ///
    /// Returns the process, which is watched from now on, if the kernel identifies it.
    ///
    /// The request has a payload that no endpoint sends, so the client refuses it. If the ticket is
    /// stale, the client refuses it because of its slot, generation or key instead. A client that
    /// this process cannot reach may still connect itself.
    ///
    /// # Errors
    ///
    /// - `ConnectionReset` if the client's process has ended.
    /// - `ConnectionAborted` if the ticket is stale.
    /// - `NotSupported` if the client is on another host.
    /// - `TimedOut` if the deadline has passed.
    /// - `OperatingSystem` if the process cannot be watched.
    pub(in super::super::super) fn probe(&self, deadline: Instant) -> Result<Option<Arc<Process>>> {
        let fabric = current::fabric()?;
        self.is_of_this_host()?;
        let asked = self.ask(&fabric, &[0; PAYLOAD], deadline);
        let is_path = matches!(self.address, Address::Path(_));
        match asked.map_err(|error| (error.kind(), error)) {
            Ok((dialed, _, answer)) => match Reply::parse(&answer.bytes[..answer.len]) {
                Ok(reply) if reply.status == Status::Unknown => Err(self.unknown()),
                _ => {
                    if dialed.known.is_some() {
                        return Ok(dialed.known);
                    }
                    // Without a pidfd, the end of this connection would count as the end of the
                    // process.
                    let (socket, shared) = (dialed.line.socket(), self.kind.shares_watch);
                    let watch = |pidfd| {
                        Process::across(&fabric, self.instance, socket, Some(pidfd), shared)
                    };
                    let process = dialed.pidfd.map(watch).transpose();
                    process.map_err(|errno| self.os("to watch", errno))
                }
            },
            // The path may exist, but not be visible from here.
            Err((ErrorKind::ConnectionReset, _)) if is_path => Ok(None),
            Err((ErrorKind::ConnectionReset | ErrorKind::TimedOut, error)) => Err(error),
            // The client cannot be reached from here.
            Err(_) => Ok(None),
        }
    }

    /// Checks that the ticket was made on this host, since the host was last started.
    pub(in super::super::super) fn is_of_this_host(&self) -> Result<()> {
        self.same_boot(&netns::boot()?)
    }

    fn same_boot(&self, here: &Id) -> Result<()> {
        if *here == self.netns.boot {
            return Ok(());
        }
        let text = format!(
            "the {} was exported on another host, or before a restart of this one (boot id {}, and here {}): software devices \
             share memory within a host",
            self.kind.what,
            netns::hex(&self.netns.boot),
            netns::hex(here)
        );
        Err(Error::new(ErrorKind::NotSupported, None, text))
    }

    /// Checks that the ticket names the socket of its own instance, and makes later connects refuse
    /// a symbolic link. A forged ticket may name another socket, to make this process connect
    /// there.
    pub(in super::super::super) fn lead_to_its_process(&mut self) -> Result<()> {
        if !listener::is_of(&self.address, &self.instance) {
            return Err(self.forged("and its own process listens at another socket"));
        }
        if let Address::Path(path) = &mut self.address {
            self.address = Address::NoLink(mem::take(path));
        }
        Ok(())
    }

    pub(super) fn forged(&self, why: &str) -> Error {
        let text = format!(
            "the {}'s blob leads to {}, {why}: the blob is forged",
            self.kind.who, self.address
        );
        Error::new(ErrorKind::NotPermitted, None, text)
    }

    /// Checks that the server can be reached from here.
    pub(in super::super) fn reachable(&self, here: &Netns) -> Result<()> {
        self.same_boot(&here.boot)?;
        let who = self.kind.who;
        let text = if here.net != self.netns.net && matches!(self.address, Address::Abstract(_)) {
            format!(
                "the {who} is in another network namespace (inode {}, and here {}), and listens at an abstract name: have it listen \
                 at a path that both see, with soft::set_socket_path or TOKIO_DOCA_SOFT_SOCKET",
                self.netns.net.1, here.net.1
            )
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::NotSupported, None, text))
    }

    /// Returns the reply and the descriptors of an answer, if it grants the request.
    ///
    /// # Errors
    ///
    /// As for [`connect`](Ticket::connect).
    pub(in super::super) fn granted(
        &self,
        request: &Request,
        answer: Answer,
    ) -> Result<(Reply, Option<[Guarded; DESCRIPTORS]>)> {
        let reply = match Reply::parse(&answer.bytes[..answer.len]) {
            Ok(reply) => reply,
            Err(Bad::Malformed) => return Err(self.nonsense()),
            Err(Bad::Version(theirs)) => {
                let text = format!(
                    "the {} speaks version {theirs}, and this library version {VERSION}: use one release on both sides",
                    self.kind.who
                );
                return Err(Error::new(ErrorKind::UnsupportedVersion, None, text));
            }
        };
        let (kind, text) = match reply.status {
            Status::Granted => return self.granted_by(request, reply, answer.descriptors),
            Status::Unknown => return Err(self.unknown()),
            Status::Busy => self.kind.busy,
            Status::Unexpected => (ErrorKind::ConnectionAborted, self.kind.unexpected),
            Status::Failed => {
                let what = format!(
                    "the {} could not share its {}",
                    self.kind.who, self.kind.what
                );
                let errno = Errno::from_raw(reply.errno.get());
                return Err(Error::os(None, what, errno.into()));
            }
            // The reply has the version of this library, so it cannot report that the versions
            // differ.
            Status::Version => return Err(self.nonsense()),
        };
        Err(Error::new(kind, None, text))
    }

    /// Checks the proof of a reply that grants the request, and returns the reply.
    fn granted_by(
        &self,
        request: &Request,
        reply: Reply,
        descriptors: Descriptors,
    ) -> Result<(Reply, Option<[Guarded; DESCRIPTORS]>)> {
        let right = reply.is_proved(&self.key, request)
            && reply.instance == self.instance
            && (reply.stays || !request.stays);
        let descriptors = match descriptors.is_empty() {
            true => Some(None),
            false => descriptors.into_inner().ok().map(Some),
        };
        let granted = descriptors.filter(|_| right);
        granted.map_or_else(|| Err(self.forger()), |them| Ok((reply, them)))
    }

    /// Returns the error for an answer that did not come from the process of the ticket.
    fn forger(&self) -> Error {
        let text = format!(
            "who answers at {} is not the process that exported this {}",
            self.address, self.kind.what
        );
        Error::new(ErrorKind::NotPermitted, None, text)
    }

    /// Returns the error for an object that is not exported any more.
    pub(super) fn unknown(&self) -> Error {
        let text = format!(
            "the {}'s {} (slot {}, generation {}) was taken back, reset, stopped or dropped since it was exported, or the bytes are \
             forged: export anew, and use what that gives",
            self.kind.who, self.kind.what, self.slot, self.generation
        );
        Error::new(self.kind.unknown, None, text)
    }

    /// Returns the error of a system call. `what` describes the call, and precedes the server's
    /// name.
    pub(super) fn os(&self, what: &str, errno: Errno) -> Error {
        Error::os(None, format!("{what} the {}", self.kind.who), errno.into())
    }

    pub(super) fn gone(&self) -> Error {
        let text = format!(
            "no process listens at {}: the one that exported this {} has ended, or has dropped all its exports; a path must \
             be visible here as well",
            self.address, self.kind.what
        );
        Error::new(ErrorKind::ConnectionReset, None, text)
    }

    pub(super) fn late(&self) -> Error {
        let text = format!(
            "the {} at {} does not answer: it is stopped, or too busy",
            self.kind.who, self.address
        );
        Error::new(ErrorKind::TimedOut, None, text)
    }

    pub(super) fn nonsense(&self) -> Error {
        let text = format!(
            "who answers at {} is no {} of software devices, or this process has no descriptors left",
            self.address, self.kind.who
        );
        Error::new(ErrorKind::NotPermitted, None, text)
    }
}
