//! A completion queue and its channel: one of each per WorkQ and device.
#![expect(unsafe_code, reason = "calls libibverbs")]

use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use super::super::adapter::{Context, check, check_ptr, set_nonblocking};
use super::super::ffi::*;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{lock, log_later};

pub(in super::super) struct Cq {
    pub(in super::super) context: Arc<Context>,
    channel: CompChannel,
    raw: NonNull<ibv_cq>,
    /// The number of requested notifications whose events were not read yet.
    requested: AtomicU32,
    id: u64,
    /// True if the device has reported that the queue has failed, for example by an overrun.
    broken: AtomicBool,
    /// The number of completions that may wait at once, and the capacity of the queue.
    promised: Mutex<(u32, u32)>,
}

/// A completion channel. It is destroyed after the completion queue that signals it.
struct CompChannel {
    context: Arc<Context>,
    raw: NonNull<ibv_comp_channel>,
}

// SAFETY: libibverbs may be called from any thread on any object; these are destroyed once.
unsafe impl Send for Cq {}
// SAFETY: as above.
unsafe impl Sync for Cq {}

/// Capacity for contexts that are attached later, since not every adapter can enlarge a queue.
const HEADROOM: u32 = 1024;
/// The number of requested notifications after which events are read. A thread that only polls
/// never clears the events, and they would accumulate.
const UNREAD: u32 = 64;

