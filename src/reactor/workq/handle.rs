//! The public type [`WorkQ`] and its builder.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::shared::{Attachment, Shared};
use crate::device::Token;
use crate::error::{Error, ErrorKind, Result};
use crate::reactor::events::Driven;
use crate::reactor::mode::{Mode, Policy};

/// The queue that jobs go into and completions come out of (DOCA Core guide 3.4.3).
///
/// Clones are handles of the same queue. Any task on any thread can use it. If the queue is full,
/// an operation that is awaited waits in line for its turn. Dropping the last handle does not wait
/// for jobs in flight: the device keeps what they need until its last job has completed. To wait
/// for them, use [`WorkQ::shutdown`].
///
/// ```
/// # use tokio_doca::{BufPool, Device, Dma, Mmap, WorkQ, sha::{Algorithm, Sha}};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tokio_doca::Result<()> {
/// # let device = Device::open_default()?;
/// # let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(1 << 16)?).build()?;
/// let workq = WorkQ::builder().depth(64).build()?;    // at most 64 jobs in flight
/// let dma = Dma::builder(&device).attach(&workq)?;    // several contexts may share it
/// let sha = Sha::builder(&device).attach(&workq)?;
///
/// let (src, copy, digest) = (pool.alloc().await, pool.alloc().await, pool.alloc().await);
/// src.extend_from_slice(b"abc")?;
/// tokio::try_join!(dma.copy(&src, &copy), sha.hash(Algorithm::Sha256, &src, &digest))?;
/// assert_eq!(workq.in_flight(), 0);
/// workq.shutdown().await?;                            // refuses later jobs
/// assert!(dma.copy(&src, &copy).await.is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[doc(alias = "doca_workq")]
#[doc(alias = "doca_pe")]
pub struct WorkQ(pub(in crate::reactor) Arc<Shared>);

impl WorkQ {
    /// Returns a builder of a WorkQ.
    #[doc(alias = "doca_workq_create")]
    #[doc(alias = "doca_pe_create")]
    pub fn builder() -> WorkQBuilder {
        WorkQBuilder {
            depth: 256,
            mode: Mode::default(),
            completion_vector: 0,
        }
    }

    /// Returns the maximum number of jobs in flight.
    #[doc(alias = "doca_workq_get_depth")]
    pub fn depth(&self) -> u32 {
        self.0.core.table.free().slots() as u32
    }

    /// Returns how the WorkQ's operations wait.
    #[doc(alias = "doca_workq_get_event_driven_enable")]
    pub fn mode(&self) -> Mode {
        self.0.mode.load().mode()
    }

    /// Changes how operations wait. Any thread may call this, and the change takes effect at once:
    /// all futures that wait are woken, and continue in the new mode. Jobs in flight and the order
    /// of waiters in line do not change.
    ///
    /// After a change from busy-polling to another mode, operations must be polled on a Tokio
    /// runtime (or in [`WorkQ::block_on`]). An operation that is polled elsewhere fails with
    /// `BadState`, as always in event mode.
    ///
    /// # Errors
    ///
    /// `NotSupported` if the mode needs events and an attached device cannot signal an event
    /// handle; `InvalidValue` for a spin beyond 1 s. On an error the mode does not change.
    #[doc(alias = "doca_workq_set_event_driven_enable")]
    pub fn set_mode(&self, mode: Mode) -> Result<()> {
        const OP: &str = "WorkQ::set_mode";
        let policy = Policy::of(mode, OP)?;
        let shared = &self.0;
        let attaching = shared.attaching();
        shared.core.queues.check_events(policy, OP)?;
        shared.mode.set(policy);
        drop(attaching);
        shared.wake_all();
        shared.arm_for_changes();
        Ok(())
    }

    /// Returns the number of slots in use: jobs in flight, and results that were not fetched yet.
    #[doc(alias = "doca_pe_get_num_inflight_tasks")]
    #[doc(alias = "doca_ctx_get_num_inflight_tasks")]
    pub fn in_flight(&self) -> usize {
        self.0.in_use()
    }

