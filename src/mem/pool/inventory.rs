//! Bufs on any unclaimed range of any Mmap.

use std::fmt;
use std::ops::{Range, RangeBounds};
use std::sync::Arc;

use crate::error::{Error, ErrorKind, JobError, Reason, Result};
use crate::mem::buf::Buf;
use crate::mem::element::{Base, Element, Handle, MAX_ELEMENTS, Slab, SlabHandle};
use crate::mem::mmap::{Mmap, MmapInner};
use crate::mem::ranges::Busy;

/// A fixed number of descriptors, each for a Buf on a range of the caller's choice (DOCA Core guide
/// 3.3.4). Clones share the descriptors.
///
/// Bufs may overlap. Jobs and guards on overlapping bytes exclude each other as if they used one
/// Buf.
///
/// ```
/// # use tokio_doca::{mem::BufInventory, Device, Mmap};
/// # let device = Device::open_default()?;
/// let mmap = Mmap::builder().device(&device).alloc(1 << 20)?;
/// let inventory = BufInventory::with_capacity(16);
/// let destination = inventory.buf(&mmap, 0..8192)?;
/// let source = inventory.buf_filled(&mmap, 8192..12288)?;
/// assert_eq!((destination.tailroom(), source.data_len()), (8192, 4096));
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone)]
#[doc(alias = "doca_buf_inventory")]
pub struct BufInventory(Arc<SlabHandle>);

impl BufInventory {
    /// Returns an inventory with `descriptors` descriptors, at most 16,777,214. Each Buf of the
    /// inventory uses one while it is alive.
    ///
    /// # Panics
    ///
    /// Panics if `descriptors` exceeds 16,777,214.
    #[doc(alias = "doca_buf_inventory_create")]
    pub fn with_capacity(descriptors: usize) -> BufInventory {
        let max = MAX_ELEMENTS;
        assert!(
            descriptors <= max,
            "an inventory has at most {max} descriptors, and {descriptors} were asked for"
        );
        BufInventory::on(Base::Own, descriptors)
    }

    /// Makes an inventory whose Bufs keep `base`.
    pub(in crate::mem) fn on(base: Base, descriptors: usize) -> BufInventory {
        BufInventory(Arc::new(Slab::build(descriptors, base, Element::unplaced)))
    }

    /// Makes a Buf on a range that lies in the Mmap. Returns `None` if all descriptors are in use.
    fn place(&self, mmap: &Mmap, range: Range<usize>) -> Option<Result<Buf, Busy>> {
        let element = self.0.take()?;
        Some(Handle::ranged(element, mmap, range).map(Buf))
    }

    /// Makes a Buf as `place` does, with all bytes as data.
    pub(in crate::mem) fn place_filled(
        &self,
        mmap: &Mmap,
        range: Range<usize>,
    ) -> Option<Result<Buf, Busy>> {
        let placed = self.place(mmap, range);
        placed.map(|buf| buf.inspect(|buf| buf.0.fill()))
    }

    /// Returns a Buf without data on a range, for use as a destination.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if the range ends before it begins or reaches past the Mmap; `InUse` if a
    /// pool or an array has a part of it; `NoMemory` if all descriptors are in use; `BadState`
    /// while the Mmap is stopped.
    #[doc(alias = "doca_buf_inventory_buf_by_addr")]
    #[doc(alias = "doca_buf_inventory_buf_by_args")]
    #[doc(alias = "doca_buf_inventory_buf_get_by_args")]
    #[doc(alias = "doca_buf_inventory_buf_get_by_addr")]
    #[doc(alias = "doca_buf_inventory_buf_dup")]
    pub fn buf(&self, mmap: &Mmap, range: impl RangeBounds<usize>) -> Result<Buf> {
        const OP: &str = "BufInventory::buf";
        let len = mmap.len();
        let range = MmapInner::resolve(range, len).map_err(|range| {
            let text = MmapInner::refusal(&range, len, "the Mmap");
            Error::new(ErrorKind::InvalidValue, OP, text)
        })?;
        match self.place(mmap, range.clone()) {
            Some(placed) => placed.map_err(|busy| busy.error(OP, &range)),
            None => {
                let full = JobError::new(Reason::InventoryEmpty, self.0.len() as u64, 0);
                Err(Error::new(full.kind(), OP, full.to_string()))
            }
        }
    }

    /// Returns a Buf on a range whose bytes are all data, for use as a source.
    ///
    /// # Errors
    ///
    /// As [`BufInventory::buf`].
    #[doc(alias = "doca_buf_inventory_buf_by_data")]
    #[doc(alias = "doca_buf_inventory_buf_get_by_data")]
    pub fn buf_filled(&self, mmap: &Mmap, range: impl RangeBounds<usize>) -> Result<Buf> {
        let buf = self
            .buf(mmap, range)
            .map_err(|error| error.with_call("BufInventory::buf_filled"))?;
        buf.0.fill();
        Ok(buf)
    }

    /// Returns the number of descriptors, used and unused.
    #[doc(alias = "doca_buf_inventory_get_num_elements")]
    pub fn descriptors(&self) -> usize {
        self.0.len()
    }
}

impl fmt::Debug for BufInventory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufInventory")
            .field("descriptors", &self.descriptors())
            .finish()
    }
}
