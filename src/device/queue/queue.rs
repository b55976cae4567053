//! The queue of a device, which accepts Jobs and reports Completions.
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

/// The settings of a new [`Queue`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QueueConfig {
    /// The maximum number of Jobs in flight. The index of a Job's Token is less than this. The
    /// crate never submits more, so the queue cannot overrun.
    pub depth: u32,
    /// The index of the device's completion vector that signals the queue: less than
    /// [`Caps::completion_vectors`](crate::device::Caps::completion_vectors), or 0.
    pub completion_vector: u32,
    /// The event handle that the queue signals, unless it has an event descriptor of its own.
    pub signal: Arc<Signal>,
}

impl QueueConfig {
    /// Returns the settings that a WorkQ uses. This is public for tests that drive a provider
    /// without a WorkQ.
    pub fn new(depth: u32, signal: Arc<Signal>) -> QueueConfig {
        QueueConfig {
            depth,
            completion_vector: 0,
            signal,
        }
    }
}

/// The result of [`Queue::arm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// The queue will signal the next completion.
    Armed,
    /// The queue is armed, but completions that it did not signal may wait already: the caller
    /// reaps them.
    Ready,
}

/// A device's queue for one WorkQ. It accepts [copies](crate::device::Job::Copy),
/// [hashes](crate::device::Job::Sha), [CRCs](crate::device::Job::Crc) and [jobs of the provider's
/// own kinds](crate::device::Job::Accel), as far as the device has capabilities for them.
///
/// # Safety
///
/// Implementors fulfil the duties 1 to 7 of the [contract](crate::device::contract). The chapter on
/// [writing a provider](crate::guide::provider) builds an implementation.
pub unsafe trait Queue: Submit {
    /// Makes an Endpoint, in the state Init, whose Completions come out of this queue.
    ///
    /// The crate calls this only on devices that have [`RdmaCaps`](crate::device::RdmaCaps), with a
    /// config within those limits.
    ///
    /// # Errors
    ///
    /// `NotSupported` if the device has no endpoints; other kinds name the resource that could not
    /// be obtained.
    fn open_endpoint(&self, _config: EndpointConfig) -> SetUp<Arc<dyn Endpoint>> {
        let text = "this device has no endpoints";
        Err(Error::new(ErrorKind::NotSupported, None, text))
    }

    /// Opens a port for a sync event of this device. The event's Jobs and its waits complete on
    /// this queue. At most `_waits` waits are in flight at once; `_waits` is less than 2^20.
    ///
    /// The crate calls this only on devices that have
    /// [`SyncEventCaps`](crate::device::SyncEventCaps), and once for each event. `_waits` is at
    /// most [`SyncEventCaps::max_waits`](crate::device::SyncEventCaps::max_waits).
    ///
    /// # Errors
    ///
    /// `NotSupported` if the device has no sync events; other kinds name the resource that could
    /// not be obtained.
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
    /// Operations in busy mode call this up to 32 times in each poll. Returning `false` should
    /// therefore cost little more than reading the words that the device writes: about 50
    /// instructions, and no system call. It must not wait for a lock that is held for long. The
    /// queue may keep a completion that it finds for the next `reap` or `arm`; a caller that gets
    /// `true` calls one of these. The result is a hint: while another thread calls the queue, it
    /// may be either value.
    fn ready(&self) -> bool {
        true
    }

    /// Returns true if operations in busy mode shall call [`reap_within`](Queue::reap_within)
    /// without calling `ready` first, as for a queue whose `ready` takes a lock. The default is
    /// `false`.
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
    /// Only one thread at a time calls `reap` or `reap_within`.
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
    /// completion, including one that `ready` has kept, unless that completion was signalled. After
    /// `Armed` the caller sleeps without polling again.
    #[doc(alias = "doca_workq_event_handle_arm")]
    #[doc(alias = "ibv_req_notify_cq")]
    fn arm(&self) -> Armed;

    /// Returns how many Jobs `try_inline` has finished, for `WorkQ::stats`. The crate does not
    /// count them, since counting would slow each Job down. A device that counts none returns 0.
    fn inline_jobs(&self) -> u64 {
        0
    }

    /// Returns the queue's own event descriptor, if it does not signal by the [`Signal`] alone. The
    /// crate asks for it once the queue is open, and again after an Endpoint or a port of a sync
    /// event was opened.
    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Reads the queue's own event descriptor until it is empty (a completion channel must be read
    /// and acknowledged). The crate calls this at every event, before `arm`; several threads may do
    /// so at once.
    #[doc(alias = "doca_workq_event_handle_clear")]
    #[doc(alias = "ibv_get_cq_event")]
    fn clear(&self) {}

    /// Ends the queue, since the WorkQ was dropped; the caller holds the queue during the call. The
    /// queue drops `keep` once nothing is in flight: now, or after the device's last Job. If Jobs
    /// cannot be quiesced, `keep` is never dropped. `outstanding` is the number of Jobs that were
    /// accepted and not reaped.
    ///
    /// # Safety
    ///
    /// `outstanding` is exact, `keep` keeps the memory of those Jobs alive, and no thread submits
    /// or reaps any more.
    unsafe fn retire(&self, keep: KeepAlive, outstanding: usize);
}
