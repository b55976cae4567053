//! [`SyncEvent`], an asynchronous sync event: a context on a WorkQ.

use std::sync::Arc;

use super::SyncEventBuilder;
use crate::device::{Caps, Device, EventCounter, EventWait, SyncEventCaps};
use crate::error::{Error, ErrorKind, JobError, Reason, Result};
use crate::ops::context::{Context, Kind, contexts, exported};
use crate::reactor::{Attachment, EventPortHandle, WorkQ};
use crate::sync::log;

/// A sync event on a WorkQ: a 64-bit counter that the host and the DPU change, read and wait for
/// (DOCA Core guide 3.4.6; `doca_sync_event` as a context). Clones are the same event.
///
/// One side builds and exports the event, and the other side imports it. Either side may change,
/// read and wait for the counter, whatever the builder's [`Location`](crate::sync_event::Location)s
/// are. The counter begins at 0, or with what its [`backing`](SyncEventBuilder::backing) memory
/// holds.
///
/// ```
/// use tokio_doca::soft::{Soft, View};
/// use tokio_doca::{sync_event::{Location, SyncEvent}, WorkQ};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tokio_doca::Error> {
/// // Usually a process on the host ...
/// let host = Soft::builder().build().open("pf0")?;
/// let event = SyncEvent::builder()
///     .publisher(Location::Dpu)
///     .subscriber(Location::Cpu(&host))
///     .attach(&WorkQ::builder().build()?)?;
/// let blob = event.export_dpu(&host)?;
///
/// // ... and one on the DPU, which got the blob over a socket.
/// let dpu = Soft::builder().view(View::Dpu).build().open("p0")?;
/// let theirs = SyncEvent::from_export(&dpu, &blob).await?.attach(&WorkQ::builder().build()?)?;
/// theirs.set(4).await?;
/// assert_eq!(event.wait_gt(3).await?, 4);
/// # Ok(())
/// # }
/// ```
///
/// # Waits
///
/// A wait completes once the counter is *greater* than its threshold. It may miss values that the
/// counter had for a short time. Waits have a table of their own ([`SyncEventBuilder::waits`]), and
/// do not count against the depth of the WorkQ. Many waits for one event do not make changes of the
/// counter slower: a change wakes only the waits that it ends. But waits with a mask are checked
/// one by one.
///
/// # How it ends
///
/// [`stop`](SyncEvent::stop), or the drop of the last handle, ends the event for good. Waits fail
/// with [`Reason::EventStopped`], the export is revoked, and the importer's jobs and waits fail
/// with [`Reason::EventRevoked`]. If the owner's process ends, the importer's jobs and waits fail
/// with [`Reason::EventPeerGone`]. If the importer's process ends without having dropped the event,
/// the owner's waits fail with [`Reason::EventPeerGone`] too, until another process imports the
/// event; the owner can still change and read the counter. A process that replaces its program
/// (execve(2)) counts as ended, unless a child still holds its descriptors.
///
/// # Trust
///
/// A process that has imported the event once can write the counter for as long as the event
/// exists, also after another importer has come, and can keep that importer from being woken. A
/// former importer cannot end the event for its successor. To shut a former importer out, stop the
/// event and export another one.
///
/// A child of `fork` does not inherit the counter, nor the memory of an [`Mmap`](crate::Mmap). It
/// must not use the event (it dies of SIGSEGV if it does), but may build events of its own once it
/// has called `exec`.
#[derive(Clone)]
#[doc(alias = "doca_sync_event")]
#[doc(alias = "doca_sync_event_as_ctx")]
pub struct SyncEvent(pub(super) Context<SyncEventCaps, SyncEventInner>);

/// The state of a `SyncEvent` beside its context: its port on the WorkQ's queue, and the number of
/// entries for waits.
pub(super) struct SyncEventInner {
    pub(super) port: EventPortHandle,
    pub(super) waits: u32,
}

impl Kind for SyncEventCaps {
    const ATTACH: &'static str = "SyncEventBuilder::attach";
    const DETACH: &'static str = "SyncEvent::detach";
    const LACKS: &'static str = "has no sync events: DevInfo::caps().sync_event says who has";

    fn of(caps: &Caps) -> Option<&SyncEventCaps> {
        caps.sync_event.as_ref()
    }

    fn limits(&self) -> (bool, u64, u32) {
        (self.event_driven, 0, 0)
    }
}

/// The default number of entries for waits.
pub(super) const WAITS: u32 = 64;

impl SyncEvent {
    /// Returns a builder of a sync event.
    #[doc(alias = "doca_sync_event_create")]
    pub fn builder<'a>() -> SyncEventBuilder<'a> {
        SyncEventBuilder::new()
    }

    /// Makes an event with `make`, and attaches it to a WorkQ.
    pub(super) fn on(
        device: &Device,
        workq: &WorkQ,
        waits: u32,
        make: impl FnOnce() -> Result<Arc<dyn EventCounter>>,
    ) -> Result<SyncEvent> {
        let check = |caps: &SyncEventCaps| {
            if waits == 0 || waits > caps.max_waits {
                let text = format!(
                    "{waits} waits at once: the device has 1 to {}",
                    caps.max_waits
                );
                return Err(Error::new(ErrorKind::InvalidValue, None, text));
            }
            Ok(())
        };
        let open = |at: &mut Attachment, ()| {
            let port = EventPortHandle::open(at, make()?, waits)?;
            Ok(SyncEventInner { port, waits })
        };
        Context::attach_with(device, workq, check, open).map(SyncEvent)
    }

