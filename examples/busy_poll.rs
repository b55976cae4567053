//! Busy-polling without a runtime, beside the event mode: how long one small copy by an engine thread takes.
//!
//! `WorkQ::block_on` spins on this thread until the job is over, where the event mode sleeps and is woken. The price is
//! a CPU, and the kernel's own count shows that the spinning thread never slept.
use std::error::Error;
use std::time::{Duration, Instant};

use tokio_doca::soft::Soft;
use tokio_doca::{BufPool, Device, Dma, Mmap, Mode, WorkQ};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const BYTES: usize = 4096;
const JOBS: usize = 20_000;
/// Each mode stops after that time, however many jobs it did.
const LIMIT: Duration = Duration::from_millis(700);

fn main() -> Result<()> {
    // An adapter finishes nothing inside the submission; with this limit the software device does not either.
    let soft = Soft::builder().inline_limit(0).build();
    let device = soft.open("pf0")?;

    let workq = WorkQ::builder().mode(Mode::BusyPoll).build()?;
    let busy = workq.block_on(measure(&device, &workq))?;
    busy.print("busy-poll");

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    let workq = WorkQ::builder().mode(Mode::EventDriven).build()?;
    let event = runtime.block_on(measure(&device, &workq))?;
    event.print("event");

    let jobs = busy.times.len() + event.times.len();
    assert_eq!(
        device.jobs(),
        Some(jobs as u64),
        "every copy was a job of the device"
    );
    // Not quite never: a page fault may sleep.
    let (sleeps, jobs) = (busy.sleeps, busy.times.len());
    assert!(
        sleeps <= 10 + jobs / 100,
        "busy-polling slept {sleeps} times in {jobs} jobs"
    );
    Ok(())
}

/// What a mode did.
struct Measured {
    /// Of each job, ascending.
    times: Vec<Duration>,
    sleeps: usize,
}

/// Copies one after the other, and takes the time of each.
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

/// How often this thread went to sleep.
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
