//! A pool of Bufs of one size on a claimed range: the fastest way to get Bufs.

use std::fmt;
use std::future::Future;
use std::ops::{Bound, RangeBounds};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use pin_project::{pin_project, pinned_drop};

use super::cut::Cut;
use crate::error::{JobError, Reason, Result};
use crate::mem::buf::Buf;
use crate::mem::element::{Handle, Slab, SlabHandle};
use crate::mem::mmap::Mmap;
use crate::sync::WaitNode;

/// A pool of Bufs of one size (DOCA Core guide 3.3.4.2). Clones are the same pool.
///
/// The pool claims its range of the Mmap until the pool and the last of its Bufs are gone. A Buf is
/// handed out empty, and returns to the pool when its last handle, and the last job or guard on it,
/// are gone.
///
/// ```
/// # use tokio_doca::{BufPool, Device, Mmap};
/// # let device = Device::open_default()?;
/// let mmap = Mmap::builder().device(&device).alloc(1 << 20)?;
/// let pool = BufPool::builder(&mmap).element_size(4096).build()?;
/// assert_eq!(pool.elements(), 256);
/// let buf = pool.try_alloc()?;
/// assert_eq!((buf.data_len(), buf.tailroom()), (0, 4096));
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone)]
#[doc(alias = "doca_bufpool")]
#[doc(alias = "doca_buf_pool")]
pub struct BufPool(Arc<PoolInner>);

struct PoolInner {
    slab: SlabHandle,
    element_size: usize,
}

impl BufPool {
    /// Returns a builder for a pool on an Mmap.
    #[doc(alias = "doca_bufpool_create")]
    #[doc(alias = "doca_buf_pool_create")]
    pub fn builder(mmap: &Mmap) -> BufPoolBuilder<'_> {
        let range = (Bound::Unbounded, Bound::Unbounded);
        BufPoolBuilder {
            mmap,
            range,
            element_size: 4096,
            alignment: 1,
        }
    }

    /// Returns an empty Buf, without waiting.
    ///
    /// # Errors
    ///
    /// `Again` if all Bufs are in use.
    #[doc(alias = "doca_bufpool_buf_alloc")]
    #[doc(alias = "doca_buf_pool_buf_alloc")]
    #[inline]
    pub fn try_alloc(&self) -> Result<Buf, JobError> {
        match self.0.slab.take() {
            Some(element) => Ok(Buf(Handle::first(element))),
            None => Err(JobError::new(
                Reason::PoolEmpty,
                self.elements() as u64,
                self.0.element_size as u64,
            )),
        }
    }

    /// Returns an empty Buf. If all are in use, waits in line until one is returned.
    ///
    /// A task that itself holds all Bufs waits for ever. To find such a task: at level trace the
    /// log has `waits for a Buf`, and [`stats`](Self::stats) counts the tasks that wait.
    /// [`try_alloc`](Self::try_alloc) fails instead of waiting.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the line; no Buf is lost.
    pub fn alloc(&self) -> Alloc<'_> {
        Alloc {
            pool: self,
            node: WaitNode::new(),
        }
    }

    /// Returns the number of elements.
    #[doc(alias = "doca_bufpool_get_num_elements")]
    #[doc(alias = "doca_buf_pool_get_num_elements")]
    pub fn elements(&self) -> usize {
        self.0.slab.len()
    }

    /// Returns the size of each element in bytes.
    pub fn element_size(&self) -> usize {
        self.0.element_size
    }

    /// Returns the Mmap of which the pool claims a range.
    pub fn mmap(&self) -> &Mmap {
        self.0.slab.mmap().expect("a pool claims a range")
    }
}

/// Counts of a pool's Bufs, as [`BufPool::stats`] returns them.
///
/// ```
/// # use tokio_doca::{BufPool, Device, Mmap};
/// # let device = Device::open_default()?;
/// let mmap = Mmap::builder().device(&device).alloc(1 << 16)?;
/// let pool = BufPool::builder(&mmap).element_size(4096).build()?;
/// let bufs = [pool.try_alloc()?, pool.try_alloc()?];
/// drop(bufs);
/// let stats = pool.stats();
/// assert_eq!((stats.free, stats.high_water, stats.waiting), (16, 2, 0));
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// The number of free Bufs.
    #[doc(alias = "doca_bufpool_get_num_free_elements")]
    #[doc(alias = "doca_buf_pool_get_num_free_elements")]
    pub free: usize,
    /// The maximum number of Bufs that were in use at once since the pool was built.
    pub high_water: usize,
    /// The number of callers of [`BufPool::alloc`] that wait in line.
    pub waiting: usize,
}

impl BufPool {
    /// Returns how many Bufs are free, how many at most were in use at once, and how many callers
    /// wait. The call visits each element, so that `alloc` need not keep counts. Bufs that other
    /// threads take or return meanwhile may be counted or not.
    pub fn stats(&self) -> PoolStats {
        let (free, high_water, waiting) = self.0.slab.counts();
        PoolStats {
            free,
            high_water,
            waiting,
        }
    }
}

impl fmt::Debug for BufPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufPool")
            .field("elements", &self.elements())
            .field("element_size", &self.element_size())
            .finish()
    }
}

