//! The sync events of a device, and their limits.

/// The kinds of jobs of a [`SyncEvent`](crate::sync_event::SyncEvent).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "doca_sync_event_job_types")]
#[allow(missing_docs)] // the names are the guide's
pub enum SyncEventKind {
    Get,
    Set,
    Add,
    WaitGt,
}

/// The sync events of a device, and their limits.
///
/// ```
/// use tokio_doca::soft::{Limits, Soft};
///
/// let device = Soft::builder().limits(Limits::bluefield3()).build().open("pf0")?;
/// let caps = device.info().caps().sync_event.as_ref().expect("it has sync events");
/// assert_eq!(caps.max_wait, Some(254));               // the highest threshold of a wait
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SyncEventCaps {
    /// True if sync events can be exported to the DPU
    /// ([`SyncEvent::export_dpu`](crate::sync_event::SyncEvent::export_dpu)).
    #[doc(alias = "doca_sync_event_get_export_to_dpu_supported")]
    #[doc(alias = "doca_sync_event_cap_is_export_to_remote_pci_supported")]
    pub export_dpu: bool,
    /// True if the device imports sync events that were exported to the DPU.
    #[doc(alias = "doca_sync_event_get_create_from_export_supported")]
    #[doc(alias = "doca_sync_event_cap_is_create_from_export_supported")]
    pub import_dpu: bool,
    /// The largest threshold of a wait, and the largest value of an event that a wait may find. A
    /// higher threshold is refused with `InvalidValue`
    /// ([`Reason::WaitTooHigh`](crate::error::Reason::WaitTooHigh)); a wait that finds a higher
    /// value, when it begins or later, fails with `InvalidValue`
    /// ([`Reason::EventTooHigh`](crate::error::Reason::EventTooHigh)). A wait with a threshold of
    /// exactly `max_wait` is accepted, but cannot succeed, since any value that exceeds the
    /// threshold is too high.
    ///
    /// The limit concerns waits on a WorkQ only: jobs that get, set and add take any value, and so
    /// do the waits of a [`BlockingSyncEvent`](crate::sync_event::BlockingSyncEvent).
    ///
    /// `None` if the device cannot wait. The crate then submits jobs that get the value until the
    /// value is greater than the threshold. In that case neither the threshold nor the value has a
    /// limit.
    pub max_wait: Option<u64>,
    /// True if the mask of a wait must be 0, or 1, 2, 4 or 8 adjacent whole bytes. A wait with
    /// another mask then fails with `InvalidValue`.
    pub whole_byte_masks: bool,
    /// The maximum number of waits for one event that are in flight on one WorkQ.
    pub max_waits: u32,
    /// True if jobs and waits can signal an event handle. Otherwise a sync event attaches only to a
    /// WorkQ in [`Mode::BusyPoll`](crate::Mode::BusyPoll), and every other WorkQ refuses it
    /// (`NotSupported`).
    #[doc(alias = "doca_ctx_get_event_driven_supported")]
    pub event_driven: bool,
}

impl SyncEventCaps {
    /// Returns the capabilities of a device that waits for any value, neither exports nor imports
    /// sync events, and can signal an event handle.
    pub fn new(max_waits: u32) -> SyncEventCaps {
        SyncEventCaps {
            export_dpu: false,
            import_dpu: false,
            max_wait: Some(u64::MAX),
            whole_byte_masks: false,
            max_waits,
            event_driven: true,
        }
    }

    /// Returns true if the device has this kind of job.
    #[doc(alias = "doca_sync_event_job_get_supported")]
    #[doc(alias = "doca_sync_event_cap_task_get_is_supported")]
    #[doc(alias = "doca_sync_event_cap_task_notify_set_is_supported")]
    #[doc(alias = "doca_sync_event_cap_task_notify_add_is_supported")]
    pub fn supports(&self, kind: SyncEventKind) -> bool {
        kind != SyncEventKind::WaitGt || self.max_wait.is_some()
    }
}