    /// Returns the blob by which the other side imports the event: at most 1,024 bytes, the same
    /// each time. The application must send the blob to the DPU. Keep it secret: any process that
    /// has the blob can import the event, one process at a time.
    ///
    /// # Errors
    ///
    /// `NotSupported` if the device exports no events to the DPU
    /// ([`SyncEventCaps::export_dpu`](crate::device::SyncEventCaps::export_dpu)), or both locations
    /// are the CPU; `NotPermitted` if the event was itself imported; `InvalidValue` if `device` is
    /// not the event's device; `BadState` once the event was stopped; with backing memory also the
    /// errors of [`Mmap::export_dpu`](crate::Mmap::export_dpu); `NoMemory` or `OperatingSystem` if
    /// the system refuses memory or a descriptor.
    #[doc(alias = "doca_sync_event_export_to_dpu")]
    #[doc(alias = "doca_sync_event_export_to_remote_pci")]
    pub fn export_dpu(&self, device: &Device) -> Result<Vec<u8>> {
        export(&**self.port().event(), self.device(), device)
    }

    /// Stops the event, for all its clones and for the importer. It cannot be started again. If
    /// this side has imported the event, only the import ends: the owner can still use the event,
    /// and another process can import it. This call does not wait.
    #[doc(alias = "doca_ctx_stop")]
    #[doc(alias = "doca_sync_event_stop")]
    pub fn stop(&self) {
        self.port().event().stop();
    }

    /// Detaches from the WorkQ, and so ends the event. This handle must be the last one.
    ///
    /// # Errors
    ///
    /// `InUse` if a clone, a pending operation or a graph still holds the event. The handle is
    /// consumed either way.
    #[doc(alias = "doca_ctx_workq_rm")]
    #[doc(alias = "doca_sync_event_destroy")]
    pub fn detach(self) -> Result<()> {
        self.0.detach()
    }

    /// Returns how many waits the device can have at once. Further ones queue
    /// ([`SyncEventBuilder::waits`]).
    pub fn waits(&self) -> u32 {
        self.0.extra().waits
    }

    #[inline(always)]
    pub(super) fn port(&self) -> &EventPortHandle {
        &self.0.extra().port
    }

    /// Returns an error if the device cannot wait for this threshold or mask. Accepts any wait if
    /// the device cannot wait at all, since jobs then get the value instead.
    #[inline]
    pub(super) fn check_wait(&self, wait: &EventWait) -> Result<(), JobError> {
        let caps = self.caps();
        let Some(most) = caps.max_wait else {
            return Ok(());
        };
        if wait.threshold > most {
            return Err(JobError::new(Reason::WaitTooHigh, wait.threshold, most));
        }
        if caps.whole_byte_masks && !is_whole(wait.mask) {
            return Err(JobError::of(Reason::WaitMask));
        }
        Ok(())
    }
}

contexts! {
    /// Returns the limits of the device.
    SyncEvent: SyncEventCaps
}

/// Returns true if a mask is 0, or 1, 2, 4 or 8 adjacent whole bytes.
fn is_whole(mask: u64) -> bool {
    let bytes = mask >> (mask.trailing_zeros() % 64 / 8 * 8);
    let whole = [0, 0xff, 0xffff, 0xffff_ffff, u64::MAX];
    whole.contains(&bytes)
}

pub(super) fn export(event: &dyn EventCounter, own: &Device, device: &Device) -> Result<Vec<u8>> {
    const OP: &str = "SyncEvent::export_dpu";
    let name = device.info().name();
    if device != own {
        let text = format!(
            "device {name} does not have it: device {} has",
            own.info().name()
        );
        return Err(Error::new(ErrorKind::InvalidValue, OP, text));
    }
    let caps = device.info().caps().sync_event.as_ref();
    if !caps.is_some_and(|caps| caps.export_dpu) {
        let text = format!("device {name} exports no sync events to the DPU");
        return Err(Error::new(ErrorKind::NotSupported, OP, text));
    }
    let blob = exported(OP, event.export())?;
    log(|| tracing::debug!(target: "tokio_doca::sync_event", device = name, "exported"));
    Ok(blob)
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use super::is_whole;

    #[test]
    fn masks_of_whole_bytes_are_known() {
        for len in [1, 2, 4, 8] {
            let bytes = u64::MAX >> (64 - 8 * len);
            for at in 0..=8 - len {
                assert!(is_whole(bytes << (8 * at)), "{len} bytes at {at}");
            }
        }
        assert!(is_whole(0));
        for mask in [
            1,
            0x80,
            0xfe,
            0xff_00ff,
            0xff_ffff,
            0x0ff0,
            u64::MAX - 1,
            u64::MAX >> 1,
        ] {
            assert!(!is_whole(mask), "{mask:#x}");
        }
    }
}
