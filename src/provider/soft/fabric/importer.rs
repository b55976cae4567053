//! The importer's side: one connection, one request, one answer, and what is made of it.

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use arrayvec::ArrayVec;
use nix::errno::Errno;

use super::blob::Blob;
use super::control::Words;
use super::import::Import;
use super::mapping::Mapping;
use super::peer::{Identity, Peer, Watch};
use super::place::{self, Id, Place};
use super::process::{Fabric, lock};
use super::received;
use super::socket::{self, Address, DESCRIPTORS};
use super::wire::{ANSWER_LEN, Answer, Bad, Request, Status, VERSION};
use crate::device::Imported;
use crate::error::{Error, ErrorKind, Result};

const OP: &str = "import";

/// How often an exporter is asked that hangs up. One that lives does so if strangers connect without end, and push out who has not
/// spoken yet; at one that has ended nobody listens when it is asked again.
const TRIES: u32 = 8;

fn fail<T>(kind: ErrorKind, text: impl Into<String>) -> Result<T> {
    Err(Error::new(kind, OP, text.into()))
}

fn os(what: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::os(OP, what, errno.into())
}

/// Imports memory. It waits for the exporter until the deadline, and afterwards for the kernel that maps it.
///
/// # Errors
///
/// `NotSupported` from another host or network namespace; `ConnectionReset` if the exporter has ended; `NotPermitted` if it does
/// not know the export, or sends what is not to be trusted; `TimedOut`; `BadState` in a fork; what could not be had.
pub(in super::super) fn import(blob: &Blob, deadline: Instant) -> Result<Imported> {
    let fabric = Fabric::current(OP)?;
    if blob.instance == fabric.instance {
        return own(fabric, blob);
    }
    reachable(blob, &Place::here(OP)?)?;
    other(fabric, blob, deadline)
}

/// Memory of another process.
fn other(fabric: Arc<Fabric>, blob: &Blob, deadline: Instant) -> Result<Imported> {
    let ask = || Talk::begin(blob, deadline)?.finish(blob, deadline);
    let hung_up =
        |asked: &Result<_>| matches!(asked, Err(e) if e.kind() == ErrorKind::ConnectionReset);
    let mut asked = ask();
    for _ in 1..TRIES {
        if !hung_up(&asked) {
            break;
        }
        asked = ask();
    }
    let grant = asked?;
    let [memfd, control] = &grant.descriptors;
    let write = blob.audience.may_write(blob.access) || blob.audience.may_do_atomics(blob.access);
    let memory = received::map(memfd, grant.offset, blob.len, write)?;
    let page = Words::identify(control).map_err(no_page)?;
    let identity = Identity::of(blob.instance, page, grant.pid, &grant.watch);
    let identity = identity.map_err(os("fstat of the exporter's pidfd"))?;
    let peer = match Peer::known(&fabric, &identity) {
        Some(peer) => peer,
        None => {
            let words = Words::received(control).map_err(no_page)?;
            Peer::watched(&fabric, identity, words, grant.watch)?
        }
    };
    let addr = memory.base();
    finish(blob, peer, addr, Some(memory))
}

fn no_page(errno: Errno) -> Error {
    if errno == Errno::EBADMSG {
        let text =
            "the exporter sent a control page that is none, or that others could write or shorten";
        return Error::new(ErrorKind::NotPermitted, OP, text);
    }
    os("the exporter's control page")(errno)
}

fn finish(
    blob: &Blob,
    peer: Arc<Peer>,
    addr: NonNull<u8>,
    memory: Option<Mapping>,
) -> Result<Imported> {
    let Some(import) = Import::new(peer, blob.slot, blob.generation, memory) else {
        return unknown(blob);
    };
    let len = usize::try_from(blob.len).unwrap_or(usize::MAX);
    let key = import.key();
    Ok(Imported::new(
        addr,
        len,
        blob.access,
        blob.audience,
        key,
        import,
    ))
}

