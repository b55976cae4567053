//! Memory of a device for the lanes of a thread.

use tokio_doca::mem::Access;
use tokio_doca::{Buf, BufPool, Device, Mmap};

use super::Result;
use super::pair::ALL;

/// Pieces begin at lines of a CPU's cache.
pub(in crate::bench) const LINE: usize = 64;

/// A pool of `count` pieces, which have `size` bytes at least.
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

/// A piece with `size` bytes of data. They are written first, so that its pages are there.
pub(in crate::bench) fn filled(pool: &BufPool, size: usize) -> Result<Buf> {
    let buf = touched(pool)?;
    buf.set_data(0, size)?;
    Ok(buf)
}

/// A piece without data, whose pages are there.
pub(in crate::bench) fn touched(pool: &BufPool) -> Result<Buf> {
    let buf = pool.try_alloc()?;
    buf.set_data(0, buf.capacity())?;
    buf.data_mut()?.fill(7);
    buf.reset_data_len()?;
    Ok(buf)
}

/// Memory for `depth` operations in flight, each at lines of its own, which a peer may reach.
pub(in crate::bench) fn lent(device: &Device, size: usize, depth: usize) -> Result<Mmap> {
    let mmap = Mmap::builder().device(device);
    let mmap = mmap.access(Access::LOCAL_READ_WRITE | ALL);
    Ok(mmap.alloc(size.next_multiple_of(LINE) * depth)?)
}
