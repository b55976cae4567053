//! The steps of a connection that rdma_cm makes, and the reasons of its failures.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::adapter::greeting::{self, Greeting};
use super::super::adapter::{Address, BlobOrigin, EndpointBlob};
use super::super::cm::{CmEvent, CmId, Handler, Offer, What, is_of, peer_gid, wait_for_peer};
use super::super::connection::RcConnection;
use super::super::ffi::*;
use super::super::transport::{Qp, Route};
use super::managed::Tell;
use crate::device::{Access, CmAnswer, CmOptions, CmRefused, Mtu, Path};
use crate::error::{Error, ErrorKind, JobError, Result};
use crate::sync::contain;

pub(super) struct Attempt {
    /// A thread that sends the request to the peer may share the id.
    pub(super) id: Arc<CmId>,
    pub(super) conn: Arc<RcConnection>,
    pub(super) qp: Arc<Qp>,
    /// True if this side accepts a request of the peer, and false if it connects.
    pub(super) accepts: bool,
    /// True if the queue pair has left the state INIT, or may have left it. On iWARP this is set
    /// once the manager uses the queue pair.
    pub(super) half: bool,
    /// The peer, once the queue pair is connected.
    pub(super) ready: Option<(EndpointBlob, Path)>,
    pub(super) options: CmOptions,
    pub(super) answer: CmAnswer,
}

/// The result of a step.
pub(super) enum Next {
    Wait,
    /// Both sides are connected. The value is the data of the peer's application.
    Connected(Vec<u8>),
}

impl Attempt {
    pub(super) fn is_iwarp(&self) -> bool {
        self.conn.core.context.traits.iwarp
    }

    /// Does the step that an event demands. `by` gets the result of a step that blocks.
    pub(super) fn step(&mut self, event: &CmEvent, by: Arc<dyn Handler>) -> Result<Next> {
        let text = match event.what {
            What::AddrResolved => {
                self.id
                    .resolve_route(left(&self.options))
                    .map_err(unreachable)?;
                return Ok(Next::Wait);
            }
            What::RouteResolved => return self.ask(by).map(|()| Next::Wait),
            What::Response => return self.respond(event).map(Next::Connected),
            // On iWARP this is the peer's answer: the queue pair is connected.
            What::Established if self.ready.is_none() && self.is_iwarp() => {
                return self.respond(event).map(Next::Connected);
            }
            What::Established => return Ok(Next::Connected(Vec::new())),
            What::CameFirst => {
                // A message has come before the event that the peer is ready, and proves it. If
                // that event has come meanwhile, the manager refuses the call.
                let _ = self.id.notify_established();
                return Ok(Next::Wait);
            }
            What::Failed(kind) => {
                self.qp.set_asks(false);
                return Err(failed(kind, event));
            }
            What::NotAsked => {
                // The queue pair was not changed.
                self.half = false;
                return Err(not_asked(event.status));
            }
            What::TimedOut => {
                let text = match self.ready {
                    None => "the address did not answer in time",
                    Some(_) => "the peer asked for a connection, and did not complete it in time",
                };
                return Err(Error::new(ErrorKind::TimedOut, None, text));
            }
            What::Disconnected => "the peer has ended the connection before it was complete",
            What::DeviceRemoved => "the adapter was removed",
            What::Ended => "it was reset or dropped while it was being connected",
            What::Request | What::Other(_) => return Ok(Next::Wait),
        };
        Err(Error::new(ErrorKind::ConnectionAborted, None, text))
    }

