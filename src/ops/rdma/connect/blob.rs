//! [`Connect`]: an attempt to connect to the endpoint of a blob.
//!
//! The attempt blocks, since it may wait for another process. So another thread makes it
//! ([`Blocking`]).

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tracing::{debug, warn};

use super::super::Rdma;
use crate::device::{Endpoint, EndpointState};
use crate::error::Result;
use crate::sync::{Blocking, deadline, for_peers, for_strangers, log};

pub(super) const OP: &str = "Rdma::connect";

/// The way in which an endpoint is connected to the endpoint of a blob.
#[derive(Clone, Copy)]
pub(in super::super) enum How {
    Connect,
    Dial,
    /// This side listens for an unknown peer, which can come as often as it likes. So failures are
    /// logged only at debug level.
    Listen,
}

/// The future of [`Rdma::connect`].
///
/// ```
/// # use std::time::Duration;
/// # use tokio_doca::{Device, Rdma, WorkQ, rdma::RdmaState};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tokio_doca::Result<()> {
/// # let device = Device::open_default()?;
/// # let workq = WorkQ::builder().build()?;
/// let a = Rdma::builder(&device).attach(&workq)?;
/// let b = Rdma::builder(&device).attach(&workq)?;
/// // Usually these are two processes, and the blobs travel over a socket.
/// let (of_a, of_b) = (a.export()?, b.export()?);
/// let limit = Duration::from_secs(1);
/// tokio::try_join!(a.connect(&of_b).timeout(limit), b.connect(&of_a).timeout(limit))?;
/// assert_eq!((a.state(), b.state()), (RdmaState::Connected, RdmaState::Connected));
/// # Ok(())
/// # }
/// ```
#[must_use = "futures do nothing unless polled"]
pub struct Connect {
    rdma: Rdma,
    how: How,
    blob: Vec<u8>,
    timeout: Duration,
    call: Blocking<()>,
}

impl Connect {
    pub(in super::super) fn new(rdma: &Rdma, how: How, blob: &[u8], timeout: Duration) -> Connect {
        Connect {
            rdma: rdma.clone(),
            how,
            blob: blob.to_vec(),
            timeout,
            call: Blocking::new(),
        }
    }

    /// Sets how long the attempt may take, from the first poll or the call of
    /// [`wait`](Connect::wait) on. Defaults to the builder's
    /// [`connect_timeout`](crate::rdma::RdmaBuilder::connect_timeout).
    pub fn timeout(mut self, timeout: Duration) -> Connect {
        self.timeout = timeout;
        self
    }

    /// Connects on this thread, and blocks until the attempt ends.
    ///
    /// # Errors
    ///
    /// As [`Rdma::connect`]; `BadState` if the future was polled before.
    pub fn wait(self) -> Result<()> {
        self.call.check_idle("Connect::wait")?;
        self.rdma.check_open(OP)?;
        let port = self.rdma.port();
        let until = deadline(self.timeout);
        connect(&**port.endpoint(), self.how, port.id(), &self.blob, until)
    }
}

fn connect(
    endpoint: &dyn Endpoint,
    how: How,
    rdma: u64,
    blob: &[u8],
    deadline: Instant,
) -> Result<()> {
    log(|| debug!(target: "tokio_doca::rdma", rdma, "connect"));
    let connected = match how {
        How::Connect => endpoint.connect(blob, deadline),
        How::Dial => endpoint.dial(blob, deadline),
        How::Listen => endpoint.listen(blob),
    };
    logged(endpoint, how, rdma, connected)
}

/// Logs the result of an attempt, and adds the name of the call to its error.
pub(super) fn logged(
    endpoint: &dyn Endpoint,
    how: How,
    rdma: u64,
    connected: Result<()>,
) -> Result<()> {
    log(|| match (&connected, endpoint.state()) {
        (Ok(()), EndpointState::Init) => {
            debug!(target: "tokio_doca::rdma", rdma, "waits for its peer");
        }
        (Ok(()), _) => debug!(target: "tokio_doca::rdma", rdma, "connected"),
        (Err(error), _) if matches!(how, How::Listen) => {
            debug!(target: "tokio_doca::rdma", rdma, %error, "connect refused");
        }
        (Err(error), _) => warn!(target: "tokio_doca::rdma", rdma, %error, "connect refused"),
    });
    connected.map_err(|error| error.with_call(OP))
}

impl Future for Connect {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let this = &mut *self;
        if !this.call.is_begun() {
            this.rdma.check_open(OP)?;
            // The thread gets only the endpoint, so that it does not keep the Rdma.
            let port = this.rdma.port();
            let (endpoint, rdma) = (Arc::clone(port.endpoint()), port.id());
            let (blob, how) = (std::mem::take(&mut this.blob), this.how);
            let until = deadline(this.timeout);
            let run = move || connect(&*endpoint, how, rdma, &blob, until);
            let threads = match how {
                // On adapters the kernel asks the network for the unknown peer's address.
                How::Listen => for_strangers(),
                How::Connect | How::Dial => for_peers(),
            };
            this.call.begin(threads, OP, run)?;
        }
        this.call.poll(OP, cx)
    }
}

impl fmt::Debug for Connect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connect")
            .field("rdma", &self.rdma)
            .field("timeout", &self.timeout)
            .finish()
    }
}
