//! Connections to a side that listens, without a thread if the device does not block.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;
use tracing::debug;

use super::super::Rdma;
use super::blob::{How, OP, logged};
use crate::error::{Error, ErrorKind, Result};
use crate::reactor::readable_fd;
use crate::sync::log;

impl Rdma {
    /// Connects as [`dial`](Rdma::dial) does. If the device can connect without blocking, the task
    /// waits on `runtime`, which has I/O and time enabled.
    pub(crate) async fn dial_on(
        &self,
        runtime: &Handle,
        blob: &[u8],
        timeout: Duration,
    ) -> Result<()> {
        self.check_open(OP)?;
        let begun = Instant::now();
        let left = || timeout.saturating_sub(begun.elapsed());
        let (endpoint, rdma) = (self.port().endpoint(), self.port().id());
        if let Some(asked) = endpoint.begin_dial(blob) {
            log(|| debug!(target: "tokio_doca::rdma", rdma, "connect"));
            let fd = asked.as_fd().try_clone_to_owned();
            let connected = match tokio::time::timeout(left(), readable(fd, runtime)).await {
                Ok(Err(error)) => Err(Error::os(None, "to wait for the answer", error)),
                // If no answer has come in time, `complete` returns the error.
                Ok(Ok(())) | Err(_) => asked.complete(),
            };
            match connected {
                // `dial` below finds out the cause. Without time left it could only time out.
                Err(error) if error.kind() == ErrorKind::ConnectionReset && !left().is_zero() => {}
                connected => return logged(&**endpoint, How::Dial, rdma, connected),
            }
        }
        self.dial(blob).timeout(left()).await
    }
}

/// Waits until the descriptor is readable.
async fn readable(fd: io::Result<OwnedFd>, runtime: &Handle) -> io::Result<()> {
    let registered = {
        let _runtime = runtime.enter();
        fd.and_then(readable_fd)
    };
    registered?.readable().await.map(drop)
}
