//! The future of an import.
//!
//! An import blocks, since it asks another process and maps possibly gigabytes. So another thread
//! does it ([`Blocking`]).

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tracing::{debug, warn};

use super::mmap::RemoteMmap;
use crate::device::Device;
use crate::error::Result;
use crate::sync::{Blocking, deadline, for_peers, log};

/// The future of [`RemoteMmap::from_export`].
#[must_use = "futures do nothing unless polled"]
pub struct Import {
    device: Device,
    blob: Vec<u8>,
    timeout: Duration,
    call: Blocking<RemoteMmap>,
}

impl Import {
    pub(super) const OP: &str = "RemoteMmap::from_export";

    pub(super) fn new(device: &Device, blob: &[u8]) -> Import {
        Import {
            device: device.clone(),
            blob: blob.to_vec(),
            timeout: Duration::from_secs(5),
            call: Blocking::new(),
        }
    }

    /// Sets how long the import may take, from the first poll on; defaults to 5 s. It covers the
    /// exporter's answer and the mapping of the memory, which takes about 60 ms for each GiB.
    pub fn timeout(mut self, timeout: Duration) -> Import {
        self.timeout = timeout;
        self
    }

    /// Imports the memory on this thread, which blocks meanwhile.
    ///
    /// # Errors
    ///
    /// As [`RemoteMmap::from_export`]. `BadState` if the future was polled before.
    pub fn wait(self) -> Result<RemoteMmap> {
        self.call.check_idle("Import::wait")?;
        import(&self.device, &self.blob, deadline(self.timeout))
    }
}

fn import(device: &Device, blob: &[u8], deadline: Instant) -> Result<RemoteMmap> {
    let imported = device.adapter().registrar().import(blob, deadline);
    let imported = imported
        .map_err(|error| error.with_call(Import::OP))
        .and_then(|imported| RemoteMmap::new(device, imported));
    let device = device.info().name();
    log(|| match &imported {
        Ok(remote) => debug!(target: "tokio_doca::mem", device, bytes = remote.len(), "imported"),
        Err(error) => warn!(target: "tokio_doca::mem", device, %error, "import refused"),
    });
    imported
}

impl Future for Import {
    type Output = Result<RemoteMmap>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<RemoteMmap>> {
        let this = &mut *self;
        if !this.call.is_begun() {
            let (device, blob) = (this.device.clone(), std::mem::take(&mut this.blob));
            let deadline = deadline(this.timeout);
            let run = move || import(&device, &blob, deadline);
            this.call.begin(for_peers(), Import::OP, run)?;
        }
        this.call.poll(Import::OP, cx)
    }
}

impl fmt::Debug for Import {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Import")
            .field("device", &self.device)
            .field("timeout", &self.timeout)
            .finish()
    }
}
