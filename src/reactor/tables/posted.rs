//! The operations that are posted for the caller's own loop and take no slot: receives, waits, and
//! runs of graphs.
//!
//! A job that is posted stays in its slot until `WorkQ::collect` hands it out (`own_loop.rs`). A
//! receive and a wait have entries in tables of their own; a run has none. Each receive, wait and
//! run is also an *entry* of [`Entries`], which `collect` polls: `entries.rs` says how.
//!
//! The entry of a receive or a wait keeps its table, but not its context. So the context can be
//! dropped while a receive or a wait is posted. The entry then completes with an error. A run keeps
//! its instance and with it the WorkQ, until the run is handed out.

use std::any::Any;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use super::entries::Entries;
use super::received::{Received, RecvBuf};
use super::receives::{Receipt, RecvTable};
use super::waits::{Ticket, WaitTable};
use crate::device::EventPort;
use crate::error::JobError;
use crate::reactor::events::Events;
use crate::reactor::slots::{Outcome, ResultKind};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::seq_cst_order;

/// A run of a graph that was posted for the caller's own loop. The reactor does not know the type
/// of the run's result.
pub(crate) trait PostedRun: Send {
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Box<dyn Any + Send>>;
}

/// The result of an operation that was posted for the caller's own loop.
pub(crate) enum End {
    /// A job, with the meaning of the number in its outcome.
    Job(ResultKind, Outcome),
    Received(Result<Received, JobError>),
    Waited(Outcome),
    Run(Box<dyn Any + Send>),
}

/// A posted operation without a slot, which the caller's own loop polls until it has completed.
pub(in crate::reactor) enum PostedEntry {
    Recv(PostedRecv),
    Wait(PostedWait),
    Run(Pin<Box<dyn PostedRun>>),
}

/// A receive that was posted for the caller's own loop.
pub(in crate::reactor) struct PostedRecv {
    pub(in crate::reactor) receives: Arc<RecvTable>,
    pub(in crate::reactor) receipt: Receipt,
    /// The memory to which the message must be copied: set if the receive was adopted, and its
    /// message comes into other memory.
    pub(in crate::reactor) to: Option<RecvBuf>,
}

/// A wait that was posted for the caller's own loop.
pub(in crate::reactor) struct PostedWait {
    pub(in crate::reactor) waits: Arc<WaitTable>,
    pub(in crate::reactor) port: Arc<dyn EventPort>,
    pub(in crate::reactor) ticket: Ticket,
}

/// The state of the caller's own loop: whether it has armed, and what it has posted without a slot.
pub(in crate::reactor) struct OwnLoop {
    /// The loop has armed: it wants an event once an operation that it has posted completes.
    armed: AtomicBool,
    /// Made when the first entry is posted.
    entries: OnceLock<Entries<PostedEntry>>,
}

impl OwnLoop {
    pub(in crate::reactor) fn new() -> OwnLoop {
        OwnLoop {
            armed: AtomicBool::new(false),
            entries: OnceLock::new(),
        }
    }

    /// Notes that the loop wants an event. The caller must check afterwards whether something has
    /// completed.
    pub(in crate::reactor) fn mark(&self) {
        self.armed.store(true, Ordering::SeqCst);
        seq_cst_order();
    }

    /// Notes that the loop is about to poll by itself. Returns true if the loop had armed.
    pub(in crate::reactor) fn unmark(&self) -> bool {
        self.armed.swap(false, Ordering::SeqCst)
    }

    /// Makes the event handle readable if the loop has armed. Called after an operation has
    /// completed.
    pub(in crate::reactor) fn fire(&self, events: &Events) {
        if self.armed.load(Ordering::SeqCst) && self.armed.swap(false, Ordering::SeqCst) {
            events.raise();
        }
    }

    /// Returns the entries, if anything was ever posted.
    pub(in crate::reactor) fn entries(&self) -> Option<&Entries<PostedEntry>> {
        self.entries.get()
    }

    /// Returns the entries, and makes them at the first call.
    pub(in crate::reactor) fn entries_or_new(&self) -> &Entries<PostedEntry> {
        self.entries.get_or_init(Entries::new)
    }
}
