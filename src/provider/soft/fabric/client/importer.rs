//! The importer's side: what is made of an exporter's answer.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use nix::errno::Errno;

use super::super::control::Words;
use super::super::current;
use super::super::memory::{Mapping, received};
use super::super::peer::Peer;
use super::super::process::Fabric;
use super::super::protocol::wire::{Answer, Request, Status};
use super::super::protocol::{Blob, DESCRIPTORS, Id};
use super::import::Import;
use super::talk::{Descriptors, Other, Role, Talk};
use crate::device::Imported;
use crate::error::{Error, ErrorKind, Result};
use crate::process::Guarded;
use crate::sync::lock;

const EXPORTER: Role = Role {
    who: "exporter",
    what: "memory",
};

/// Imports memory. It waits for the exporter, and for the kernel that maps it, until the deadline.
///
/// # Errors
///
/// `NotSupported` from another host or network namespace; `ConnectionReset` if the exporter has ended; `NotPermitted` if it does
/// not know the export, or sends what is not to be trusted; `TimedOut`; `BadState` in a fork; what could not be had.
pub(in super::super::super) fn import(blob: &Blob, deadline: Instant) -> Result<Imported> {
    let fabric = current::fabric()?;
    match blob.instance == fabric.instance {
        true => own(fabric, blob),
        false => other(&fabric, blob, deadline),
    }
}

/// Who exported it.
pub(in super::super) fn exporter(blob: &Blob) -> Other<'_> {
    Other {
        role: &EXPORTER,
        contact: &blob.contact,
    }
}

/// Memory of another process.
fn other(fabric: &Arc<Fabric>, blob: &Blob, deadline: Instant) -> Result<Imported> {
    let exporter = exporter(blob);
    let (([memfd, control], offset), talk) = exporter.ask(
        deadline,
        |talk| request(blob, talk).format(&blob.key),
        |talk, answer, with| granted(blob, &talk.nonce, answer, with),
    )?;
    let write = blob.audience.may_write(blob.access) || blob.audience.may_do_atomics(blob.access);
    let memory = received::map(&memfd, offset, blob.len, write, deadline)?;
    let page = Words::identify(&control).map_err(|errno| no_page(exporter, errno))?;
    let process = exporter.process(fabric, talk)?;
    let map = || Words::received(&control).map_err(|errno| no_page(exporter, errno));
    let peer = process.exporter(page, map)?;
    let addr = memory.base();
    finish(blob, peer, addr, Some(memory))
}

fn request(blob: &Blob, talk: &Talk) -> Request {
    Request {
        slot: blob.slot,
        generation: blob.generation,
        nonce: talk.nonce,
        keep: talk.pidfd.is_none(),
    }
}

fn no_page(exporter: Other<'_>, errno: Errno) -> Error {
    if errno == Errno::EBADMSG {
        let text =
            "the exporter sent a control page that is none, or that others could write or shorten";
        return Error::new(ErrorKind::NotPermitted, None, text);
    }
    exporter.os("the control page of", errno)
}

fn finish(
    blob: &Blob,
    peer: Arc<Peer>,
    addr: NonNull<u8>,
    memory: Option<Mapping>,
) -> Result<Imported> {
    let Some(import) = Import::new(peer, &blob.contact, memory) else {
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
    let entry = table.claimed((blob.slot, blob.generation), |key| *key == blob.key);
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
    let peer = Peer::own(Arc::clone(&fabric) as _, words);
    Ok(finish(blob, peer, addr, None)?.with_owner(owner))
}

fn unknown<T>(blob: &Blob) -> Result<T> {
    exporter(blob).fail(
        ErrorKind::NotPermitted,
        format!(
            "the exporter does not know this export (slot {}, generation {}): it was taken back, or the bytes are forged: export the memory \
             anew and hand over what that gives",
            blob.slot, blob.generation
        ),
    )
}

/// What an answer grants, which may be any bytes with any descriptors: the memory and the control page, and where in the memfd
/// the memory begins.
///
/// # Errors
///
/// As for [`import`].
pub(in super::super) fn granted(
    blob: &Blob,
    nonce: &Id,
    answer: &[u8],
    with: Descriptors,
) -> Result<([Guarded; DESCRIPTORS], u64)> {
    let exporter = exporter(blob);
    let answer = match Answer::parse(answer) {
        Ok(answer) => answer,
        Err(bad) => return exporter.bad(bad),
    };
    match answer.status {
        Status::Granted => {}
        Status::Unknown => return unknown(blob),
        Status::Failed(errno) => {
            let what = "the exporter could not hand over the memory";
            return Err(Error::os(None, what, Errno::from_raw(errno).into()));
        }
        // Its version is ours, and no importer is unwelcome.
        Status::Version | Status::Busy | Status::Unwanted => return exporter.nonsense(),
    }
    let grant = &answer.grant;
    let right = answer.is_proved(&blob.key, nonce)
        && grant.instance == blob.instance
        && grant.len == blob.len
        && grant.access == blob.access.bits();
    match (right, with.into_inner()) {
        (true, Ok(descriptors)) => Ok((descriptors, grant.offset)),
        _ => exporter.fail(
            ErrorKind::NotPermitted,
            format!(
                "who answers at {} is not the exporter, or does not grant what the export says ({} bytes, {:?})",
                blob.address, blob.len, blob.access
            ),
        ),
    }
}

#[cfg(test)]
pub(in super::super) mod tests;
