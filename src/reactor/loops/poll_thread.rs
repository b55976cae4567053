//! [`PollThread`], a thread that polls a WorkQ and runs the tasks that use it. After a while in
//! which its polls find nothing, it sleeps until an event.

use std::future::Future;
use std::panic::resume_unwind;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::errno::Errno;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::{LocalSet, spawn_local};

use crate::error::{Error, ErrorKind, Result};
use crate::reactor::workq::WorkQ;

const SPAWN: &str = "PollThread::spawn";

/// Builds a thread for the part of a service whose latency matters: it polls one [`WorkQ`] and runs
/// the tasks that use it. [`WorkQ::poll_thread`] makes the builder.
///
/// ```
/// # use tokio_doca::{BufPool, Device, Dma, Mmap, WorkQ};
/// use std::time::Duration;
///
/// # let device = Device::open_default()?;
/// # let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(1 << 16)?).build()?;
/// # let workq = WorkQ::builder().build()?;
/// let dma = Dma::builder(&device).attach(&workq)?;
/// let (src, dst) = (pool.try_alloc()?, pool.try_alloc()?);
/// src.extend_from_slice(b"hello")?;
/// let thread = workq.poll_thread().spin(Duration::from_micros(100));
/// let handle = thread.spawn(move || async move { dma.copy(&src, &dst).await })?;
/// let copied = handle.join().expect("the task does not panic")?;
/// assert_eq!(copied, 5);
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "no thread is started before spawn"]
pub struct PollThread {
    workq: WorkQ,
    cpu: Option<usize>,
    spin: Duration,
}

impl WorkQ {
    /// Returns a builder of a thread that polls this WorkQ and runs tasks. A job that completes or
    /// a message that comes then resumes its task without a wake-up by the kernel.
    ///
    /// One thread serves one WorkQ and all its connections. It polls the device once a turn,
    /// however many tasks wait. Leave the WorkQ in [`Mode::EventDriven`](crate::Mode): in busy mode
    /// each task that waits would poll too.
    ///
    /// ```
    /// use tokio_doca::{BufPool, Device, Dma, Mmap, WorkQ};
    ///
    /// let device = Device::open_default()?;
    /// let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(1 << 16)?).build()?;
    /// let workq = WorkQ::builder().build()?;
    /// let dma = Dma::builder(&device).attach(&workq)?;
    /// let thread = workq.poll_thread().spawn(async move || {
    ///     let task = tokio::task::spawn_local(async move {
    ///         let (src, dst) = (pool.alloc().await, pool.alloc().await);
    ///         src.extend_from_slice(b"hello")?;
    ///         dma.copy(&src, &dst).await
    ///     });
    ///     task.await.expect("it does not panic")
    /// })?;
    /// assert_eq!(thread.join().expect("it does not panic")?, 5);
    /// # Ok::<(), tokio_doca::Error>(())
    /// ```
    pub fn poll_thread(&self) -> PollThread {
        PollThread {
            workq: self.clone(),
            cpu: None,
            spin: Duration::from_millis(1),
        }
    }
}

fn start<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> Result<JoinHandle<T>> {
    let named = thread::Builder::new().name("tokio-doca-poll".into());
    let thread = named.spawn(body);
    thread.map_err(|error| Error::os(SPAWN, "the thread", error))
}

impl PollThread {
    /// Pins the thread to this CPU. Defaults to the CPUs of the thread that spawns it.
    pub fn cpu(mut self, cpu: usize) -> PollThread {
        self.cpu = Some(cpu);
        self
    }

    /// Sets the time for which the thread polls in vain before it sleeps until an event. Defaults
    /// to 1 ms; `Duration::MAX` polls for ever. While its polls find nothing, the thread yields its
    /// CPU about every 30 us.
    pub fn spin(mut self, spin: Duration) -> PollThread {
        self.spin = spin;
        self
    }

    /// Starts the thread, which calls `begin` and then runs to completion the future that `begin`
    /// has returned. The thread also runs the tasks that this future and its tasks start by
    /// [`tokio::task::spawn_local`]. Tasks that are left when the future has completed are dropped.
    ///
    /// The thread polls for operations of this WorkQ. Timers, sockets and the like need a runtime
    /// that other threads drive: the runtime on which `spawn` is called, if it has worker threads.
    /// A task that waits for them is resumed by a wake-up of the thread. If there is no such
    /// runtime, enter one in `begin` ([`Handle::enter`](tokio::runtime::Handle::enter)). Without a
    /// runtime Tokio's timers panic. On a current-thread runtime that no thread drives they never
    /// complete.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tokio::{io::AsyncReadExt, net::TcpListener, time::timeout};
    /// # use tokio_doca::WorkQ;
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let workq = WorkQ::builder().build()?;
    /// let thread = workq.poll_thread().spawn(async || {
    ///     let listener = TcpListener::bind("127.0.0.1:0").await?;
    ///     tokio::time::sleep(Duration::from_millis(1)).await;
    ///     // No client connects.
    ///     let accepted = timeout(Duration::from_millis(10), listener.accept()).await;
    ///     Ok::<bool, std::io::Error>(accepted.is_err())
    /// })?;
    /// assert!(thread.join().expect("it does not panic")?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A task that does not yield holds up the other tasks. The crate's operations yield once the
    /// task has used up its budget ([`tokio::task::coop`]).
    ///
    /// # Errors
    ///
    /// `InvalidValue` if the thread cannot run on the CPU set by [`PollThread::cpu`];
    /// `OperatingSystem` if the system cannot start a thread.
    pub fn spawn<F>(
        self,
        begin: impl FnOnce() -> F + Send + 'static,
    ) -> Result<JoinHandle<F::Output>>
    where
        F: Future + 'static,
        F::Output: Send + 'static,
    {
        if self.cpu.is_some() {
            // A thread that ends at once tries the pinning first: the real thread could not return
            // an error.
            let pinned = start({
                let this = self.clone();
                move || this.pin()
            });
            pinned?
                .join()
                .unwrap_or_else(|panic| resume_unwind(panic))?;
        }
        let workers = |runtime: &Handle| runtime.runtime_flavor() != RuntimeFlavor::CurrentThread;
        let runtime = Handle::try_current().ok().filter(workers);
        start(move || {
            let _entered = runtime.as_ref().map(Handle::enter);
            // The CPU existed a moment ago. If it is taken away, the system moves the thread.
            let _ = self.pin();
            let tasks = LocalSet::new();
            // The main future runs as a task, so that it has a budget like the other tasks.
            let main = tasks.run_until(async { spawn_local(begin()).await });
            let ended = self.workq.run(main, self.spin);
            ended.unwrap_or_else(|error| resume_unwind(error.into_panic()))
        })
    }

    /// Pins the calling thread, if a CPU was named.
    fn pin(&self) -> Result<()> {
        let Some(cpu) = self.cpu else {
            return Ok(());
        };
        let mut set = CpuSet::new();
        let pinned = set
            .set(cpu)
            .and_then(|()| sched_setaffinity(Pid::from_raw(0), &set));
        pinned.map_err(|errno| match errno {
            Errno::EINVAL => {
                let text = format!(
                    "CPU {cpu} does not exist, is offline, or is not in the process's cpuset: \
                     Cpus_allowed_list in /proc/self/status lists those that can be used"
                );
                Error::new(ErrorKind::InvalidValue, SPAWN, text)
            }
            errno => Error::os(SPAWN, "the thread's CPU", errno.into()),
        })
    }
}