    /// Sends the request to the peer, now that the route is known.
    fn ask(&mut self, by: Arc<dyn Handler>) -> Result<()> {
        let context = &self.conn.core.context;
        let found = self.id.device(context).unwrap_or_default();
        if !is_of(context, &found) {
            let (name, port) = found;
            let text = format!(
                "the address is reached by port {port} of {name}, and this Rdma is on {}: open that device, or say another source (Transport::source)",
                context.name
            );
            return Err(Error::new(ErrorKind::NotSupported, None, text));
        }
        let (said, reads) = (self.private_data(), context.traits.rd_atomics);
        if !self.is_iwarp() {
            return self.id.connect(&self.offer(&said, reads));
        }
        // siw (Soft-iWARP) waits here for the peer's host, as long as TCP does. So a separate
        // thread makes the call, and the events of this connection are handled meanwhile. The
        // thread keeps the queue pair alive, since the request names its number.
        let (id, qp, srq) = (Arc::clone(&self.id), Arc::clone(&self.qp), false);
        let ask = move || {
            if Arc::strong_count(&id) == 1 {
                // The attempt has ended.
                return;
            }
            let (qp_num, private_data) = (qp.num(), &said[..]);
            qp.set_asks(true);
            let asked = id.connect(&Offer {
                qp_num,
                srq,
                private_data,
                reads,
            });
            if let Err(error) = asked {
                qp.set_asks(false);
                by.handle(CmEvent::not_asked(&error));
            }
        };
        wait_for_peer(ask).map_err(|error| Error::os(None, "std::thread", error))?;
        self.half = true;
        Ok(())
    }

    fn private_data(&self) -> Vec<u8> {
        match self.options.foreign {
            true => self.options.private_data.clone(),
            false => self.conn.greeting().format(&self.options.private_data),
        }
    }