/// The future of [`BufPool::alloc`]. It cannot outlive the pool, which it borrows:
///
/// ```compile_fail,E0597
/// # use tokio_doca::{BufPool, Device, Mmap};
/// let device = Device::open_default()?;
/// let mut alloc;
/// {
///     let pool = BufPool::builder(&Mmap::builder().device(&device).alloc(4096)?).build()?;
///     alloc = Box::pin(pool.alloc());
/// }
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[pin_project(PinnedDrop)]
#[must_use = "futures do nothing unless polled"]
pub struct Alloc<'a> {
    pool: &'a BufPool,
    #[pin]
    node: WaitNode,
}

impl Future for Alloc<'_> {
    type Output = Buf;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Buf> {
        let this = self.project();
        let budget = ready!(tokio::task::coop::poll_proceed(cx));
        let slab: &Slab = &this.pool.0.slab;
        match slab.poll_take(this.node.as_ref(), cx.waker()) {
            Some(element) => {
                budget.made_progress();
                Poll::Ready(Buf(Handle::first(element)))
            }
            None => Poll::Pending,
        }
    }
}

#[pinned_drop]
impl PinnedDrop for Alloc<'_> {
    /// Does nothing: the drop of the node leaves the line. Because this drop exists, the compiler
    /// requires that the pool, which keeps the line, is still borrowed then.
    fn drop(self: Pin<&mut Self>) {}
}

/// Waits for Bufs, one at a time, in line with other tasks. `stop` leaves the line.
#[pin_project]
pub(crate) struct BufWait {
    // Dropped before the pool, which keeps the line.
    #[pin]
    node: WaitNode,
    pool: BufPool,
}

impl BufWait {
    pub(crate) fn new(pool: &BufPool) -> BufWait {
        BufWait {
            node: WaitNode::new(),
            pool: pool.clone(),
        }
    }

    /// Takes the next Buf. If this returns `None`, the task is woken when there is one. A task that
    /// polls again in the same turn passes others.
    #[inline]
    pub(crate) fn poll(self: Pin<&mut Self>, waker: &Waker) -> Option<Buf> {
        let this = self.project();
        let element = this.pool.0.slab.poll_take(this.node.as_ref(), waker)?;
        Some(Buf(Handle::first(element)))
    }

    /// Returns true if all Bufs of the pool were in use a moment ago.
    pub(crate) fn is_empty(&self) -> bool {
        self.pool.0.slab.is_empty()
    }

    /// Leaves the line.
    #[inline]
    pub(crate) fn stop(self: Pin<&mut Self>) {
        let this = self.project();
        this.pool.0.slab.leave(this.node.as_ref());
    }
}

/// Builds a [`BufPool`].
///
/// ```
/// # use tokio_doca::{BufPool, Device, Mmap};
/// # let device = Device::open_default()?;
/// let mmap = Mmap::builder().device(&device).alloc(1 << 20)?;
/// // Half of the memory in small Bufs, the other half in large ones.
/// let small = BufPool::builder(&mmap).range(..1 << 19).element_size(2048).build()?;
/// let large = BufPool::builder(&mmap).range(1 << 19..).element_size(65536).alignment(4096).build()?;
/// assert_eq!((small.elements(), large.elements()), (256, 8));
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "nothing is built before build"]
pub struct BufPoolBuilder<'a> {
    mmap: &'a Mmap,
    range: (Bound<usize>, Bound<usize>),
    element_size: usize,
    alignment: usize,
}

impl BufPoolBuilder<'_> {
    /// Sets the range of the Mmap to use, in bytes. Defaults to the whole Mmap.
    pub fn range(mut self, range: impl RangeBounds<usize>) -> Self {
        self.range = (range.start_bound().cloned(), range.end_bound().cloned());
        self
    }

    /// Sets the size of each element in bytes. Defaults to 4096.
    pub fn element_size(mut self, bytes: usize) -> Self {
        self.element_size = bytes;
        self
    }

    /// Sets the alignment of each element's first byte, a power of two. Defaults to 1.
    #[doc(alias = "doca_buf_pool_set_element_alignment")]
    #[doc(alias = "doca_buf_pool_get_element_alignment")]
    pub fn alignment(mut self, bytes: usize) -> Self {
        self.alignment = bytes;
        self
    }

    /// Claims the range and cuts it into elements, the maximum number that fits.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if the range does not lie in the Mmap, if it holds no element or more than
    /// 16,777,214, if the size is 0, or if the alignment is no power of two; `InUse` if another
    /// pool, an array or a Buf of an inventory has a part of the range; `BadState` while the Mmap
    /// is stopped.
    #[doc(alias = "doca_bufpool_start")]
    #[doc(alias = "doca_buf_pool_start")]
    pub fn build(self) -> Result<BufPool> {
        const OP: &str = "BufPoolBuilder::build";
        let cut = Cut::new(OP, self.mmap, self.range, self.element_size, self.alignment)?;
        Ok(BufPool(Arc::new(PoolInner {
            slab: cut.claim(OP, self.mmap)?,
            element_size: self.element_size,
        })))
    }
}
