//! An epoll loop without a runtime: a timer triggers work, and the handle of the WorkQ becomes
//! readable when copies complete.
//!
//! ```text
//! own_epoll_loop [TICKS]
//! ```
//!
//! At each tick of the timer the loop submits a batch of copies, each with a number that is
//! returned with its result. The loop sleeps in `epoll_wait` for the timer and for completions:
//! arm, wait, clear, progress.
use std::error::Error;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use tokio_doca::soft::Soft;
use tokio_doca::{Buf, BufPool, Dma, ErrorKind, Mmap, WorkQ, error::JobError, op::Output};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const BYTES: usize = 4096;
/// The number of copies of each tick.
const BATCH: usize = 16;
/// The time between two ticks.
const PERIOD_MS: u16 = 2;
/// A copy that takes longer than this is lost.
const LIMIT: Duration = Duration::from_secs(1);

const TIMER: u64 = 0;
const WORKQ: u64 = 1;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let ticks = match &args[..] {
        [] => Some(20),
        [ticks] => ticks
            .parse()
            .ok()
            .filter(|ticks| (1..=10_000).contains(ticks)),
        _ => None,
    };
    let Some(ticks) = ticks else {
        eprintln!("own_epoll_loop: usage: own_epoll_loop [TICKS], from 1 to 10000");
        return ExitCode::FAILURE;
    };
    match run(ticks) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("own_epoll_loop: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(ticks: u64) -> Result<()> {
    // An adapter completes no job inside the submission. With this limit the software device does
    // not either.
    let soft = Soft::builder().inline_limit(0).build();
    soft.faults().push_env()?;
    let device = soft.open("pf0")?;
    let mmap = Mmap::builder().device(&device).alloc(2 * BATCH * BYTES)?;
    let pool = BufPool::builder(&mmap).element_size(BYTES).build()?;
    let workq = WorkQ::builder().depth(BATCH as u32).build()?;
    let dma = Dma::builder(&device).attach(&workq)?;
    let pairs = (0..BATCH)
        .map(|at| pair(&pool, at as u8))
        .collect::<Result<Vec<_>>>()?;

    let timer = timer()?;
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    epoll.add(&timer, EpollEvent::new(EpollFlags::EPOLLIN, TIMER))?;
    epoll.add(
        workq.event_handle()?,
        EpollEvent::new(EpollFlags::EPOLLIN, WORKQ),
    )?;

    let (mut ticked, mut done, mut waits) = (0, 0, 0);
    let mut free: Vec<usize> = (0..BATCH).collect();
    // The start of each copy in flight, by the number of its pair.
    let mut begun = [None::<Instant>; BATCH];
    while done < ticks * BATCH as u64 {
        workq.arm();
        let mut events = [EpollEvent::empty(); 2];
        let ready = epoll.wait(&mut events, EpollTimeout::NONE)?;
        waits += 1;
        for event in &events[..ready] {
            if event.data() == WORKQ {
                workq.clear();
                let mut failed = None;
                workq.progress(|at, result| match ended(&pairs, at, result) {
                    Ok(at) => {
                        free.push(at);
                        begun[at] = None;
                        done += 1;
                    }
                    Err(error) => failed = Some(error),
                });
                if let Some(error) = failed {
                    return Err(error);
                }
            } else {
                let mut expirations = [0; 8];
                nix::unistd::read(&timer, &mut expirations)?;
                if begun.iter().flatten().any(|begun| begun.elapsed() > LIMIT) {
                    return Err(format!("the device did not finish a copy within {LIMIT:?}").into());
                }
                // Copies that are still in flight are not late. This tick uses the pairs that are
                // free; the remaining copies follow at later ticks.
                while ticked < ticks * BATCH as u64
                    && let Some(at) = free.pop()
                {
                    let (src, dst) = &pairs[at];
                    dst.reset_data_len()?;
                    match dma.copy(src, dst).post(at as u64) {
                        Ok(()) => {
                            ticked += 1;
                            begun[at] = Some(Instant::now());
                        }
                        Err(error) if error.kind() == ErrorKind::Again => {
                            free.push(at);
                            break;
                        }
                        Err(error) => return Err(error.error().into()),
                    }
                }
            }
        }
    }
    let stats = workq.stats();
    assert_eq!(
        (stats.completed, stats.in_flight, stats.failed),
        (done, 0, 0)
    );
    println!(
        "{done} copies of {BYTES} bytes by {}, each told once; {waits} waits",
        device.info().name()
    );
    Ok(())
}

/// Returns a source that is full of a pattern, and an empty destination.
fn pair(pool: &BufPool, seed: u8) -> Result<(Buf, Buf)> {
    let (src, dst) = (pool.try_alloc()?, pool.try_alloc()?);
    src.extend_from_slice(&[seed.wrapping_mul(37) ^ 0x5a; BYTES])?;
    Ok((src, dst))
}

/// Checks that copy `number` has succeeded: its destination must have the data of its source.
fn ended(
    pairs: &[(Buf, Buf)],
    number: u64,
    result: std::result::Result<Output, JobError>,
) -> Result<usize> {
    let at = number as usize;
    let (src, dst) = pairs.get(at).ok_or("a number that was never given")?;
    if result?.bytes() != Some(BYTES) || src.data()?[..] != dst.data()?[..] {
        return Err(format!("copy {number} is not what its source holds").into());
    }
    Ok(at)
}

/// Returns a timer that is readable every [`PERIOD_MS`].
fn timer() -> Result<OwnedFd> {
    use nix::sys::time::{TimeSpec, TimeValLike};
    use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
    let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_CLOEXEC)?;
    let period = TimeSpec::milliseconds(i64::from(PERIOD_MS));
    timer.set(Expiration::Interval(period), TimerSetTimeFlags::empty())?;
    Ok(timer.as_fd().try_clone_to_owned()?)
}