/// Memory of this process: no socket and no second mapping.
fn own(fabric: Arc<Fabric>, blob: &Blob) -> Result<Imported> {
    let Some(station) = fabric.station() else {
        return unknown(blob);
    };
    let table = lock(&station.table);
    let entry = table.own(blob.slot, blob.generation, &blob.key).cloned();
    drop(table);
    let Some(entry) = entry else {
        return unknown(blob);
    };
    let same = entry.len as u64 == blob.len
        && entry.access == blob.access
        && entry.audience == blob.audience;
    // Whoever drops its last owner drops the export as well.
    let (true, Some(owner)) = (same, entry.owner.upgrade()) else {
        return unknown(blob);
    };
    let Some(addr) = NonNull::new(entry.addr.load(Relaxed)) else {
        return unknown(blob);
    };
    let words = station.control.words().clone();
    let peer = Peer::own(Arc::clone(&fabric), words);
    Ok(finish(blob, peer, addr, None)?.with_owner(owner))
}

fn unknown<T>(blob: &Blob) -> Result<T> {
    fail(
        ErrorKind::NotPermitted,
        format!(
            "the exporter does not know this export (slot {}, generation {}): it was taken back, or the bytes are forged: export the memory \
             anew and hand over what that gives",
            blob.slot, blob.generation
        ),
    )
}

fn gone<T>(blob: &Blob) -> Result<T> {
    fail(
        ErrorKind::ConnectionReset,
        format!(
            "nobody listens at {}: the process that exported this memory has ended, or has dropped all its exports; a path must \
             be visible here as well",
            blob.address
        ),
    )
}

fn late<T>(blob: &Blob) -> Result<T> {
    fail(
        ErrorKind::TimedOut,
        format!(
            "the exporter at {} does not answer: it is stopped, or too busy",
            blob.address
        ),
    )
}

/// Whether the exporter can be reached from here at all.
pub(super) fn reachable(blob: &Blob, here: &Place) -> Result<()> {
    if here.boot != blob.place.boot {
        return fail(
            ErrorKind::NotSupported,
            format!(
                "the memory was exported on another host, or before a restart of this one (boot id {}, and here {}): software devices \
                 share memory within a host",
                place::hex(&blob.place.boot),
                place::hex(&here.boot)
            ),
        );
    }
    if here.net != blob.place.net && matches!(blob.address, Address::Abstract(_)) {
        return fail(
            ErrorKind::NotSupported,
            format!(
                "the exporter is in another network namespace (inode {}, and here {}), and listens at an abstract name: have it listen \
                 at a path that both see, with soft::set_socket_path or TOKIO_DOCA_SOFT_SOCKET",
                blob.place.net.1, here.net.1
            ),
        );
    }
    Ok(())
}

/// A connection that has asked.
struct Talk {
    socket: OwnedFd,
    request: Request,
    pidfd: Option<OwnedFd>,
}

/// What the exporter granted.
struct Received {
    descriptors: [OwnedFd; DESCRIPTORS],
    offset: u64,
    /// The exporter's number, and how its end shows.
    pid: i32,
    watch: Watch,
}

impl Talk {
    fn begin(blob: &Blob, deadline: Instant) -> Result<Talk> {
        let socket = match socket::connect(&blob.address, deadline) {
            Ok(socket) => socket,
            Err(Errno::ECONNREFUSED | Errno::ENOENT | Errno::ESRCH) => return gone(blob),
            Err(Errno::EAGAIN) => return late(blob),
            Err(errno) => {
                let what = format!("connect to the exporter at {}", blob.address);
                return Err(Error::os(OP, what, errno.into()));
            }
        };
        // Before it answers: then it is the process that answered.
        let pidfd = match socket::pidfd(&socket) {
            Ok(pidfd) => pidfd,
            Err(Errno::ESRCH) => return gone(blob),
            Err(errno) => return Err(os("a pidfd of the exporter")(errno)),
        };
        let request = Request {
            slot: blob.slot,
            generation: blob.generation,
            nonce: place::random(OP)?,
            keep: pidfd.is_none(),
        };
        match socket::send(socket.as_fd(), &request.format(&blob.key), &[]) {
            Ok(()) => {}
            Err(Errno::EPIPE | Errno::ECONNRESET) => return gone(blob),
            Err(errno) => return Err(os("send to the exporter")(errno)),
        }
        Ok(Talk {
            socket,
            request,
            pidfd,
        })
    }

