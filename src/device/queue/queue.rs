//! Where Jobs go in and Completions come out.
#![expect(
    unsafe_code,
    reason = "who implements Queue touches memory that the crate lends it"
)]

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::endpoint::{Endpoint, EndpointConfig};
use super::event::{EventCounter, EventPort};
use super::signal::Signal;
use super::submit::{KeepAlive, Submit};
use crate::device::job::Completion;
use crate::error::{Error, ErrorKind, Result as SetUp};

/// What a queue is built for.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QueueConfig {
    /// The most Jobs in flight; Tokens have a smaller index. It is a promise: overrun cannot
    /// happen.
    pub depth: u32,
    /// Which completion vector of the device signals the queue: less than
    /// [`Caps::completion_vectors`](crate::device::Caps::completion_vectors), or 0.
    pub completion_vector: u32,
    /// The event handle that the queue signals, unless it has an event descriptor of its own.
    pub signal: Arc<Signal>,
}

impl QueueConfig {
    /// Returns what a WorkQ asks for; public so that a provider can be driven without one, in its
    /// tests.
    pub fn new(depth: u32, signal: Arc<Signal>) -> QueueConfig {
        QueueConfig {
            depth,
            completion_vector: 0,
            signal,
        }
    }
}

/// What `arm` found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// The next completion will be signaled.
    Armed,
    /// The queue is armed, but completions that were not signaled may wait already: the caller
    /// reaps them.
    Ready,
}

/// One WorkQ's half of a device. It takes [copies](crate::device::Job::Copy),
/// [hashes](crate::device::Job::Sha) and [jobs of the provider's own
/// kinds](crate::device::Job::Accel), as far as the device has capabilities for them.
///
/// # Safety
///
/// Implementors keep the duties 1 to 7 of the [contract](crate::device::contract), which has a
/// guide as well.
pub unsafe trait Queue: Submit {
    /// Makes an Endpoint, in the state Init, whose Completions come out of this queue.
    ///
    /// The crate calls it on devices that have [`RdmaCaps`](crate::device::RdmaCaps), within its
    /// limits.
    ///
    /// # Errors
    ///
    /// `NotSupported` if there are none; what could not be had.
    fn open_endpoint(&self, _config: EndpointConfig) -> SetUp<Arc<dyn Endpoint>> {
        let text = "this device has no endpoints";
        Err(Error::new(ErrorKind::NotSupported, None, text))
    }

    /// Opens a port for a sync event of this device. The event's Jobs, and at most `_waits` waits
    /// at once, less than 2^20, complete on this queue.
    ///
    /// The crate calls it on devices that have [`SyncEventCaps`](crate::device::SyncEventCaps),
    /// within their limits, and once for each event.
    ///
    /// # Errors
    ///
    /// `NotSupported` if there are none; what could not be had.
    fn open_event_port(
        &self,
        _event: &Arc<dyn EventCounter>,
        _waits: u32,
    ) -> SetUp<Arc<dyn EventPort>> {
        let text = "this device has no sync events";
        Err(Error::new(ErrorKind::NotSupported, None, text))
    }

    /// Returns true if `reap` would find a completion. A queue that does not know returns `true`.
    ///
    /// Operations in busy mode call it up to 32 times in each poll, so an answer of `false` should
    /// cost little more than reading the words that the device writes: about 50 instructions, and
    /// no system call. It waits for no lock that is held for long. It may keep what it finds for
    /// the next `reap` or `arm`, one of which a caller that gets `true` calls. It is a hint: while
    /// another thread calls the queue it may return either.
    fn ready(&self) -> bool {
        true
    }

    /// Returns whether operations in busy mode ask [`reap_within`](Queue::reap_within) at once, and
    /// not `ready` before: for a queue whose `ready` takes a lock. The default is `false`.
    fn polls_in_reap(&self) -> bool {
        false
    }

    /// Calls [`ready`](Queue::ready) up to `looks` times, until it returns `true`.
    fn ready_within(&self, looks: usize) -> bool {
        (0..looks).any(|_| self.ready())
    }

    /// Fills `out` from the front with the Completions of finished Jobs, oldest first, and returns
    /// their number.
    ///
    /// # Safety
    ///
    /// One caller at a time.
    #[doc(alias = "doca_workq_progress_retrieve")]
    #[doc(alias = "ibv_poll_cq")]
    unsafe fn reap(&self, out: &mut [Completion]) -> usize;

    /// Does what [`reap`](Queue::reap) does, and may poll up to `looks` times until it finds a
    /// completion. The default polls once.
    ///
    /// # Safety
    ///
    /// As for [`reap`](Queue::reap).
    unsafe fn reap_within(&self, out: &mut [Completion], _looks: usize) -> usize {
        // SAFETY: as the caller promises.
        unsafe { self.reap(out) }
    }

    /// Requests one signal at the next completion. Returns `Ready` if `reap` would find a
    /// completion, including one that `ready` has kept, unless that was signaled. On `Armed` the
    /// caller sleeps without another poll.
    #[doc(alias = "doca_workq_event_handle_arm")]
    #[doc(alias = "ibv_req_notify_cq")]
    fn arm(&self) -> Armed;

    /// Returns how many Jobs `try_inline` has finished, for `WorkQ::stats`. The crate does not
    /// count them, since that would cost each of them something. A device that counts none returns
    /// 0.
    fn inline_jobs(&self) -> u64 {
        0
    }

    /// Returns the queue's own event descriptor, if it does not signal by the [`Signal`] alone. The
    /// crate asks for it once the queue is open, and again after an Endpoint or a port of a sync
    /// event was opened.
    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Reads the queue's own event descriptor until it has nothing more (a completion channel must
    /// be read and acknowledged). The crate calls this at every event, before `arm`; several
    /// threads may do so at once.
    #[doc(alias = "doca_workq_event_handle_clear")]
    #[doc(alias = "ibv_get_cq_event")]
    fn clear(&self) {}

    /// The WorkQ is gone; the caller holds the queue during the call. `keep` is dropped once
    /// nothing is in flight: now, or by the device after its last Job. What cannot be quiesced is
    /// never dropped. `outstanding` Jobs were accepted and not reaped.
    ///
    /// # Safety
    ///
    /// `outstanding` is exact, `keep` keeps the memory of those Jobs, and no thread submits or
    /// reaps any more.
    unsafe fn retire(&self, keep: KeepAlive, outstanding: usize);
}
