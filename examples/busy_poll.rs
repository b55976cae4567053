//! Compares busy-polling without a runtime to the event mode: measures how long one small copy by
//! an engine thread takes.
//!
//! In busy-polling, `WorkQ::block_on` spins on this thread until the job completes. In the event
//! mode the thread sleeps and is woken. Busy-polling costs a CPU: the kernel's own count shows that
//! the spinning thread never slept.
use std::error::Error;
use std::future::poll_fn;
use std::pin::pin;
use std::process::ExitCode;
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::time::timeout;
use tokio_doca::soft::Soft;
use tokio_doca::{BufPool, Device, Dma, Mmap, Mode, WorkQ};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const BYTES: usize = 4096;
const JOBS: usize = 20_000;
/// Each mode stops after this time, however many jobs it has done.
const LIMIT: Duration = Duration::from_millis(700);
/// A mode that has not ended by this time waits for a job that the device has lost.
const DEADLINE: Duration = Duration::from_millis(1700);
const LATE: &str = "the device did not finish its copies within 1.7s";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("busy_poll: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    // An adapter completes no job inside the submission. With this limit the software device does
    // not either.
    let soft = Soft::builder().inline_limit(0).build();
    soft.faults().push_env()?;
    let device = soft.open("pf0")?;

    let workq = WorkQ::builder().mode(Mode::BusyPoll).build()?;
    let busy = workq.block_on(in_time(measure(&device, &workq)))?;
    busy.print("busy-poll");

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let workq = WorkQ::builder().mode(Mode::EventDriven).build()?;
    let event = async { timeout(DEADLINE, measure(&device, &workq)).await };
    let event = runtime.block_on(event).map_err(|_| LATE)??;
    event.print("event");

    let jobs = busy.times.len() + event.times.len();
    assert_eq!(
        device.jobs(),
        Some(jobs as u64),
        "every copy was a job of the device"
    );
    // A page fault may still put the thread to sleep, so that a few sleeps are allowed.
    let (sleeps, jobs) = (busy.sleeps, busy.times.len());
    assert!(
        sleeps <= 10 + jobs / 100,
        "busy-polling slept {sleeps} times in {jobs} jobs"
    );
    Ok(())
}

/// Polls a future until `DEADLINE`. Without a runtime there is no timer: each poll checks the
/// clock.
async fn in_time<T>(measured: impl Future<Output = Result<T>>) -> Result<T> {
    let (mut measured, end) = (pin!(measured), Instant::now() + DEADLINE);
    let look = poll_fn(|cx| match measured.as_mut().poll(cx) {
        Poll::Pending if Instant::now() > end => Poll::Ready(Err(LATE.into())),
        polled => polled,
    });
    look.await
}

/// The results of one mode.
struct Measured {
    /// The time of each job, ascending.
    times: Vec<Duration>,
    sleeps: usize,
}

/// Copies the same buffer again and again, one copy at a time, and measures the time of each copy.
async fn measure(device: &Device, workq: &WorkQ) -> Result<Measured> {
    let mmap = Mmap::builder().device(device).alloc(2 * BYTES)?;
    let pool = BufPool::builder(&mmap).element_size(BYTES).build()?;
    let dma = Dma::builder(device).attach(workq)?;
    let (src, dst) = (pool.try_alloc()?, pool.try_alloc()?);
    src.extend_from_slice(&[7; BYTES])?;
    let mut times = Vec::with_capacity(JOBS);
    let (start, before) = (Instant::now(), sleeps()?);
    while times.len() < JOBS && start.elapsed() < LIMIT {
        dst.reset_data_len()?;
        let begun = Instant::now();
        assert_eq!(dma.copy(&src, &dst).await?, BYTES);
        times.push(begun.elapsed());
    }
    let sleeps = sleeps()? - before;
    assert_eq!(&dst.data()?[..], &[7; BYTES]);
    times.sort_unstable();
    Ok(Measured { times, sleeps })
}

impl Measured {
    fn print(&self, mode: &str) {
        let (times, sleeps) = (&self.times, self.sleeps);
        let [p50, p99] = [50, 99].map(|percent| times[(times.len() - 1) * percent / 100]);
        let jobs = times.len();
        println!("{mode:>10}: {jobs} jobs, p50 {p50:>7.1?}, p99 {p99:>7.1?}, {sleeps} sleeps");
    }
}

/// Returns how often this thread went to sleep.
fn sleeps() -> Result<usize> {
    let status = std::fs::read_to_string("/proc/thread-self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    Ok(line
        .ok_or("the kernel does not count sleeps")?
        .trim()
        .parse()?)
}
