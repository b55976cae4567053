//! Imported memory, and the words that show whether it is still exported.
#![expect(unsafe_code, reason = "Segments carry it as an address")]

use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use nix::errno::Errno;

use super::super::control::{Word, Words};
use super::super::current;
use super::super::export::{Memory, MemoryInfo};
use super::super::memory::{Mapping, received};
use super::super::peer::Peer;
use super::super::protocol::{PAYLOAD, Ticket, words_of};
use super::super::service::Service;
use super::connect::Granted;
use crate::device::{ImportOrigin, Imported};
use crate::error::{Error, ErrorKind, JobError, Result};

/// Keeps imported memory alive. The key of its Segments is the address of this value.
#[repr(align(8))]
pub(in super::super::super) struct Import {
    word: Word,
    generation: u32,
    peer: Arc<Peer>,
    /// The instance of the exporter's fabric.
    instance: [u64; 2],
    /// The mapping of the memory; `None` for memory of this process.
    _memory: Option<Mapping>,
}

impl Import {
    /// Returns `None` for a slot that no control page has.
    fn new(peer: Arc<Peer>, ticket: &Ticket, memory: Option<Mapping>) -> Option<Arc<Import>> {
        Some(Arc::new(Import {
            word: peer.words().word(ticket.slot)?,
            generation: ticket.generation,
            peer,
            instance: words_of(&ticket.instance),
            _memory: memory,
        }))
    }

    /// Returns the key of this memory's Segments: a multiple of 8, never 0.
    fn key(self: &Arc<Import>) -> u64 {
        Arc::as_ptr(self).expose_provenance() as u64
    }

    /// Returns the import of a key.
    ///
    /// # Safety
    ///
    /// The key is one of `Imported::key` of this provider, and its `Imported::origin` lives as long
    /// as the reference.
    #[inline]
    pub(in super::super::super) unsafe fn from_key<'a>(key: u64) -> &'a Import {
        let import: *const Import = std::ptr::with_exposed_provenance(key as usize);
        // SAFETY: the key points into an Arc that lives, as the caller promises, and `key` has
        // exposed its address.
        unsafe { &*import }
    }

    /// Returns true if this is the instance of the exporter's fabric, as two words.
    #[inline]
    pub(in super::super::super) fn is_of(&self, instance: &[u64; 2]) -> bool {
        self.instance == *instance
    }

    /// Checks that the memory is still exported. This takes three loads.
    #[inline]
    pub(in super::super::super) fn check(&self) -> Result<(), JobError> {
        // This comes first, so that the error names an exporter that was killed: its page may say
        // anything.
        if self.peer.is_gone() {
            return Err(JobError::exporter_gone());
        }
        if self.word.get() != self.generation {
            return Err(JobError::export_revoked());
        }
        Ok(())
    }
}

impl ImportOrigin for Import {
    fn check(&self) -> Result<(), JobError> {
        Import::check(self)
    }
}

/// Imports memory. Waits until the deadline at most for the exporter, and for the kernel to map the
/// memory.
///
/// # Errors
///
/// - `NotSupported` from another host or network namespace.
/// - `ConnectionReset` if the exporter has ended.
/// - `NotPermitted` if the exporter does not know the export, or sends memory that cannot be
///   trusted.
/// - `TimedOut` if the deadline has passed.
/// - `BadState` in a fork.
/// - `OperatingSystem` if a system call fails.
pub(in super::super::super) fn import(
    ticket: &Ticket,
    info: &MemoryInfo,
    deadline: Instant,
) -> Result<Imported> {
    match ticket.local() {
        Some(service) => own(ticket, info, service?),
        None => other(ticket, info, deadline),
    }
}

/// Imports memory of another process.
pub(in super::super) fn other(
    ticket: &Ticket,
    info: &MemoryInfo,
    deadline: Instant,
) -> Result<Imported> {
    let granted = ticket.connect(&[0; PAYLOAD], deadline)?;
    if granted.payload != info.format() {
        let text = format!(
            "the exporter does not grant what the export says ({} bytes, {:?}): it was forged",
            info.len, info.access
        );
        return Err(Error::new(ErrorKind::NotPermitted, None, text));
    }
    let [memfd, control] = granted.both(ticket)?;
    let memory = received::map(memfd, info.len, info.may_write(), deadline)?;
    let peer = exporter(ticket, &granted, control)?;
    if !granted.stays {
        granted.process.keep_line(granted.line);
    }
    let addr = memory.base();
    finish(ticket, info, peer, addr, Some(memory))
}

/// Returns the exporter with this control page. Maps the page unless it is mapped already.
fn exporter(ticket: &Ticket, granted: &Granted, control: &OwnedFd) -> Result<Arc<Peer>> {
    let wrong = |errno| match errno {
        Errno::EBADMSG => {
            let text = "the exporter sent a control page that is none, or that others could write or shorten";
            Error::new(ErrorKind::NotPermitted, None, text)
        }
        errno => ticket.os("the control page of", errno),
    };
    let page = Words::identify(control).map_err(wrong)?;
    let map = || Words::received(control).map_err(wrong);
    granted.process.exporter(page, map)
}

/// Imports memory of this process, without a socket or a second mapping.
fn own(ticket: &Ticket, info: &MemoryInfo, service: Arc<dyn Service>) -> Result<Imported> {
    let memory = service.as_any().downcast::<Memory>().ok();
    let Some(memory) = memory.filter(|memory| memory.info == *info) else {
        return Err(ticket.unknown());
    };
    let addr = NonNull::new(memory.addr.load(Relaxed));
    // When the last owner is dropped, the export ends as well.
    let (Some(owner), Some(addr)) = (memory.owner.upgrade(), addr) else {
        return Err(ticket.unknown());
    };
    let peer = Peer::own(current::fabric()?, memory.words.clone());
    Ok(finish(ticket, info, peer, addr, None)?.with_owner(owner))
}

fn finish(
    ticket: &Ticket,
    info: &MemoryInfo,
    peer: Arc<Peer>,
    addr: NonNull<u8>,
    memory: Option<Mapping>,
) -> Result<Imported> {
    let import = Import::new(peer, ticket, memory).ok_or_else(|| ticket.unknown())?;
    let len = usize::try_from(info.len).unwrap_or(usize::MAX);
    let key = import.key();
    Ok(Imported::new(
        addr,
        len,
        info.access,
        info.audience,
        key,
        import,
    ))
}
