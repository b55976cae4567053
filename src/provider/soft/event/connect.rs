//! How an importer connects to the owner of a sync event.
#![expect(unsafe_code, reason = "promises where a counter lies")]

use std::any::Any;
use std::sync::{Arc, Weak};
use std::time::Instant;

use super::super::fabric::{
    self, Arena, Client, Ended, Grant, PAYLOAD, Process, Refusal, Service, Ticket,
};
use super::counter::{Bell, Export, Peer, SoftEvent};
use super::payload::ConnectReply;
use super::words::{NO_SLEEPER, PAGE, Side, Words};
use crate::device::EventBacking;
use crate::error::{Error, ErrorKind, Result};
use crate::process::{Guarded, hang_up};
use crate::sync::atomic::Ordering::SeqCst;
use crate::sync::log_later;

fn fail<T>(kind: ErrorKind, text: &'static str) -> Result<T> {
    Err(Error::new(kind, None, text))
}

fn busy<T>() -> Result<T> {
    let text = "another importer has it: it must drop it first";
    fail(ErrorKind::InUse, text)
}

/// Imports the event of a ticket. The call may block until the deadline.
///
/// # Errors
///
/// - `InUse` if another importer has the event.
/// - `ConnectionAborted` if its owner has stopped or dropped it.
/// - `ConnectionReset` if the owner's process has ended.
/// - `NotSupported` from another host or network namespace.
/// - `NotPermitted` if the reply is not one of a sync event.
/// - `TimedOut` if the deadline has passed.
/// - `OperatingSystem` if a system call fails.
pub(in super::super) fn import(ticket: &Ticket, deadline: Instant) -> Result<Arc<SoftEvent>> {
    match ticket.local() {
        Some(service) => match service?.as_any().downcast::<SoftEvent>() {
            Ok(owner) => owner.admit(),
            Err(_) => fail(
                ErrorKind::InvalidValue,
                "the blob is no sync event's: it was forged",
            ),
        },
        None => connect(ticket, deadline),
    }
}

/// Imports an event of another process.
fn connect(ticket: &Ticket, deadline: Instant) -> Result<Arc<SoftEvent>> {
    let granted = ticket.connect(&[0; PAYLOAD], deadline)?;
    let Some(reply) = ConnectReply::parse(&granted.payload) else {
        let text = "the exporter answers what no sync event does";
        return fail(ErrorKind::NotPermitted, text);
    };
    let [page, memory] = granted.both(ticket)?;
    let words = Words::shared(Arena::received(page, PAGE)?);
    let words = match reply.len.get() {
        0 => words,
        len => {
            let memory = fabric::map_shared(memory, len, deadline)?;
            let offset = usize::try_from(reply.offset.get()).unwrap_or(usize::MAX);
            // SAFETY: `offset` is at least eight bytes before the end of the mapping
            // (`ConnectReply::parse`), whose length `map_shared` checked.
            let at = unsafe { memory.base().add(offset) };
            // SAFETY: the eight bytes are in the mapping, which is kept, and aligned: the mapping
            // begins at a page, and the offset is a multiple of 8. No other code of this process
            // reaches the mapping.
            unsafe { words.with_counter(at, Arc::new(memory)) }
        }
    };
    let (process, socket) = (granted.process, Arc::new(granted.line.into_socket()));
    let line = process.at_the_end_of(&socket);
    let line = line.map_err(|errno| Error::os(None, "epoll_ctl", errno.into()))?;
    let peer = Peer {
        bell: Some(Bell::Socket(socket)),
        process: Some(Arc::clone(&process)),
        line: Some(Arc::clone(&line)),
        ..Peer::default()
    };
    let (words, number) = (Arc::new(words), reply.number.get());
    let event = SoftEvent::side(words, Side::Importer, None, peer, number);
    watch(&event, &process);
    watch(&event, &line);
    Ok(event)
}

/// Returns a random number for an import; never 0.
fn number() -> Result<u64> {
    let id = fabric::random()?;
    let (number, _) = id.split_first_chunk().expect("eight of sixteen bytes");
    Ok(u64::from_le_bytes(*number).max(1))
}

/// Has the event notified when the other side's process or connection ends.
fn watch(event: &Arc<SoftEvent>, process: &Process) {
    process.on_end(Arc::downgrade(event) as Weak<dyn Ended>);
}

/// Moves the counter into the application's memory.
fn backed(words: Words, backing: &EventBacking) -> Words {
    // SAFETY: eight aligned bytes begin there, within the region, which is kept alive
    // (`EventBacking::new`).
    let at = unsafe { backing.region().addr().add(backing.offset()) };
    // SAFETY: as above. This process accesses these bytes only by atomics and the opaque routine.
    unsafe { words.with_counter(at, Arc::clone(backing.keep())) }
}

impl SoftEvent {
    /// Returns an event that this process alone can use.
    pub(in super::super) fn private() -> Arc<SoftEvent> {
        SoftEvent::new(Words::own(), None)
    }