    fn finish(self, blob: &Blob, deadline: Instant) -> Result<Received> {
        let ends = self.pidfd.as_ref().map(|pidfd| pidfd.as_fd());
        let waited = socket::wait([Some(self.socket.as_fd()), ends], deadline);
        let (descriptors, offset) = match waited.map_err(os("poll"))? {
            [true, _] => self.receive(blob)?,
            [false, true] => return gone(blob),
            [false, false] => return late(blob),
        };
        let pid = socket::pid(&self.socket).map_err(os("SO_PEERCRED of the exporter"))?;
        let watch = match self.pidfd {
            Some(pidfd) => Watch::Pidfd(pidfd),
            None => Watch::Connection(self.socket),
        };
        Ok(Received {
            descriptors,
            offset,
            pid,
            watch,
        })
    }

    fn receive(&self, blob: &Blob) -> Result<([OwnedFd; DESCRIPTORS], u64)> {
        let mut message = [0; ANSWER_LEN];
        match socket::receive_with(self.socket.as_fd(), &mut message) {
            Ok((0, _)) | Err(Errno::ECONNRESET) => fail(
                ErrorKind::ConnectionReset,
                format!(
                    "the exporter at {} hung up without an answer: it has ended, or is of another release",
                    blob.address
                ),
            ),
            Ok((len, descriptors)) => {
                granted(blob, &self.request.nonce, &message[..len], descriptors)
            }
            Err(Errno::EBADMSG) => nonsense(blob),
            Err(errno) => Err(os("recvmsg from the exporter")(errno)),
        }
    }
}

/// What an answer grants, which may be any bytes with any descriptors: the memory and the control page, and where in the memfd
/// the memory begins.
///
/// # Errors
///
/// As for [`import`].
pub(super) fn granted(
    blob: &Blob,
    nonce: &Id,
    answer: &[u8],
    descriptors: ArrayVec<OwnedFd, DESCRIPTORS>,
) -> Result<([OwnedFd; DESCRIPTORS], u64)> {
    let answer = match Answer::parse(answer) {
        Ok(answer) => answer,
        Err(Bad::Version(theirs)) => return version(theirs),
        Err(Bad::Malformed) => return nonsense(blob),
    };
    match answer.status {
        Status::Granted => {}
        Status::Unknown => return unknown(blob),
        // Its version is ours.
        Status::Version => return nonsense(blob),
        Status::Failed(errno) => {
            let what = "the exporter could not hand over the memory";
            return Err(os(what)(Errno::from_raw(errno)));
        }
    }
    let grant = &answer.grant;
    let right = answer.is_proved(&blob.key, nonce)
        && grant.instance == blob.instance
        && grant.len == blob.len
        && grant.access == blob.access.bits();
    match (right, descriptors.into_inner()) {
        (true, Ok(descriptors)) => Ok((descriptors, grant.offset)),
        _ => fail(
            ErrorKind::NotPermitted,
            format!(
                "who answers at {} is not the exporter, or does not grant what the export says ({} bytes, {:?})",
                blob.address, blob.len, blob.access
            ),
        ),
    }
}

fn nonsense<T>(blob: &Blob) -> Result<T> {
    fail(
        ErrorKind::NotPermitted,
        format!(
            "who answers at {} is no exporter of software devices, or this process has no descriptors left",
            blob.address
        ),
    )
}

fn version<T>(theirs: u16) -> Result<T> {
    fail(
        ErrorKind::UnsupportedVersion,
        format!(
            "the exporter speaks version {theirs}, and this library version {VERSION}: use one release on both sides"
        ),
    )
}

#[cfg(test)]
mod tests;
