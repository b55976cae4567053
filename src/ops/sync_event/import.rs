//! [`SyncEventImport`], the import of a sync event in progress, and [`ImportedSyncEvent`], its
//! result, which is not attached or started yet.
//!
//! An import blocks, since it asks another process. So another thread makes it ([`Blocking`]).

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tracing::{debug, warn};

use super::context::WAITS;
use super::{BlockingSyncEvent, SyncEvent};
use crate::device::{Device, EventCounter};
use crate::error::Result;
use crate::reactor::WorkQ;
use crate::sync::{Blocking, deadline, for_peers, log};

const OP: &str = "SyncEvent::from_export";

impl SyncEvent {
    /// Imports an event by the blob that [`SyncEvent::export_dpu`] has returned. The time limit
    /// defaults to 5 s ([`SyncEventImport::timeout`]). Nothing happens before the first poll; no
    /// runtime is needed. Attach or start the imported event afterwards; it cannot be exported
    /// again.
    ///
    /// An event has one importer at a time. Another process can import the event once the importer
    /// has dropped it, or has ended.
    ///
    /// # Errors
    ///
    /// - `InvalidValue` if `blob` is not a blob, is cut off or was changed, or was exported by
    ///   something other than a sync event (the text names the call that takes such a blob);
    ///   `UnsupportedVersion` if it is of a newer version.
    /// - `NotSupported` if this device imports no events
    ///   ([`SyncEventCaps::import_dpu`](crate::device::SyncEventCaps::import_dpu)), or if the blob
    ///   is from another port, another host, or a process in another network namespace that has not
    ///   called [`set_socket_path`](crate::soft::set_socket_path).
    /// - `InUse` if the event has an importer; `ConnectionAborted` if it was stopped or dropped;
    ///   `ConnectionReset` if its owner has gone; `NotPermitted` if the answer does not come from
    ///   the owner; `TimedOut` if the owner does not answer in time.
    /// - `NoMemory` or `OperatingSystem` if the system refuses memory, a descriptor or a thread.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped at any time: an import in progress ends by itself, within the time
    /// limit.
    #[doc(alias = "doca_sync_event_create_from_export")]
    pub fn from_export(device: &Device, blob: &[u8]) -> SyncEventImport {
        SyncEventImport {
            device: device.clone(),
            blob: blob.to_vec(),
            timeout: Duration::from_secs(5),
            call: Blocking::new(),
        }
    }
}

/// The future of [`SyncEvent::from_export`].
#[must_use = "futures do nothing unless polled"]
pub struct SyncEventImport {
    device: Device,
    blob: Vec<u8>,
    timeout: Duration,
    call: Blocking<ImportedSyncEvent>,
}

impl SyncEventImport {
    /// Sets the time within which the owner must answer, from the first poll on. Defaults to 5 s.
    pub fn timeout(mut self, timeout: Duration) -> SyncEventImport {
        self.timeout = timeout;
        self
    }

    /// Imports the event on this thread, and blocks until the import ends.
    ///
    /// # Errors
    ///
    /// As [`SyncEvent::from_export`]; `BadState` if the future was polled before.
    pub fn wait(self) -> Result<ImportedSyncEvent> {
        self.call.check_idle("SyncEventImport::wait")?;
        import(&self.device, &self.blob, deadline(self.timeout))
    }
}

fn import(device: &Device, blob: &[u8], deadline: Instant) -> Result<ImportedSyncEvent> {
    let event = device.adapter().import_event(blob, deadline);
    let event = event.map_err(|error| error.with_call(OP));
    let name = device.info().name();
    log(|| match &event {
        Ok(_) => debug!(target: "tokio_doca::sync_event", device = name, "imported"),
        Err(error) => {
            warn!(target: "tokio_doca::sync_event", device = name, %error, "import refused")
        }
    });
    let event = event?;
    Ok(ImportedSyncEvent {
        device: device.clone(),
        event,
        waits: WAITS,
    })
}

impl Future for SyncEventImport {
    type Output = Result<ImportedSyncEvent>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if !this.call.is_begun() {
            let (device, blob) = (this.device.clone(), std::mem::take(&mut this.blob));
            let deadline = deadline(this.timeout);
            let run = move || import(&device, &blob, deadline);
            this.call.begin(for_peers(), OP, run)?;
        }
        this.call.poll(OP, cx)
    }
}

/// A sync event that was imported, and is not attached or started yet.
///
/// ```
/// use tokio_doca::soft::{Soft, View};
/// use tokio_doca::sync_event::{ImportedSyncEvent, Location, SyncEvent};
///
/// # let host = Soft::builder().build().open("pf0")?;
/// # let here = Location::Cpu(&host);
/// # let event = SyncEvent::builder().publisher(Location::Dpu).subscriber(here).start()?;
/// # let blob = event.export_dpu(&host)?;
/// let dpu = Soft::builder().view(View::Dpu).build().open("p0")?;
/// let imported: ImportedSyncEvent = SyncEvent::from_export(&dpu, &blob).wait()?;
/// let theirs = imported.start()?;                     // or `attach`, for a WorkQ
/// theirs.set(3)?;
/// assert_eq!(event.get()?, 3);
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[must_use = "it is attached, or started"]
pub struct ImportedSyncEvent {
    device: Device,
    event: Arc<dyn EventCounter>,
    waits: u32,
}

impl ImportedSyncEvent {
    /// Sets the number of entries for waits, as
    /// [`SyncEventBuilder::waits`](crate::sync_event::SyncEventBuilder::waits) does.
    pub fn waits(mut self, waits: u32) -> ImportedSyncEvent {
        self.waits = waits;
        self
    }

    /// Makes a [`SyncEvent`], and attaches it to a WorkQ.
    ///
    /// # Errors
    ///
    /// As [`SyncEventBuilder::attach`](crate::sync_event::SyncEventBuilder::attach) for the waits,
    /// the device and the WorkQ. On an error the imported event is dropped.
    #[doc(alias = "doca_ctx_start")]
    pub fn attach(self, workq: &WorkQ) -> Result<SyncEvent> {
        SyncEvent::on(&self.device, workq, self.waits, || Ok(self.event))
            .map_err(|error| error.with_call("ImportedSyncEvent::attach"))
    }

    /// Makes a [`BlockingSyncEvent`], which needs no WorkQ.
    ///
    /// # Errors
    ///
    /// At present none.
    #[doc(alias = "doca_sync_event_start")]
    pub fn start(self) -> Result<BlockingSyncEvent> {
        Ok(BlockingSyncEvent::new(&self.device, self.event))
    }
}

impl fmt::Debug for SyncEventImport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SyncEventImport")
            .field("device", &self.device)
            .field("timeout", &self.timeout)
            .finish()
    }
}

impl fmt::Debug for ImportedSyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImportedSyncEvent")
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}
