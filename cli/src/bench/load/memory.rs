//! Memory of a device for the lanes of a thread.

use tokio_doca::mem::Access;
use tokio_doca::{Buf, BufPool, Device, Mmap};

use super::Result;
use super::pair::ALL;

/// The alignment of all memory in bytes: a cache line of the CPU.
pub(in crate::bench) const LINE: usize = 64;

/// Returns a pool of `count` Bufs of at least `size` bytes each.
pub(in crate::bench) fn pool(device: &Device, size: usize, count: usize) -> Result<BufPool> {
    let element = size.max(1).next_multiple_of(LINE);
    let mmap = Mmap::builder()
        .device(device)
        .access(Access::LOCAL_READ_WRITE);
    let mmap = mmap.alloc(element * count)?;
    let pool = BufPool::builder(&mmap)
        .element_size(element)
        .alignment(LINE);
    Ok(pool.build()?)
}

/// Allocates a Buf with `size` bytes of data. Its pages are written first, so that they exist.
pub(in crate::bench) fn filled(pool: &BufPool, size: usize) -> Result<Buf> {
    let buf = touched(pool)?;
    buf.set_data(0, size)?;
    Ok(buf)
}

/// Allocates a Buf without data. Its pages are written first, so that they exist.
pub(in crate::bench) fn touched(pool: &BufPool) -> Result<Buf> {
    let buf = pool.try_alloc()?;
    buf.set_data(0, buf.capacity())?;
    buf.data_mut()?.fill(7);
    buf.reset_data_len()?;
    Ok(buf)
}

/// Allocates memory that a peer may reach, for `depth` operations in flight. Each begins at a cache
/// line of its own.
pub(in crate::bench) fn lent(device: &Device, size: usize, depth: usize) -> Result<Mmap> {
    let mmap = Mmap::builder().device(device);
    let mmap = mmap.access(Access::LOCAL_READ_WRITE | ALL);
    Ok(mmap.alloc(size.next_multiple_of(LINE) * depth)?)
}