    fn offer<'a>(&self, private_data: &'a [u8], reads: [u8; 2]) -> Offer<'a> {
        Offer {
            qp_num: self.qp.num(),
            srq: self.conn.config.pooled_len.is_some(),
            private_data,
            reads,
        }
    }

    /// Connects the queue pair after the peer has accepted, and confirms this to the peer (not over
    /// iWARP). Returns the data of the peer's application.
    fn respond(&mut self, event: &CmEvent) -> Result<Vec<u8>> {
        let parsed = match self.options.foreign {
            true => None,
            false => Greeting::parse(&event.private_data)?,
        };
        let (greeting, said) = match parsed {
            Some((greeting, said)) => (Some(greeting), said.to_vec()),
            None if self.options.foreign => (None, event.private_data.clone()),
            None => {
                let text =
                    "the peer is a program without this library: connect to it with foreign(true)";
                return Err(Error::new(ErrorKind::InvalidValue, None, text));
            }
        };
        self.make_ready(greeting, event.reads)?;
        match self.is_iwarp() {
            true => self.qp.set_asks(false),
            false => self.id.establish().map_err(given_up)?,
        }
        Ok(said)
    }

    /// Connects the queue pair to the peer that has sent the request, and answers.
    pub(super) fn accept(&mut self, greeting: Option<Greeting>, asked: [u8; 2]) -> Result<()> {
        self.make_ready(greeting, asked)?;
        let [answers, asks] = self.conn.core.context.traits.rd_atomics;
        let said = self.private_data();
        let reads = [answers.min(asked[0]), asks.min(asked[1])];
        self.id.accept(&self.offer(&said, reads)).map_err(given_up)
    }

    /// Moves the queue pair to RTS, by the route that rdma_cm has found. This library sets the time
    /// limits and the permissions of the peer itself, since with the values of rdma_cm (for
    /// example, 17 s for each try) it could not keep its own limits.
    fn make_ready(&mut self, greeting: Option<Greeting>, reads: [u8; 2]) -> Result<()> {
        let (conn, context) = (&self.conn, &self.conn.core.context);
        if self.is_iwarp() {
            self.half = true;
            self.ready = Some(self.of_addresses(greeting, reads)?);
            return Ok(());
        }
        if greeting.is_some() && reads[1] == 0 {
            // The peer could not be probed, and a read from it would wait for ever.
            let text = "the peer says that it answers no reads";
            return Err(Error::new(ErrorKind::InvalidValue, None, text));
        }
        // The manager knows the route only while the connection is being made.
        let way = |state| self.id.qp_attr(state).map_err(given_up);
        let (rtr, rts) = (way(IBV_QPS_RTR)?, way(IBV_QPS_RTS)?);
        let (gid, port) = (peer_gid(&rtr), context.port()?);
        // Both sides use the MTU of the route. A packet that is larger than the receiver's MTU ends
        // the connection, and a peer without this library does not learn of `RdmaBuilder::mtu`.
        let mtu = usize::try_from(rtr.path_mtu).ok();
        let mtu = mtu.and_then(|mtu| Mtu::ALL.get(mtu.checked_sub(1)?));
        let mtu = *mtu.ok_or_else(|| {
            let text = format!("rdma_cm gives an MTU of number {}", rtr.path_mtu);
            Error::new(ErrorKind::Unexpected, None, text)
        })?;
        let address = Address {
            lid: rtr.ah_attr.dlid,
            qpn: rtr.dest_qp_num,
            psn: rtr.rq_psn,
            gid,
            mtu: Some(mtu),
        };
        let peer = peer(address, greeting, reads[1]);
        let sgid_index = u32::from(rtr.ah_attr.grh.sgid_index);
        let own = context.gid_at(sgid_index).map(|gid| gid.addr);
        let path = Path::new(own.unwrap_or([0; 16].into()), gid.into(), mtu);
        let route = Route {
            peer: peer.address,
            psn: rts.sq_psn,
            gid_index: sgid_index,
            mtu,
            needs_grh: port.needs_grh,
            rd_atomics: [
                context.traits.rd_atomics[0],
                context.traits.rd_atomics[1].min(peer.answers),
            ],
            retry: conn.retry(),
            transport: conn.config.transport,
            resolved: Some(rtr.ah_attr),
        };
        let connected = self.qp.connect(&route);
        self.half = !matches!(connected, Err((false, _)));
        connected.map_err(|(_, error)| {
            let text = format!("{} cannot reach the peer by {path}: {error}", context.name);
            Error::new(ErrorKind::NotSupported, None, text)
        })?;
        self.ready = Some((peer, path));
        Ok(())
    }

    /// Returns the peer on iWARP, where the kernel connects queue pairs by a TCP connection.
    /// Drivers differ in the order of the two numbers of reads in an answer (siw, cxgb4), so that a
    /// foreign peer is assumed to answer the larger number.
    fn of_addresses(
        &self,
        greeting: Option<Greeting>,
        reads: [u8; 2],
    ) -> Result<(EndpointBlob, Path)> {
        let mtu = self.conn.core.context.port()?.mtu;
        let addrs = [self.id.local_addr(), self.id.peer_addr()];
        let [own, gid] = addrs.map(|addr| match addr.map(|addr| addr.ip()) {
            Some(IpAddr::V4(ip)) => ip.to_ipv6_mapped(),
            Some(IpAddr::V6(ip)) => ip,
            None => Ipv6Addr::UNSPECIFIED,
        });
        let address = Address {
            lid: 0,
            qpn: 0,
            psn: 0,
            gid: gid.octets(),
            mtu: Some(mtu),
        };
        let most = reads[0].max(reads[1]);
        let answers = greeting.map_or(most, |it| it.answers);
        let mut peer = peer(address, greeting, answers);
        if greeting.is_none() {
            peer.permissions &= !Access::RDMA_ATOMIC;
        }
        Ok((peer, Path::new(own, gid, mtu)))
    }

    /// Returns a function that gives the queue pair back, drops the id, which notifies the peer,
    /// and returns the error to the application. The caller calls that function without a lock.
    pub(super) fn fail(self, error: Error) -> Tell {
        Box::new(move || {
            self.id.clear_deadline();
            let cause = JobError::device(error.kind(), 0);
            let given_back = self.conn.give_back(&self.qp, self.half, cause);
            let Attempt { answer, qp, .. } = self;
            qp.let_go();
            contain("a waker", || answer(Err(given_back.err().unwrap_or(error))));
        })
    }
}

/// Returns the peer at an address, by its greeting, or with the known values of a foreign peer.
/// `answers` is the number of concurrent reads that the peer answers, as the manager reports it.
fn peer(address: Address, greeting: Option<Greeting>, answers: u8) -> EndpointBlob {
    EndpointBlob {
        origin: greeting.map_or(BlobOrigin::FOREIGN, |it| it.origin),
        address,
        permissions: greeting.map_or_else(|| may(answers), |it| it.permissions),
        answers: greeting.map_or(answers, |it| it.answers.min(answers)),
    }
}

/// Returns the permissions that a foreign peer may have given, as far as is known. `answers` is the
/// number of concurrent reads that the peer answers.
fn may(answers: u8) -> Access {
    let reads = Access::RDMA_READ | Access::RDMA_ATOMIC;
    match answers {
        0 => Access::RDMA_WRITE,
        _ => Access::RDMA_WRITE | reads,
    }
}