    /// Returns an event that a device of this port can export.
    pub(in super::super) fn sharable(
        backing: Option<EventBacking>,
        port: u8,
    ) -> Result<Arc<SoftEvent>> {
        let (page, mapping) = Arena::create(PAGE)?;
        let words = Words::shared(mapping);
        let mut export = Export {
            page,
            backing: None,
            port,
        };
        // New memory has zeros, which would mean that both sides sleep.
        for side in [Side::Owner, Side::Importer] {
            words.wanted(side).store(NO_SLEEPER, SeqCst);
        }
        let Some(backing) = backing else {
            return Ok(SoftEvent::new(words, Some(export)));
        };
        let Some(memfd) = backing.memfd().cloned() else {
            let text = "memory in a memfd alone can be shared with another process: take it with MmapBuilder::alloc, or from_memfd";
            return Err(Error::new(ErrorKind::NotSupported, None, text));
        };
        export.backing = Some((memfd, backing.region().len(), backing.offset()));
        Ok(SoftEvent::new(backed(words, &backing), Some(export)))
    }

    /// Admits an importer of this process.
    pub(super) fn admit(self: &Arc<Self>) -> Result<Arc<SoftEvent>> {
        let number = number()?;
        let mut peer = self.peer();
        if self.is_stopped() {
            return fail(ErrorKind::ConnectionAborted, "its owner has stopped it");
        }
        if !self.is_free(&peer) {
            return busy();
        }
        self.begin_anew(number);
        let theirs = Peer {
            bell: Some(Bell::Local(Arc::downgrade(self))),
            ..Peer::default()
        };
        let words = Arc::clone(&self.words);
        let event = SoftEvent::side(words, Side::Importer, None, theirs, number);
        (peer.process, peer.line) = (None, None);
        peer.bell = Some(Bell::Local(Arc::downgrade(&event)));
        Ok(event)
    }

    /// Resets all words that a former importer may have written. The caller holds the lock.
    fn begin_anew(&self, number: u64) {
        self.set_number(number);
        for side in [Side::Owner, Side::Importer] {
            self.words.wanted(side).store(NO_SLEEPER, SeqCst);
            self.words.closed(side).store(0, SeqCst);
        }
        self.gone.store(false, SeqCst);
        // A waiter of this side then polls, and stores its word again.
        self.raise();
    }

    /// Stores the socket of the importer with this number, which now has the other end of the
    /// socket.
    fn hang_bell(&self, number: u64, socket: Guarded) {
        let mut peer = self.peer();
        if self.is_stopped() {
            // The importer sees in the page that the event was stopped.
            return;
        }
        if !self.is_import(number) {
            // The importer took so long to read its reply that another importer has replaced it.
            return hang_up(&socket);
        }
        let socket = Arc::new(socket);
        if let Some(port) = self.port.get().and_then(Weak::upgrade) {
            port.listen(&socket);
        }
        let line = peer.process.as_ref();
        match line
            .map(|process| process.at_the_end_of(&socket))
            .transpose()
        {
            Ok(line) => {
                // This comes before the line is stored: `ended` waits for the lock, and then sees
                // the line.
                if let Some(line) = &line {
                    line.on_end(self.weak() as Weak<dyn Ended>);
                }
                peer.line = line;
            }
            Err(errno) => {
                let text = "the end of an importer of a sync event may not be heard";
                log_later(move || tracing::error!(%errno, "{text}"));
            }
        }
        peer.bell = Some(Bell::Socket(socket));
        drop(peer);
        // The importer may sleep already, without having been woken by earlier changes. It polls
        // the counter itself: this thread must not, since the importer may punch holes into that
        // memory, so that a load takes arbitrarily long.
        self.signal_peer();
    }
}

impl Service for SoftEvent {
    fn accept(&self, client: &Client<'_>) -> Result<Grant, Refusal> {
        let Some(export) = self
            .export
            .as_ref()
            .filter(|_| client.payload == [0; PAYLOAD])
        else {
            return Err(Refusal::UNEXPECTED);
        };
        let process = client.process()?;
        let (memory, len, offset) = match &export.backing {
            None => (Arc::clone(&export.page), 0, 0),
            Some((backing, len, offset)) => (Arc::new(fabric::hand_out(backing)?), *len, *offset),
        };
        let number = number()?;
        let mut peer = self.peer();
        if self.is_stopped() {
            return Err(Refusal::UNKNOWN);
        }
        if !self.is_free(&peer) {
            return Err(Refusal::BUSY);
        }
        self.begin_anew(number);
        (peer.bell, peer.line) = (None, None);
        peer.process = Some(Arc::clone(&process));
        drop(peer);
        let this = self.weak();
        if let Some(this) = this.upgrade() {
            watch(&this, &process);
        }
        let keep = move |socket| {
            if let Some(this) = this.upgrade() {
                this.hang_bell(number, socket);
            }
        };
        let reply = ConnectReply {
            number: number.into(),
            len: (len as u64).into(),
            offset: (offset as u64).into(),
        };
        Ok(Grant {
            payload: fabric::payload(&reply),
            descriptors: Some([Arc::clone(&export.page), memory]),
            keep: Some(Box::new(keep)),
            // An importer that never gets its socket has not imported the event, so a reply that is
            // not sent needs no call.
            unsent: None,
        })
    }

    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}
