//! What is posted to a loop of the caller's own and takes no Slot: receives, waits, and runs of
//! graphs.
//!
//! A job that is posted lies in its Slot until `WorkQ::collect` hands it out (`own_loop.rs`). A
//! receive and a wait have places in tables of their own, and a run has none. Each of them is an
//! *entry* ([`Entries`]), which `collect` polls: its file says how.
//!
//! The entry of a receive or a wait keeps its table, and not its context. So the context can go
//! while something is posted, and its connection ends; the entry has completed then, with an error.
//! A run has its instance, and that has the WorkQ, which is kept until the run is handed out.

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

/// A run of a graph that was posted. The reactor does not know what it answers.
pub(crate) trait PostedRun: Send {
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Box<dyn Any + Send>>;
}

/// How something ended that was posted.
pub(crate) enum End {
    /// A job: the meaning of the number that it ends with.
    Job(ResultKind, Outcome),
    Received(Result<Received, JobError>),
    Waited(Outcome),
    Run(Box<dyn Any + Send>),
}

/// What is polled until it has completed.
pub(in crate::reactor) enum PostedEntry {
    Recv(PostedRecv),
    Wait(PostedWait),
    Run(Pin<Box<dyn PostedRun>>),
}

/// A receive that was posted for a loop of the caller's own.
pub(in crate::reactor) struct PostedRecv {
    pub(in crate::reactor) receives: Arc<RecvTable>,
    pub(in crate::reactor) receipt: Receipt,
    /// Where its message shall go, if it was taken over from another one, and has another
    /// destination.
    pub(in crate::reactor) to: Option<RecvBuf>,
}

/// A wait that was posted for a loop of the caller's own.
pub(in crate::reactor) struct PostedWait {
    pub(in crate::reactor) waits: Arc<WaitTable>,
    pub(in crate::reactor) port: Arc<dyn EventPort>,
    pub(in crate::reactor) ticket: Ticket,
}

/// What a loop of the caller's own has armed, and posted without a Slot.
pub(in crate::reactor) struct OwnLoop {
    /// It wants an event at the next end of what it has posted.
    armed: AtomicBool,
    /// Made when the first is posted.
    entries: OnceLock<Entries<PostedEntry>>,
}

impl OwnLoop {
    pub(in crate::reactor) fn new() -> OwnLoop {
        OwnLoop {
            armed: AtomicBool::new(false),
            entries: OnceLock::new(),
        }
    }

    /// The loop wants an event. Look afterwards whether there is something.
    pub(in crate::reactor) fn mark(&self) {
        self.armed.store(true, Ordering::SeqCst);
        seq_cst_order();
    }

    /// The loop is about to look itself. Returns whether it wanted an event.
    pub(in crate::reactor) fn unmark(&self) -> bool {
        self.armed.swap(false, Ordering::SeqCst)
    }

    /// Something has completed: makes the event handle readable if the loop has armed.
    pub(in crate::reactor) fn fire(&self, events: &Events) {
        if self.armed.load(Ordering::SeqCst) && self.armed.swap(false, Ordering::SeqCst) {
            events.ring();
        }
    }

    /// Returns what was posted, if anything ever was.
    pub(in crate::reactor) fn entries(&self) -> Option<&Entries<PostedEntry>> {
        self.entries.get()
    }

    /// Returns where something is posted.
    pub(in crate::reactor) fn entries_or_new(&self) -> &Entries<PostedEntry> {
        self.entries.get_or_init(Entries::new)
    }
}
