//! How the fabric's thread answers a request.

use std::cell::{Cell, RefCell};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::{Mutex, Weak};

use arrayvec::ArrayVec;
use nix::errno::Errno;
use zerocopy::IntoBytes;

use super::process::{Server, Shared};
use super::protocol::message::Bad;
use super::protocol::{DESCRIPTORS, Id, Refusal, Reply, Request, Slots, socket};
use super::service::{Client, PublishedService, Service};
use super::watch::Process;
use crate::process::Guarded;
use crate::sync::lock;

/// How the server continues with a connection whose request was granted.
pub(super) enum Then {
    /// The connection is kept, since its client may ask again.
    Keep,
    Stay,
    HandOver(Box<dyn FnOnce(Guarded) + Send>),
}

/// What the server does with a message.
pub(super) enum Verdict {
    /// The message is no request: the server does not answer.
    Silence,
    Refuse(Refusal),
    /// The client has proved that it has the key of this service.
    Admit(Request, Id, Weak<dyn Service>),
}

/// Judges a message, which may be any bytes. `has_capacity` is true if one more connection may stay
/// open.
pub(super) fn judge(
    table: &Mutex<Slots<PublishedService>>,
    message: &[u8],
    has_capacity: bool,
) -> Verdict {
    let request = match Request::parse(message) {
        Ok(request) => request,
        Err(Bad::Version(_)) => return Verdict::Refuse(Refusal::VERSION),
        Err(Bad::Malformed) => return Verdict::Silence,
    };
    let slot = (request.slot.get(), request.generation.get());
    let table = lock(table);
    let claimed = table.claimed(slot, |key| request.is_proved(key));
    match claimed.filter(|(_, entry)| entry.kind == request.kind) {
        None => Verdict::Refuse(Refusal::UNKNOWN),
        Some(_) if request.stays && !has_capacity => Verdict::Refuse(Errno::EUSERS.into()),
        Some((key, entry)) => Verdict::Admit(request, *key, entry.service.clone()),
    }
}

/// Refuses a request.
pub(super) fn refuse(to: &Guarded, refusal: Refusal) -> Option<Then> {
    let reply = Reply::refused(refusal);
    let _ = socket::send(to.as_fd(), reply.as_bytes(), &[]);
    None
}

/// Answers a message. Returns `None` if nothing was granted.
pub(super) fn answer(
    shared: &Shared,
    server: &Server,
    message: &[u8],
    from: &Guarded,
    known: &RefCell<Weak<Process>>,
    has_capacity: bool,
) -> Option<Then> {
    let (request, key, service) = match judge(&server.table, message, has_capacity) {
        Verdict::Silence => return None,
        Verdict::Refuse(refusal) => return refuse(from, refusal),
        Verdict::Admit(request, key, service) => (request, key, service),
    };
    let Some(service) = service.upgrade() else {
        return refuse(from, Refusal::UNKNOWN);
    };
    let client = Client {
        instance: request.instance,
        payload: request.payload,
        fabric: &server.fabric,
        socket: from,
        known,
        has_capacity,
        stays: Cell::new(request.stays),
    };
    let grant = match service.accept(&client) {
        Ok(grant) => grant,
        Err(refusal) => return refuse(from, refusal),
    };
    let stays = client.stays.get();
    let reply = Reply::granted(shared.instance, stays, &grant.payload, &key, &request);
    let descriptors = grant.descriptors.iter().flatten();
    let raw: ArrayVec<RawFd, DESCRIPTORS> = descriptors.map(|fd| fd.as_raw_fd()).collect();
    let sent = socket::send(from.as_fd(), reply.as_bytes(), &raw);
    if let (Err(_), Some(unsent)) = (sent, grant.unsent) {
        unsent();
    }
    match (sent, grant.keep) {
        (Ok(()), Some(to)) => Some(Then::HandOver(to)),
        (Ok(()), None) if stays => Some(Then::Stay),
        (Ok(()), None) => Some(Then::Keep),
        // Too many descriptors are in flight to clients that do not read them.
        (Err(Errno::ETOOMANYREFS), _) => refuse(from, Errno::ETOOMANYREFS.into()),
        (Err(_), _) => None,
    }
}