impl Cq {
    /// Creates a queue with a capacity of `completions`. Its completions cause the interrupt number
    /// `vector`.
    pub(in super::super) fn create(
        context: &Arc<Context>,
        completions: u32,
        vector: u32,
    ) -> Result<Cq> {
        let table = &context.table;
        // SAFETY: the device is open.
        let raw = unsafe { (table.create_comp_channel)(context.raw()) };
        let channel = CompChannel {
            context: Arc::clone(context),
            raw: check_ptr("ibv_create_comp_channel", raw)?,
        };
        set_nonblocking(channel.fd())?;
        let most = context.traits.max_cqe.max(completions);
        let size = completions.saturating_add(HEADROOM).min(most);
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, SeqCst);
        let (device, ring) = (context.raw(), channel.raw.as_ptr());
        let name = ptr::without_provenance_mut(id as usize);
        // SAFETY: the device is open, and the channel goes after the queue.
        let raw = unsafe { (table.create_cq)(device, size as i32, name, ring, vector as i32) };
        let raw = check_ptr("ibv_create_cq", raw)?;
        // SAFETY: the queue was just made. Most adapters round its size up.
        let size = size.max(unsafe { (*raw.as_ptr()).cqe }.max(0) as u32);
        Ok(Cq {
            context: Arc::clone(context),
            channel,
            raw,
            requested: AtomicU32::new(0),
            id,
            broken: AtomicBool::new(false),
            promised: Mutex::new((completions, size)),
        })
    }

    pub(in super::super) fn raw(&self) -> *mut ibv_cq {
        self.raw.as_ptr()
    }

    /// Returns the id that the device's events about the queue carry.
    pub(in super::super) fn id(&self) -> u64 {
        self.id
    }

    pub(in super::super) fn is_broken(&self) -> bool {
        self.broken.load(SeqCst)
    }

    pub(in super::super) fn set_broken(&self) {
        self.broken.store(true, SeqCst);
    }

    /// Reserves capacity for `more` completions, so that the queue cannot overrun.
    pub(in super::super) fn promise(&self, more: u32) -> Result<()> {
        let mut promised = lock(&self.promised);
        let (used, size) = *promised;
        let wanted = used.saturating_add(more);
        if wanted > size {
            let (name, most) = (&self.context.name, self.context.traits.max_cqe);
            let too_many = |why: String| {
                let text = format!(
                    "{wanted} completions of one WorkQ, and {why}: use smaller queues (RdmaBuilder::recv_queue_size), or one WorkQ more"
                );
                Error::new(ErrorKind::NoMemory, None, text)
            };
            if wanted > most {
                return Err(too_many(format!(
                    "a completion queue of {name} takes {most}"
                )));
            }
            let larger = wanted.next_power_of_two().min(most);
            // SAFETY: the queue is alive; it may be polled meanwhile (ibv_resize_cq(3)).
            let answer = unsafe { (self.context.table.resize_cq)(self.raw(), larger as i32) };
            check("ibv_resize_cq", answer).map_err(|error| {
                too_many(format!(
                    "its completion queue of {size} on {name} cannot be made larger ({error})"
                ))
            })?;
            promised.1 = larger;
        }
        promised.0 = wanted;
        Ok(())
    }

    /// Releases capacity that was reserved.
    pub(in super::super) fn release(&self, less: u32) {
        let mut promised = lock(&self.promised);
        promised.0 = promised.0.saturating_sub(less);
    }

    /// Polls completions. Returns `None` if the queue is broken.
    #[inline(always)]
    pub(in super::super) fn poll(&self, to: &mut [Wc]) -> Option<usize> {
        let (most, first) = (to.len() as i32, to.as_mut_ptr());
        // SAFETY: the queue is alive, and `to` has `most` elements.
        let polled = unsafe { self.context.ops.poll_cq(self.raw(), most, first) };
        // The number that the driver reports is not trusted.
        usize::try_from(polled)
            .ok()
            .map(|polled| polled.min(to.len()))
    }

    /// Requests an event for the next completion. If the driver refuses, the queue is broken.
    pub(in super::super) fn notify(&self) {
        if self.requested.load(SeqCst) >= UNREAD {
            self.read_events();
        }
        // The request is counted first, so that a thread which gets the event finds it counted.
        self.requested.fetch_add(1, SeqCst);
        // SAFETY: the queue is alive.
        let answer = unsafe { self.context.ops.req_notify_cq(self.raw()) };
        if answer != 0 {
            // No thread would be notified of completions.
            self.set_broken();
            let text = "ibv_req_notify_cq failed";
            log_later(move || tracing::error!(target: "tokio_doca::verbs", answer, "{text}"));
        }
    }

    /// Reads the events that may have come, and acknowledges them in one call.
    ///
    /// There is at most one event for each requested notification. No more events than that are
    /// read, which saves the call that would find none.
    pub(in super::super) fn read_events(&self) {
        let may_be = self.requested.swap(0, SeqCst);
        let mut read = 0;
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        while read < may_be {
            let get_cq_event = self.context.table.get_cq_event;
            // SAFETY: the channel is alive, and does not block.
            if unsafe { get_cq_event(self.channel.raw.as_ptr(), &mut cq, &mut context) } != 0 {
                break;
            }
            read += 1;
        }
        if read < may_be {
            // The event that was requested last may still come.
            self.requested.fetch_max(1, SeqCst);
        }
        if read > 0 {
            // SAFETY: the channel has this queue alone, which is alive.
            unsafe { (self.context.table.ack_cq_events)(self.raw(), read) };
        }
    }

    pub(in super::super) fn fd(&self) -> BorrowedFd<'_> {
        self.channel.fd()
    }
}

impl CompChannel {
    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is alive as long as `self`.
        let fd = unsafe { (*self.raw.as_ptr()).fd };
        // SAFETY: the descriptor is open as long as the channel.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // All events that were read are acknowledged, for which `ibv_destroy_cq` waits. Unread
        // events are dropped with the channel.
        let destroy_cq = self.context.table.destroy_cq;
        // SAFETY: the queue pairs of the queue held it, and are gone.
        let destroy = || unsafe { destroy_cq(self.raw()) };
        self.context.destroy("ibv_destroy_cq", destroy);
    }
}

impl Drop for CompChannel {
    fn drop(&mut self) {
        let destroy_channel = self.context.table.destroy_comp_channel;
        // SAFETY: its completion queue is gone.
        let destroy = || unsafe { destroy_channel(self.raw.as_ptr()) };
        self.context.destroy("ibv_destroy_comp_channel", destroy);
    }
}