pub(super) fn left(options: &CmOptions) -> Duration {
    options.deadline.saturating_duration_since(Instant::now())
}

/// Returns an error if there is more private data than the transport carries.
pub(super) fn check_private_data(said: &[u8], most: usize, foreign: bool) -> Result<()> {
    let most = if foreign { most } else { most - greeting::LEN };
    if said.len() <= most {
        return Ok(());
    }
    let text = format!(
        "{} bytes of private data, and rdma_cm carries {most} here: send the rest as a message",
        said.len()
    );
    Err(Error::new(ErrorKind::InvalidValue, None, text))
}

fn given_up(error: Error) -> Error {
    let text = format!("the peer has given up, or the connection has ended meanwhile: {error}");
    Error::new(ErrorKind::ConnectionAborted, None, text)
}

pub(super) fn unreachable(error: Error) -> Error {
    let text = format!("the address cannot be reached by an adapter: {error}");
    Error::new(ErrorKind::NotSupported, None, text)
}

/// Returns why the request could not be sent to the peer over iWARP.
fn not_asked(errno: i32) -> Error {
    let system = std::io::Error::from_raw_os_error(errno);
    let (kind, text) = match errno {
        libc::ECONNREFUSED => {
            let text = "the peer has rejected the connection: no program listens there";
            (ErrorKind::ConnectionAborted, text.to_owned())
        }
        libc::EHOSTUNREACH | libc::ENETUNREACH => {
            let text = format!("there is no way to the peer's host: {system}");
            (ErrorKind::ConnectionAborted, text)
        }
        libc::ETIMEDOUT => {
            let text = format!("the peer's host does not answer: {system}");
            (ErrorKind::TimedOut, text)
        }
        _ => return Error::os(None, "rdma_connect", system),
    };
    Error::new(kind, None, text)
}

/// Returns the reason of a failure that the manager reports.
fn failed(kind: rdma_cm_event_type, event: &CmEvent) -> Error {
    let status = event.status;
    let system = || match status {
        ..0 => std::io::Error::from_raw_os_error(-status).to_string(),
        _ => format!("status {status}"),
    };
    let (kind, text) = match kind {
        RDMA_CM_EVENT_REJECTED => {
            let why = match status {
                // These are reasons of a rejection (InfiniBand specification, 12.6.7.2).
                28 => return rejected(&event.private_data),
                // On iWARP the only reason is the data of the peer's application.
                ..0 if event.private_data.iter().any(|byte| *byte != 0) => {
                    return rejected(&event.private_data);
                }
                8 => "no program listens there".to_owned(),
                10 => "it knows a connection of this queue pair still: reset the Rdma, and connect anew".to_owned(),
                _ => system(),
            };
            (
                ErrorKind::ConnectionAborted,
                format!("the peer has rejected the connection: {why}"),
            )
        }
        RDMA_CM_EVENT_UNREACHABLE => (
            ErrorKind::TimedOut,
            format!("the peer does not answer: {}", system()),
        ),
        RDMA_CM_EVENT_CONNECT_ERROR => (
            ErrorKind::ConnectionAborted,
            format!("the connection could not be completed: {}", system()),
        ),
        _ => {
            let kind = match -status {
                libc::ETIMEDOUT => ErrorKind::TimedOut,
                libc::EHOSTUNREACH | libc::ENETUNREACH => ErrorKind::ConnectionAborted,
                _ => ErrorKind::NotSupported,
            };
            let text = format!("the address cannot be reached by an adapter: {}", system());
            (kind, text)
        }
    };
    Error::new(kind, None, text)
}

/// Returns the error for a refusal by the peer's application. `said` is its data, to which the
/// transport may have added zeros.
fn rejected(said: &[u8]) -> Error {
    let end = said.iter().rposition(|byte| *byte != 0);
    let refused = CmRefused(said[..end.map_or(0, |at| at + 1)].to_vec());
    let text = format!("the peer has rejected the connection: {refused}");
    let error = Error::new(ErrorKind::ConnectionAborted, None, text);
    error.of_refusal(refused)
}
