//! The asynchronous flavour: a context on a WorkQ.

use std::sync::Arc;

use super::SyncEventBuilder;
use crate::device::{Caps, Device, EventCounter, EventWait, SyncEventCaps};
use crate::error::{Error, ErrorKind, JobError, Reason, Result};
use crate::ops::context::{Context, Kind, contexts};
use crate::reactor::{Attachment, EventPortHandle, WorkQ};
use crate::sync::log;

/// The longest blob.
const BLOB: usize = 1024;

/// A sync event on a WorkQ: a 64-bit counter that the host and the DPU change, read and wait for
/// (Core guide 3.4.6; `doca_sync_event` as a context). Clones are the same event.
///
/// One of the two builds it and exports it, the other imports it. Either may do everything with it,
/// whatever its locations say. The counter begins at 0, or with what its
/// [`backing`](SyncEventBuilder::backing) memory holds.
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
/// // ... and one on the DPU, which got the blob somehow.
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
/// A wait has completed once the counter is *greater* than its threshold, and may miss values that
/// it had for a short time. Waits have a table of their own ([`SyncEventBuilder::waits`]), and do
/// not count against the depth of the WorkQ. Many waits of one event cost nothing while it changes:
/// a set wakes those that it ends, and no other; those with a mask are checked one by one.
///
/// # How it ends
///
/// [`stop`](SyncEvent::stop), or the drop of the last handle, ends it for good: waits end with
/// [`Reason::EventStopped`], what was exported is taken back, and the importer's jobs and waits
/// fail with [`Reason::EventRevoked`]. If the owner's process ends, they fail with
/// [`Reason::EventPeerGone`]. If it is the importer's process that ends, without having dropped the
/// event, the owner's waits fail with that too, until there is another importer; what changes and
/// reads the counter continues. A process that replaces its program (execve(2)) has ended in this
/// sense, unless a child of it still holds what it had.
///
/// # Trust
///
/// A process that has imported the event once can write the counter for as long as the event
/// exists, also after another importer has come, and can keep that importer from being woken. A
/// former importer cannot end the event for its successor. To shut a former importer out, stop the
/// event and export another one.
///
/// A child of `fork` does not inherit the counter, as it does not inherit memory of an
/// [`Mmap`](crate::Mmap): it must not use the event (and dies of SIGSEGV if it does), but may begin
/// events of its own once it has called `exec`.
#[derive(Clone)]
#[doc(alias = "doca_sync_event")]
#[doc(alias = "doca_sync_event_as_ctx")]
pub struct SyncEvent(pub(super) Context<SyncEventCaps, SyncEventInner>);

/// What it was built with, and the device's half of it.
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

    fn event_driven(&self) -> bool {
        self.event_driven
    }

    fn max_buf_size(&self) -> u64 {
        0
    }

    fn max_list_len(&self) -> u32 {
        0
    }
}

/// How many waits an event has by default.
pub(super) const WAITS: u32 = 64;

impl SyncEvent {
    /// Begins an event.
    #[doc(alias = "doca_sync_event_create")]
    pub fn builder<'a>() -> SyncEventBuilder<'a> {
        SyncEventBuilder::new()
    }

    /// Puts an event of a device on a WorkQ.
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

    /// Returns what the other side imports, at most 1,024 bytes: the same each time. The party that
    /// has it can import it, one at a time: it is a secret. It goes to the DPU by whatever way the
    /// application has.
    ///
    /// # Errors
    ///
    /// `NotSupported` if the device exports none to the DPU
    /// ([`SyncEventCaps::export_dpu`](crate::device::SyncEventCaps::export_dpu)), or both locations
    /// are the CPU's; `NotPermitted` if it was imported itself; `InvalidValue` for another device
    /// than its own; `BadState` once it was stopped; with backing memory what
    /// [`Mmap::export_dpu`](crate::Mmap::export_dpu) says of it; what could not be had.
    #[doc(alias = "doca_sync_event_export_to_dpu")]
    #[doc(alias = "doca_sync_event_export_to_remote_pci")]
    pub fn export_dpu(&self, device: &Device) -> Result<Vec<u8>> {
        export(&**self.port().event(), self.device(), device)
    }

    /// Stops the event, for all its clones and for the importer. It cannot be started again. This
    /// call does not wait.
    #[doc(alias = "doca_ctx_stop")]
    #[doc(alias = "doca_sync_event_stop")]
    pub fn stop(&self) {
        self.port().event().stop();
    }

    /// Gives this handle up, if it is the last one: the event ends with it.
    ///
    /// # Errors
    ///
    /// `InUse` while a clone, an Op or a graph has it.
    #[doc(alias = "doca_ctx_workq_rm")]
    #[doc(alias = "doca_sync_event_destroy")]
    pub fn detach(self) -> Result<()> {
        self.0.detach()
    }

    /// Returns how many entries for waits it has.
    pub fn waits(&self) -> u32 {
        self.0.extra().waits
    }

    #[inline(always)]
    pub(super) fn port(&self) -> &EventPortHandle {
        &self.0.extra().port
    }

    /// Refuses what the device cannot wait for. One that cannot wait at all is asked for the value
    /// instead.
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

/// Returns true if a mask is 0, or 1, 2, 4 or 8 whole bytes beside one another.
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
    let blob = event.export().map_err(|error| error.with_call(OP))?;
    if blob.len() > BLOB {
        let text = format!(
            "the device's blob has {} bytes, more than {BLOB}",
            blob.len()
        );
        return Err(Error::new(ErrorKind::Unexpected, OP, text));
    }
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
