//! Compares the three modes: the latency of small copies by an engine thread, and the CPU time that
//! waiting takes.
//!
//! ```text
//! hybrid [SPIN_MICROSECONDS]
//! ```
//!
//! Each mode makes one copy after the other, on one WorkQ whose mode is changed in between. Then
//! one copy is held up: while it waits, busy-polling uses a whole CPU, and the other two modes
//! sleep.
use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use tokio::time::timeout;
use tokio_doca::soft::Soft;
use tokio_doca::{Buf, BufPool, Dma, Mmap, Mode, WorkQ};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const BYTES: usize = 4096;
const JOBS: usize = 5_000;
/// Each mode stops after this time, however many jobs it has done.
const LIMIT: Duration = Duration::from_millis(500);
/// How long one copy is held up.
const LONG: Duration = Duration::from_millis(200);
/// A copy that takes longer than this is lost.
const DEADLINE: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let spin = match &args[..] {
        [] => Some(30),
        [micros] => micros.parse().ok(),
        _ => None,
    };
    let Some(spin) = spin.map(Duration::from_micros) else {
        eprintln!("hybrid: usage: hybrid [SPIN_MICROSECONDS]");
        return ExitCode::FAILURE;
    };
    match run(spin) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hybrid: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(spin: Duration) -> Result<()> {
    // An adapter completes no job inside the submission. With this limit the software device does
    // not either.
    let soft = Soft::builder().inline_limit(0).build();
    soft.faults().push_env()?;
    let device = soft.open("pf0")?;
    let mmap = Mmap::builder().device(&device).alloc(2 * BYTES)?;
    let pool = BufPool::builder(&mmap).element_size(BYTES).build()?;
    let (src, dst) = (pool.try_alloc()?, pool.try_alloc()?);
    src.extend_from_slice(&[7; BYTES])?;
    let workq = WorkQ::builder().build()?;
    let hybrid = Mode::Hybrid { spin };
    // If the spin is too long, `set_mode` fails here and not half-way through the measurements.
    workq.set_mode(hybrid)?;
    let dma = Dma::builder(&device).attach(&workq)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    for (name, mode) in [
        ("event", Mode::EventDriven),
        ("hybrid", hybrid),
        ("busy-poll", Mode::BusyPoll),
    ] {
        workq.set_mode(mode)?;
        let before = workq.stats();
        let mut times = runtime.block_on(short(&dma, &src, &dst))?;
        let events = workq.stats().wake_ups - before.wake_ups;
        times.sort_unstable();
        let (jobs, [p50, p99]) = (
            times.len(),
            [50, 99].map(|percent| times[(times.len() - 1) * percent / 100]),
        );
        // No other thread uses the CPU: the engine sleeps, so that the CPU time of the process is
        // that of this thread.
        let hold = soft.faults().hold();
        dst.reset_data_len()?;
        let waiting = async {
            let begun = cpu_time()?;
            let mut copy = std::pin::pin!(copy(&dma, &src, &dst));
            if let Ok(early) = timeout(LONG, copy.as_mut()).await {
                return Err(early.err().unwrap_or("it was not held up".into()));
            }
            let cpu = cpu_time()? - begun;
            drop(hold);
            copy.await?;
            Result::Ok(cpu)
        };
        let cpu = runtime.block_on(waiting)?;
        let share = cpu.as_secs_f64() / LONG.as_secs_f64() * 100.0;
        println!(
            "{name:>10}: {jobs} jobs, p50 {p50:>7.1?}, p99 {p99:>7.1?}, {events} events; waiting takes {share:.0} % of a CPU"
        );
    }
    runtime.block_on(workq.shutdown())?;
    Ok(())
}

/// Makes one copy after the other, and returns the time of each.
async fn short(dma: &Dma, src: &Buf, dst: &Buf) -> Result<Vec<Duration>> {
    let mut times = Vec::with_capacity(JOBS);
    let start = Instant::now();
    while times.len() < JOBS && start.elapsed() < LIMIT {
        dst.reset_data_len()?;
        let begun = Instant::now();
        copy(dma, src, dst).await?;
        times.push(begun.elapsed());
    }
    Ok(times)
}

/// Makes one copy, and fails if it takes longer than `DEADLINE`.
async fn copy(dma: &Dma, src: &Buf, dst: &Buf) -> Result<()> {
    let late = |_| format!("the device did not finish a copy within {DEADLINE:?}");
    let copied = timeout(DEADLINE, dma.copy(src, dst)).await.map_err(late)?;
    assert_eq!(copied?, BYTES);
    Ok(())
}

/// Returns the CPU time that the process has used.
fn cpu_time() -> Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Ok(Duration::from_micros(micros.try_into()?))
}
