//! Lanes that copy chunks of a file. Each lane takes the next chunk, reads it into a pooled Buf,
//! has the device copy it to another Buf, and writes that one. So reading, copying and writing
//! overlap.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use indicatif::ProgressBar;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_doca::{BufPool, Device, Dma, Mmap, WorkQ};

use crate::failure::{Result, cannot, panicked, text};
use crate::target::Target;

const LANES: usize = 8;
/// The memory of all lanes together, in bytes. A single chunk may need more.
const MEMORY: usize = 64 << 20;
/// Elements of the pool consist of whole pages.
const PAGE: usize = 4096;
/// A chunk that takes a device longer than this is stuck.
const LIMIT: Duration = Duration::from_secs(30);

/// Copies `size` bytes.
pub(super) async fn copy(
    device: &Device,
    chunk: usize,
    (src, from): (&Path, &Arc<File>),
    target: &Target,
    size: u64,
    bar: &ProgressBar,
) -> Result {
    let piece = chunk.min(size.max(1) as usize).next_multiple_of(PAGE);
    let lanes = (MEMORY / 2 / piece).clamp(1, LANES);
    let mmap = Mmap::builder().device(device).alloc(2 * lanes * piece)?;
    let pool = BufPool::builder(&mmap).element_size(piece).build()?;
    let dma = Dma::builder(device).attach(&WorkQ::builder().build()?)?;
    let next = Cell::new(0);
    let lane = async || -> Result {
        while next.get() < size {
            let at = next.get();
            let len = (chunk as u64).min(size - at) as usize;
            next.set(at + len as u64);
            let (full, empty) = (pool.alloc().await, pool.alloc().await);
            let file = Arc::clone(from);
            let read = spawn_blocking(move || -> io::Result<_> {
                full.set_data(0, len)?;
                file.read_exact_at(&mut full.data_mut()?, at)?;
                Ok(full)
            });
            let full = read.await.map_err(panicked)?.map_err(short(src))?;
            let copied = timeout(LIMIT, dma.copy(&full, &empty)).await;
            let limit = LIMIT.as_secs();
            copied
                .map_err(|_| format!("the device did not copy byte {at} within {limit} s"))?
                .map_err(|error| {
                    let error = text(&error.into());
                    format!("the device did not copy byte {at} and those behind it: {error}")
                })?;
            let file = Arc::clone(&target.file);
            let write = spawn_blocking(move || file.write_all_at(&empty.data()?, at));
            let written = write.await.map_err(panicked)?;
            written.map_err(cannot("write", &target.dst))?;
            bar.inc(len as u64);
        }
        Ok(())
    };
    // Each lane holds two Bufs at a time, and takes both before it waits for anything else.
    try_join_all((0..lanes).map(|_| lane())).await?;
    Ok(())
}

/// If a read failed because SRC has become shorter, says so.
fn short(src: &Path) -> impl Fn(io::Error) -> String {
    move |error| match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            let name = crate::failure::name(src);
            format!("{name} has got shorter meanwhile: copy it again when it is left alone")
        }
        _ => cannot("read", src)(error),
    }
}
