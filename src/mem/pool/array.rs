//! Bufs of one size that are reached by their index.

use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use super::cut::Cut;
use crate::error::{Error, ErrorKind, JobError, Reason, Result};
use crate::mem::buf::Buf;
use crate::mem::element::Handle;
use crate::mem::mmap::Mmap;

/// The processor that works with the elements of a [`BufArray`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ArrayTarget {
    /// The CPU, which runs this process.
    #[default]
    Cpu,
    /// Kernels on a GPU: not supported.
    #[doc(alias = "doca_buf_arr_set_target_gpu")]
    Gpu,
    /// The data path accelerator of a DPU: not supported.
    Dpa,
}

/// An array of Bufs of one size, reached by their index (DOCA Core guide 3.3.4.2). Clones are the
/// same array.
///
/// All Bufs exist from the beginning. [`get`](BufArray::get) returns one more handle of the same
/// Buf each time, with the headroom and data that the Buf was left with. The array claims its range
/// of the Mmap until the array and the last of its Bufs are gone.
///
/// ```
/// # use tokio_doca::{mem::BufArray, Device, Mmap};
/// # let device = Device::open_default()?;
/// let mmap = Mmap::builder().device(&device).alloc(1 << 20)?;
/// let array = BufArray::builder(&mmap).element_size(64).elements(100).build()?;
/// array.get(7)?.extend_from_slice(b"seven")?;
/// assert_eq!(&array.get(7)?.data()?[..], b"seven");
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone)]
#[doc(alias = "doca_buf_arr")]
#[doc(alias = "doca_buf_array")]
pub struct BufArray(Arc<ArrayInner>);

struct ArrayInner {
    /// One Buf for each element. They keep the range claimed while any of them is alive.
    bufs: Box<[Buf]>,
    element_size: usize,
    mmap: Mmap,
}

impl BufArray {
    /// Returns a builder for an array on an Mmap.
    #[doc(alias = "doca_buf_arr_create")]
    pub fn builder(mmap: &Mmap) -> BufArrayBuilder<'_> {
        BufArrayBuilder {
            mmap,
            range: (Bound::Unbounded, Bound::Unbounded),
            element_size: 4096,
            alignment: 1,
            elements: None,
            target: ArrayTarget::Cpu,
        }
    }

    /// Returns the Buf at an index.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if `index` is not below [`len`](BufArray::len).
    #[doc(alias = "doca_gpu_dev_buf_get_buf")]
    pub fn get(&self, index: usize) -> Result<Buf, JobError> {
        let len = self.len() as u64;
        let none = JobError::new(Reason::NoElement, len, index as u64);
        self.0.bufs.get(index).cloned().ok_or(none)
    }

    /// Returns the number of elements.
    #[allow(clippy::len_without_is_empty)] // it has at least one
    pub fn len(&self) -> usize {
        self.0.bufs.len()
    }

    /// Returns the size of each element in bytes.
    pub fn element_size(&self) -> usize {
        self.0.element_size
    }

    /// Returns the Mmap of which the array claims a range.
    pub fn mmap(&self) -> &Mmap {
        &self.0.mmap
    }
}

impl fmt::Debug for BufArray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufArray")
            .field("len", &self.len())
            .field("element_size", &self.element_size())
            .finish()
    }
}

/// Builds a [`BufArray`].
///
/// ```
/// use tokio_doca::{Device, Mmap, mem::BufArray};
///
/// # let device = Device::open_default()?;
/// let mmap = Mmap::builder().device(&device).alloc(1 << 16)?;
/// let counters = BufArray::builder(&mmap).element_size(8).alignment(64).elements(16).build()?;
/// let counter = counters.get(3)?;
/// counter.extend_from_slice(&[0; 8])?;
/// counter.fetch_add(0, 5)?;                           // each has a cache line of its own
/// assert_eq!(counters.get(3)?.load(0)?, 5);
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "nothing is built before build"]
pub struct BufArrayBuilder<'a> {
    mmap: &'a Mmap,
    range: (Bound<usize>, Bound<usize>),
    element_size: usize,
    alignment: usize,
    elements: Option<usize>,
    target: ArrayTarget,
}

impl BufArrayBuilder<'_> {
    /// Sets the range of the Mmap to use, in bytes. Defaults to the whole Mmap.
    pub fn range(mut self, range: impl RangeBounds<usize>) -> Self {
        self.range = (range.start_bound().cloned(), range.end_bound().cloned());
        self
    }

    /// Sets the size of each element in bytes. Defaults to 4096.
    #[doc(alias = "doca_buf_arr_set_params")]
    pub fn element_size(mut self, bytes: usize) -> Self {
        self.element_size = bytes;
        self
    }

    /// Sets the alignment of each element's first byte, a power of two. Defaults to 1.
    pub fn alignment(mut self, bytes: usize) -> Self {
        self.alignment = bytes;
        self
    }

    /// Sets the number of elements, from the start of the range on. Defaults to all that fit. The
    /// bytes behind the elements are not claimed.
    pub fn elements(mut self, elements: usize) -> Self {
        self.elements = Some(elements);
        self
    }

    /// Sets the processor that works with the elements. Defaults to the CPU.
    pub fn target(mut self, target: ArrayTarget) -> Self {
        self.target = target;
        self
    }

    /// Claims the range and cuts it into elements, which have no data yet.
    ///
    /// # Errors
    ///
    /// `NotSupported` for a target that is not the CPU; `InvalidValue` if the range does not lie in
    /// the Mmap, if it is too short for the elements or could hold more than 16,777,214, if the
    /// size or the number of elements is 0, or if the alignment is no power of two; `InUse` if a
    /// pool, another array or a Buf of an inventory has a part of the range; `BadState` while the
    /// Mmap is stopped.
    #[doc(alias = "doca_buf_arr_start")]
    pub fn build(self) -> Result<BufArray> {
        const OP: &str = "BufArrayBuilder::build";
        if self.target != ArrayTarget::Cpu {
            let text = format!(
                "a BufArray for {:?}: ArrayTarget::Cpu is supported",
                self.target
            );
            return Err(Error::new(ErrorKind::NotSupported, OP, text));
        }
        let mut cut = Cut::new(OP, self.mmap, self.range, self.element_size, self.alignment)?;
        if let Some(elements) = self.elements {
            cut = cut.limit(OP, elements)?;
        }
        let slab = cut.claim(OP, self.mmap)?;
        // The slab hands out the lowest index first, so that each Buf is stored at its index.
        let bufs = std::iter::from_fn(|| Some(Buf(Handle::first(slab.take()?))));
        Ok(BufArray(Arc::new(ArrayInner {
            bufs: bufs.collect(),
            element_size: self.element_size,
            mmap: self.mmap.clone(),
        })))
    }
}
