//! Cuts a range into elements of one size and claims it, for pools and arrays.

use std::ops::{Range, RangeBounds};

use crate::error::{Error, ErrorKind, Result};
use crate::mem::element::{Base, Element, MAX_ELEMENTS, Slab, SlabHandle};
use crate::mem::mmap::{Mmap, MmapInner};

pub(super) struct Cut {
    range: Range<usize>,
    first: usize,
    stride: usize,
    size: usize,
    count: usize,
}

impl Cut {
    /// Cuts the range into aligned elements of `size` bytes, the maximum number that fits.
    pub(super) fn new(
        op: &'static str,
        mmap: &Mmap,
        range: impl RangeBounds<usize>,
        size: usize,
        alignment: usize,
    ) -> Result<Cut> {
        let invalid = |text: String| Error::new(ErrorKind::InvalidValue, op, text);
        if size == 0 || !alignment.is_power_of_two() {
            return Err(invalid(format!(
                "elements of {size} bytes aligned to {alignment}: a size above 0 and a power of two"
            )));
        }
        let len = mmap.len();
        let range = MmapInner::resolve_some(range, len, "the Mmap").map_err(invalid)?;
        let base = mmap.0.at(range.start).addr().get();
        let first = range.start + (base.next_multiple_of(alignment) - base);
        let stride = size
            .checked_next_multiple_of(alignment)
            .unwrap_or(usize::MAX);
        // The last element needs no padding behind it.
        let free = range.end.saturating_sub(first);
        let count = if free < size {
            0
        } else {
            (free - size) / stride + 1
        };
        if count == 0 || count > MAX_ELEMENTS {
            let max = MAX_ELEMENTS;
            return Err(invalid(format!(
                "{count} elements of {size} bytes in {free}: it takes 1 to {max}"
            )));
        }
        Ok(Cut {
            range,
            first,
            stride,
            size,
            count,
        })
    }

    /// Keeps only the first `count` elements, so that the range behind them is not claimed.
    pub(super) fn limit(self, op: &'static str, count: usize) -> Result<Cut> {
        if count == 0 || count > self.count {
            let (size, fit) = (self.size, self.count);
            let text =
                format!("{count} elements of {size} bytes, and 1 to {fit} fit into the range");
            return Err(Error::new(ErrorKind::InvalidValue, op, text));
        }
        let end = self.first + (count - 1) * self.stride + self.size;
        Ok(Cut {
            range: self.range.start..end,
            count,
            ..self
        })
    }

    /// Claims the range, and makes the elements.
    pub(super) fn claim(&self, op: &'static str, mmap: &Mmap) -> Result<SlabHandle> {
        let range = self.range.clone();
        let claimed = mmap.0.ranges().claim(range.clone());
        claimed.map_err(|busy| busy.error(op, &range))?;
        let claim = Base::Claim(mmap.clone(), range);
        Ok(Slab::build(self.count, claim, |index, slab| {
            let start = self.first + index as usize * self.stride;
            Element::fixed(mmap, start..start + self.size, index, slab)
        }))
    }
}
