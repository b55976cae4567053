//! Shows what happens to a copy whose future is dropped: the copy continues, and its memory stays
//! leased until it completes.
//!
//! A scripted fault holds jobs up, so that a timeout strikes while one is in flight. Dropping never
//! waits and leaves no dangling memory; only `shutdown` waits.
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::timeout;
use tokio_doca::soft::{Fault, Soft};
use tokio_doca::{Buf, BufPool, Dma, ErrorKind, Mmap, WorkQ, error::JobError};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A timeout that expires while a job is held up.
const SHORT: Duration = Duration::from_millis(10);
/// A job that takes longer than this is lost.
const LONG: Duration = Duration::from_secs(2);

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cancel_and_timeout: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<()> {
    let soft = Soft::builder().build();
    soft.faults().push_env()?;
    let device = soft.open("pf0")?;
    let mmap = Mmap::builder().device(&device).alloc(1 << 16)?;
    let pool = BufPool::builder(&mmap).build()?;
    let workq = WorkQ::builder().build()?;
    let dma = Dma::builder(&device).attach(&workq)?;
    let src = pool.alloc().await;
    src.extend_from_slice(b"hello")?;

    // 1. A job is held up, and the timeout drops its future.
    let dst = pool.alloc().await;
    let hold = soft.faults().hold();
    give_up(dma.copy(&src, &dst)).await?;
    let refused = dst.data().err().ok_or("no job writes the destination")?;
    assert_eq!(refused.kind(), ErrorKind::InUse);
    assert_eq!(&src.data()?[..], b"hello", "a source may be read");
    let changed = src.reset_data_len().map_err(|e| e.kind());
    assert_eq!(changed, Err(ErrorKind::InUse));
    assert_eq!(workq.in_flight(), 1);
    println!("timed out, still in flight: {refused}");

    drop(hold);
    until_free(&dst, &workq).await?;
    assert_eq!(&dst.data()?[..], b"hello", "it went on without its future");
    assert_eq!(workq.in_flight(), 0);
    let text = String::from_utf8_lossy(&dst.data()?).into_owned();
    println!("over: the destination holds {text:?}");

    // 2. A slow job is abandoned, and the copy is tried again with another destination. The slow
    //    job does not delay the later one.
    soft.faults().push(Fault::Delay(50 * SHORT));
    let (slow, quick) = (pool.alloc().await, pool.alloc().await);
    give_up(dma.copy(&src, &slow)).await?;
    let copied = in_time("the second try", dma.copy(&src, &quick)).await??;
    assert_eq!(copied, 5);
    println!(
        "the second try answered while the first was in flight: {}",
        slow.data().is_err()
    );
    until_free(&slow, &workq).await?;

    // 3. The handles of the Bufs are dropped as well. The job keeps the memory, and the elements
    //    return to the pool after the job has completed.
    let hold = soft.faults().hold();
    let (a, b) = (pool.alloc().await, pool.alloc().await);
    a.extend_from_slice(b"bye")?;
    let task = tokio::spawn(dma.copy(a, b).owned());
    while workq.in_flight() == 0 && !task.is_finished() {
        yield_now().await; // to the task, which submits its job
    }
    let early = timeout(SHORT, workq.shutdown()).await;
    assert!(early.is_err(), "shutdown waits for the job in flight");
    task.abort();
    assert!(task.await.is_err_and(|error| error.is_cancelled()));
    drop(hold);
    in_time("the shutdown", workq.shutdown()).await??;
    assert_eq!(workq.in_flight(), 0);
    assert_eq!(device.jobs(), Some(4), "every job was finished");
    drop((src, dst, slow, quick));
    let all: Vec<Buf> = std::iter::from_fn(|| pool.try_alloc().ok()).collect();
    assert_eq!(all.len(), pool.elements(), "every element is home");
    let late = dma.copy(&all[0], &all[1]).await;
    assert_eq!(late.map_err(|e| e.kind()), Err(ErrorKind::Shutdown));
    let all = all.len();
    println!("shut down: nothing in flight, all {all} elements are home");
    Ok(())
}

/// Awaits a held-up copy for [`SHORT`], and drops its future.
async fn give_up(copy: impl Future<Output = std::result::Result<usize, JobError>>) -> Result<()> {
    match timeout(SHORT, copy).await {
        Err(_) => Ok(()),
        Ok(over) => Err(format!("it was not held up, and gave {}", over?).into()),
    }
}

async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> Result<T> {
    let late = |_| format!("{what} was not over within {LONG:?}: the device lost a job");
    Ok(timeout(LONG, future).await.map_err(late)?)
}

/// Waits until no job uses the Buf. A service would rather use another Buf.
async fn until_free(buf: &Buf, workq: &WorkQ) -> Result<()> {
    in_time("a copy that no task awaits", buf.released()).await?;
    // The error of a copy that no task awaited is not returned anywhere, but it is counted.
    match workq.stats().failed {
        0 => Ok(()),
        failed => Err(format!("{failed} copy failed that no task awaited").into()),
    }
}
