//! An endpoint, as the layers above see it.
#![expect(unsafe_code, reason = "posts Jobs whose memory was lent")]

use std::any::Any;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Instant;

use super::super::adapter::EndpointBlob;
use super::super::cm::step;
use super::super::connection::RcConnection;
use super::super::managed::Offered;
use super::shared::Shared;
use crate::device::{
    Access, Arrival, CmAnswer, CmOffer, CmOptions, Endpoint, EndpointState, Job, KeepAlive, Path,
    Receive, Segments, Submit, Submitted, Token, Transport,
};
use crate::error::{Error, ErrorKind, JobError, Result};
use crate::sync::{discard, lock};

/// The handle of an endpoint that the layers above hold.
pub(super) struct VerbsEndpoint {
    queue: Arc<Shared>,
    conn: Arc<RcConnection>,
    retired: AtomicBool,
}

impl VerbsEndpoint {
    pub(in super::super) fn new(queue: Arc<Shared>, conn: Arc<RcConnection>) -> VerbsEndpoint {
        VerbsEndpoint {
            queue,
            conn,
            retired: AtomicBool::new(false),
        }
    }

    fn end(&self) -> bool {
        // This comes before any lock, since a child of fork may have inherited a locked one.
        if self.queue.core.context.is_forked() {
            return false;
        }
        if self.retired.swap(true, SeqCst) {
            return true;
        }
        self.queue.watched.remove_conn(&self.conn);
        self.queue.retire(&self.conn);
        Shared::unlock(lock(&self.queue.poll));
        self.conn.has_ended()
    }
}

// SAFETY: the duties of `device::contract`, as `VerbsQueue` keeps them: each request that was
// posted ends once. A request that the adapter refuses was not seen by it, or is accepted and
// fails.
unsafe impl Submit for VerbsEndpoint {
    fn finishes_inline(&self) -> bool {
        false
    }

    #[inline]
    unsafe fn submit(&self, jobs: &[(Token, Job<'_>)]) -> Submitted {
        // SAFETY: as the caller promises.
        unsafe { self.conn.submit(jobs) }
    }
}

// SAFETY: the duties of `Endpoint`:
// 1. Requests of a queue pair end in order (InfiniBand specification, 10.8.5). `Sends` and the
//    receives check that.
// 2. `RcConnection::fail`, and `Shared::bury`.
// 3. `Shared::reset` takes the queue pair from the adapter before it returns.
// 4. `Pooled`: a connection's completions come in order, and its messages wait in line;
//    `RcConnection::fail_later`.
// 5. A queue pair is set up by calls of this host's driver, and sends nothing before a job.
unsafe impl Endpoint for VerbsEndpoint {
    fn state(&self) -> EndpointState {
        self.conn.state()
    }

    fn transport(&self) -> Transport {
        self.conn.transport()
    }

    fn path(&self) -> Option<Path> {
        self.conn.inner().path
    }

    fn peer_permissions(&self) -> Access {
        let peer = self.conn.inner().peer;
        peer.map_or(Access::empty(), |peer| peer.permissions)
    }

    fn export(&self) -> Result<Vec<u8>> {
        self.conn.export()
    }

    fn listen(&self, blob: &[u8]) -> Result<()> {
        // Connecting sends nothing to the peer. For RoCE the kernel resolves the peer's address.
        self.dial(blob, Instant::now())
    }

    fn dial(&self, blob: &[u8], deadline: Instant) -> Result<()> {
        EndpointBlob::parse(blob)?.is_of_this_library()?;
        self.connect(blob, deadline)
    }

    fn connect(&self, blob: &[u8], _deadline: Instant) -> Result<()> {
        self.conn.connect(blob)?;
        self.conn.notify();
        Ok(())
    }

    fn connect_to(&self, addr: SocketAddr, options: CmOptions, answer: CmAnswer) {
        let conn = Arc::clone(&self.conn);
        let connect = move || conn.connect_to(addr, options, answer);
        // If no thread can be started, the answer is dropped, which notifies the caller that waits
        // for it.
        let _ = step(connect);
    }

    fn accept(&self, offer: Box<dyn CmOffer>, options: CmOptions, answer: CmAnswer) {
        let offer: Box<dyn Any> = offer;
        let Ok(offered) = offer.downcast::<Offered>() else {
            let text = "the peer asks another provider's device for a connection";
            return answer(Err(Error::new(ErrorKind::InvalidValue, None, text)));
        };
        if let Err(error) = offered.check(&self.queue.core.context) {
            return answer(Err(error));
        }
        let conn = Arc::clone(&self.conn);
        let accept = move || conn.accept(*offered, options, answer);
        let _ = step(accept);
    }

    unsafe fn post_recvs(&self, receives: &[Receive]) -> Submitted {
        // SAFETY: as the caller promises.
        unsafe { self.conn.post_recvs(receives) }
    }

    fn has_message(&self) -> bool {
        self.conn.has_message()
    }

    unsafe fn take_message(
        &self,
        dst: &Segments,
        capacity: usize,
    ) -> Result<Option<(Arrival, usize)>, JobError> {
        // SAFETY: as the caller promises.
        match unsafe { self.conn.take_message(dst, capacity) } {
            // SAFETY: as above.
            Ok(None) if self.queue.poll_now() => unsafe { self.conn.take_message(dst, capacity) },
            taken => taken,
        }
    }

    fn reset(&self) {
        // A child of fork(2) has neither the queue pair nor the threads.
        match self.queue.core.context.is_forked() {
            true => self.conn.give_up(),
            false => {
                self.queue.reset(&self.conn);
                Shared::unlock(lock(&self.queue.poll));
            }
        }
        self.conn.notify();
    }

    unsafe fn retire(&self, keep: KeepAlive) {
        match self.end() {
            true => discard(keep),
            false => std::mem::forget(keep),
        }
    }
}

impl Drop for VerbsEndpoint {
    fn drop(&mut self) {
        self.end();
    }
}
