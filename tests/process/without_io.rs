//! A copy that waits by event in a Tokio runtime without I/O: `BadState`, or, where
//! `panic = "abort"` is set, the end of the process with Tokio's message (`Mode::EventDriven`).
//! `tests/process/runtime.rs` has the first, and `.ci/run`, which builds the examples with
//! `panic = "abort"`, the second.

use tokio_doca::soft::Soft;
use tokio_doca::{BufPool, Dma, Error, ErrorKind, Mmap, WorkQ};

fn main() -> Result<(), Error> {
    let device = Soft::builder().defer(true).build().open("pf0")?;
    let mmap = Mmap::builder().device(&device).alloc(1 << 16)?;
    let pool = BufPool::builder(&mmap).build()?;
    let dma = Dma::builder(&device).attach(&WorkQ::builder().build()?)?;
    let (src, dst) = (pool.try_alloc()?, pool.try_alloc()?);
    src.extend_from_slice(b"abc")?;
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let copied = runtime.unwrap().block_on(dma.copy(&src, &dst));
    assert_eq!(copied.unwrap_err().kind(), ErrorKind::BadState);
    println!("refused");
    Ok(())
}