    /// Returns true if the WorkQ was shut down.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.closed.load(Ordering::Acquire)
    }

    pub(crate) fn is(&self, other: &WorkQ) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Attachment {
    pub(crate) fn workq(&self) -> WorkQ {
        WorkQ(Arc::clone(&self.shared))
    }

    pub(crate) fn is_on(&self, workq: &WorkQ) -> bool {
        Arc::ptr_eq(&self.shared, &workq.0)
    }
}

impl fmt::Debug for WorkQ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkQ")
            .field("depth", &self.depth())
            .field("mode", &self.mode())
            .field("in_flight", &self.in_flight())
            .finish()
    }
}

/// Builds a [`WorkQ`].
///
/// ```
/// use std::time::Duration;
/// use tokio_doca::{Mode, WorkQ};
///
/// let spin = Duration::from_micros(50);
/// let workq = WorkQ::builder().depth(1024).mode(Mode::Hybrid { spin }).build()?;
/// assert_eq!((workq.depth(), workq.mode()), (1024, Mode::Hybrid { spin }));
///
/// assert!(WorkQ::builder().depth(0).build().is_err());
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is built before build"]
pub struct WorkQBuilder {
    depth: u32,
    mode: Mode,
    completion_vector: u32,
}

impl WorkQBuilder {
    /// Sets the maximum number of jobs in flight, 1 to 1,048,576. Defaults to 256. Jobs that the
    /// device finishes inline do not count.
    pub fn depth(mut self, jobs: u32) -> WorkQBuilder {
        self.depth = jobs;
        self
    }

    /// Sets how operations wait. Defaults to event-driven.
    #[doc(alias = "doca_workq_set_event_driven_enable")]
    pub fn mode(mut self, mode: Mode) -> WorkQBuilder {
        self.mode = mode;
        self
    }

    /// Sets the completion vector by which an adapter signals the WorkQ. Defaults to 0, which each
    /// device has.
    ///
    /// A completion vector is an interrupt of the adapter, which one CPU handles: /proc/interrupts
    /// shows which CPU. WorkQs with the same vector share its CPU. To spread the interrupts over
    /// CPUs, give each WorkQ a different number, less than the device's
    /// [`completion_vectors`](crate::device::Caps::completion_vectors), and run the tasks of a
    /// WorkQ near the CPU of its vector. A WorkQ that polls has no interrupts.
    ///
    /// A context of a device with fewer vectors is refused with `InvalidValue` when it is attached.
    /// The software device has one vector.
    ///
    /// ```
    /// # use tokio_doca::{Device, WorkQ};
    /// # let device = Device::open_default()?;
    /// let vectors = device.info().caps().completion_vectors.max(1);
    /// let workqs: Vec<WorkQ> = (0..4)
    ///     .map(|number| WorkQ::builder().completion_vector(number % vectors).build())
    ///     .collect::<Result<_, _>>()?;
    /// # Ok::<(), tokio_doca::Error>(())
    /// ```
    #[doc(alias = "comp_vector")]
    pub fn completion_vector(mut self, number: u32) -> WorkQBuilder {
        self.completion_vector = number;
        self
    }

    /// Builds the WorkQ, and allocates all memory for its jobs.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if the depth or the spin is out of bounds; `OperatingSystem` if the kernel
    /// refuses to make a descriptor for the event handle.
    pub fn build(self) -> Result<WorkQ> {
        if self.depth == 0 || self.depth > Token::MAX_SLOTS {
            let text = format!(
                "a depth of {}: a WorkQ has 1 to {} Slots",
                self.depth,
                Token::MAX_SLOTS
            );
            return Err(Error::new(
                ErrorKind::InvalidValue,
                "WorkQBuilder::build",
                text,
            ));
        }
        let policy = Policy::of(self.mode, "WorkQBuilder::build")?;
        Ok(WorkQ(Arc::new(Shared::new(
            policy,
            self.depth,
            self.completion_vector,
        )?)))
    }
}
