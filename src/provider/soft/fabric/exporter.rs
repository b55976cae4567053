//! The exporter's side: what is exported, and who gets a descriptor of it.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::AtomicPtr;
use std::sync::{Arc, Mutex};

use nix::errno::Errno;

use super::connection::{After, Then};
use super::current;
use super::memory::sent;
use super::process::{Fabric, Station};
use super::protocol::wire::{self, Bad, Claim, Grant, Request, Status};
use super::protocol::{Blob, Id, SLOTS, place, socket};
use super::table::{Entry, Table};
use crate::device::{Exported, Offer};
use crate::error::{Error, ErrorKind, Result};
use crate::process::Guarded;
use crate::sync::lock;

/// Exports memory, as a device of this port.
///
/// # Errors
///
/// `NotSupported` for memory that is in no memfd, or in huge pages that a peer may write; `NotPermitted` for a part of a memfd, and
/// for one whose seals forbid it; `Full`; `BadState` in a fork of a process that exports; what could not be had.
pub(in super::super) fn export(port: u8, offer: &Offer) -> Result<Exported> {
    let region = offer.region();
    let Some(backing) = offer.backing() else {
        let text = "only memory in a memfd can be exported to another process: take it with MmapBuilder::alloc, or from_memfd";
        return Err(Error::new(ErrorKind::NotSupported, None, text));
    };
    let write = offer.audience().may_write(region.access())
        || offer.audience().may_do_atomics(region.access());
    let fabric = current::fabric()?;
    let station = fabric.open_station()?;
    sent::check_whole(&backing.memfd, backing.offset, region.len())?;
    // Seals stay: last of what may fail, but for a table that is full.
    sent::seal(&backing.memfd, region.access().peer_writable(), write)?;
    // Once now, so that it fails here and not at the importer's.
    sent::reopen(backing.memfd.as_fd(), write)
        .map_err(|error| Error::os(None, "a descriptor of the memfd for the importer", error))?;
    let key = place::random()?;
    let access = offer.audience().part_of(region.access());
    let entry = Entry {
        key,
        memfd: Arc::clone(&backing.memfd),
        write,
        offset: backing.offset,
        len: region.len(),
        audience: offer.audience(),
        access,
        addr: Arc::new(AtomicPtr::new(region.addr().as_ptr())),
        owner: offer.owner().clone(),
    };
    let inserted = lock(&station.table).insert(&station.control, entry);
    let Some((slot, generation)) = inserted else {
        let text = format!("this process exports {SLOTS} Mmaps, as many as it can: drop some");
        return Err(Error::new(ErrorKind::Full, None, text));
    };
    let blob = Blob {
        audience: offer.audience(),
        port,
        access,
        len: region.len() as u64,
        contact: fabric.contact(station, (slot, generation), key),
    };
    let bytes = blob.format();
    Ok(Exported::new(bytes, Box::new(Guard { fabric, slot })))
}

/// Takes an export back when it is dropped.
struct Guard {
    fabric: Arc<Fabric>,
    slot: u32,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.fabric.is_inherited() {
            return;
        }
        let Some(station) = self.fabric.station() else {
            return;
        };
        let removed = lock(&station.table).remove(&station.control, self.slot);
        drop(removed);
    }
}

/// What becomes of a request.
pub(super) enum Verdict {
    /// It is none.
    Silence,
    Refuse(Status),
    Grant(Request, Entry),
}

/// Judges a request, which may be any bytes. `room` is whether one more connection may stay.
pub(super) fn judge(table: &Mutex<Table>, request: &[u8], room: bool) -> Verdict {
    let claim = match Claim::parse(request) {
        Ok(claim) => claim,
        Err(Bad::Version(_)) => return Verdict::Refuse(Status::Version),
        Err(Bad::Malformed) => return Verdict::Silence,
    };
    let slot = (claim.request.slot, claim.request.generation);
    let claimed = lock(table).claimed(slot, |key| claim.is_proved(key));
    match claimed {
        None => Verdict::Refuse(Status::Unknown),
        Some(_) if claim.request.keep && !room => Verdict::Refuse(Status::Failed(libc::EUSERS)),
        Some(entry) => Verdict::Grant(claim.request, entry),
    }
}

/// Answers one request, in the fabric's thread.
pub(super) fn answer(
    instance: &Id,
    station: &Station,
    request: &[u8],
    to: &Guarded,
    room: bool,
) -> After {
    let to = to.as_fd();
    let refuse = |status| {
        let _ = socket::send(to, &wire::refusal(status), &[]);
        After::Refused
    };
    let (request, entry) = match judge(&station.table, request, room) {
        Verdict::Silence => return After::Refused,
        Verdict::Refuse(status) => return refuse(status),
        Verdict::Grant(request, entry) => (request, entry),
    };
    let memfd = match sent::reopen(entry.memfd.as_fd(), entry.write) {
        Ok(memfd) => memfd,
        Err(error) => return refuse(Status::Failed(error.raw_os_error().unwrap_or(0))),
    };
    let grant = Grant {
        access: entry.access.bits(),
        instance: *instance,
        offset: entry.offset,
        len: entry.len as u64,
    };
    let message = grant.format(&entry.key, &request.nonce);
    let descriptors = [memfd.as_raw_fd(), station.control.memfd().as_raw_fd()];
    match socket::send(to, &message, &descriptors) {
        Ok(()) if request.keep => After::Answered(Then::Keep),
        Ok(()) => After::Answered(Then::HangUp),
        // Too many of ours are on their way to importers that do not take them.
        Err(Errno::ETOOMANYREFS) => refuse(Status::Failed(libc::ETOOMANYREFS)),
        Err(_) => After::Refused,
    }
}
