//! What becomes of a copy that nobody awaits any more: it goes on, and its memory stays leased until it is over.
//!
//! The device is told to hold jobs up, so that a timeout strikes while one is in flight. Nothing waits in a `drop`,
//! nothing dangles; only `shutdown` waits.
use std::error::Error;
use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::{sleep, timeout};
use tokio_doca::soft::{Fault, Soft};
use tokio_doca::{Buf, BufPool, Dma, ErrorKind, Mmap, WorkQ};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const SHORT: Duration = Duration::from_millis(10);
const LONG: Duration = Duration::from_secs(10);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let soft = Soft::builder().build();
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
    assert!(timeout(SHORT, dma.copy(&src, &dst)).await.is_err());
    let refused = dst
        .data()
        .err()
        .ok_or("the destination is lent while a job writes it")?;
    assert_eq!(refused.kind(), ErrorKind::InUse);
    assert_eq!(&src.data()?[..], b"hello", "to read a source harms nobody");
    assert_eq!(
        src.reset_data_len().map_err(|e| e.kind()),
        Err(ErrorKind::InUse)
    );
    assert_eq!(workq.in_flight(), 1);
    println!("timed out, still in flight: {refused}");

    drop(hold);
    until_free(&dst).await?;
    assert_eq!(
        &dst.data()?[..],
        b"hello",
        "the copy went on without its future"
    );
    assert_eq!(workq.in_flight(), 0);
    println!(
        "over: the destination holds {:?}",
        String::from_utf8_lossy(&dst.data()?)
    );

    // 2. A slow job is given up, and tried again with another destination: it does not hold up what comes later.
    soft.faults().push(Fault::Delay(50 * SHORT));
    let (slow, quick) = (pool.alloc().await, pool.alloc().await);
    assert!(timeout(SHORT, dma.copy(&src, &slow)).await.is_err());
    assert_eq!(timeout(LONG, dma.copy(&src, &quick)).await??, 5);
    println!(
        "the second try answered while the first was in flight: {}",
        slow.data().is_err()
    );
    until_free(&slow).await?;

    // 3. Bufs whose handles are gone as well: the job has the last word, and the elements go home after it.
    let hold = soft.faults().hold();
    let (a, b) = (pool.alloc().await, pool.alloc().await);
    a.extend_from_slice(b"bye")?;
    let task = tokio::spawn(dma.copy_owned(a, b));
    while workq.in_flight() == 0 {
        yield_now().await; // to the task, which submits its job
    }
    assert!(
        timeout(SHORT, workq.shutdown()).await.is_err(),
        "shutdown waits for the job in flight"
    );
    task.abort();
    assert!(task.await.is_err_and(|error| error.is_cancelled()));
    drop(hold);
    timeout(LONG, workq.shutdown()).await??;
    assert_eq!(workq.in_flight(), 0);
    assert_eq!(device.jobs(), Some(4), "every job was finished");
    drop((src, dst, slow, quick));
    let all: Vec<Buf> = std::iter::from_fn(|| pool.try_alloc().ok()).collect();
    assert_eq!(all.len(), pool.elements(), "every element is home");
    let late = dma.copy(&all[0], &all[1]).await;
    assert_eq!(late.map_err(|e| e.kind()), Err(ErrorKind::Shutdown));
    println!(
        "shut down: nothing in flight, all {} elements are home",
        all.len()
    );
    Ok(())
}

/// Waits until no job has the Buf. A service would rather take another one.
async fn until_free(buf: &Buf) -> Result<()> {
    let free = async {
        while buf.data().is_err() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    Ok(timeout(LONG, free).await?)
}
