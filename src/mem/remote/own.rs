//! Descriptors for ranges of memory that this process both exported and imported.
//!
//! A range of own memory is a Buf, so that its leases are in the trees of the Mmap (ADR 0022). Its
//! descriptor comes from an inventory of the import, which adds a table when more ranges are alive
//! than ever before. Apart from that, making a range allocates nothing. A job never allocates (ADR
//! 0036).

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use crate::device::ImportOrigin;
use crate::mem::buf::Buf;
use crate::mem::element::{Base, MAX_ELEMENTS};
use crate::mem::mmap::Mmap;
use crate::mem::pool::BufInventory;
use crate::mem::ranges::Busy;

/// The number of ranges that can be alive before the first table is added.
const FIRST: usize = 16;

/// An Mmap that this process has both exported and imported, and descriptors for ranges of the
/// import.
pub(super) struct Own {
    pub(super) mmap: Mmap,
    origin: Arc<dyn ImportOrigin>,
    first: Descriptors,
}

/// An inventory, and a larger one that is made once this one has no descriptors left.
struct Descriptors {
    inventory: BufInventory,
    more: OnceLock<Box<Descriptors>>,
}

impl Descriptors {
    fn new(origin: &Arc<dyn ImportOrigin>, len: usize) -> Descriptors {
        // Until its last Buf and lease are gone, an inventory keeps the origin, and with it the
        // key.
        let base = Base::Import(Arc::clone(origin));
        Descriptors {
            inventory: BufInventory::on(base, len.min(MAX_ELEMENTS)),
            more: OnceLock::new(),
        }
    }
}

impl Own {
    pub(super) fn new(mmap: Mmap, origin: &Arc<dyn ImportOrigin>) -> Own {
        Own {
            mmap,
            origin: Arc::clone(origin),
            first: Descriptors::new(origin, FIRST),
        }
    }

    /// Returns a Buf on a range that lies in the Mmap. All of its bytes are data.
    pub(super) fn buf(&self, range: Range<usize>) -> Result<Buf, Busy> {
        let mut at = &self.first;
        loop {
            if let Some(placed) = at.inventory.place_filled(&self.mmap, range.clone()) {
                return placed;
            }
            let twice = 2 * at.inventory.descriptors();
            let grow = || Box::new(Descriptors::new(&self.origin, twice));
            at = at.more.get_or_init(grow);
        }
    }
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use super::*;
    use crate::device::{Access, Audience, Device, Imported};
    use crate::mem::remote::mmap::tests::Always;
    use crate::mem::remote::{RemoteMmap, RemoteRead};

    #[test]
    fn a_lease_on_own_memory_keeps_the_origin_of_the_import() {
        let device = Device::open("pf0").unwrap();
        let access = Access::LOCAL_READ_WRITE | Access::DPU_READ_WRITE;
        let builder = Mmap::builder().device(&device).access(access);
        let mmap = builder.alloc(4096).unwrap();
        let origin: Arc<dyn ImportOrigin> = Arc::new(Always);
        let kept = Arc::downgrade(&origin);
        let (region, access) = (mmap.0.region(), Access::DPU_READ_WRITE);
        let imported =
            Imported::new(region.addr(), 4096, access, Audience::Dpu, 0, origin).with_owner(mmap.0);
        let remote = RemoteMmap::new(&device, imported).unwrap();
        // The last range is from an inventory that was added.
        let range = || remote.buf(..64).unwrap();
        let ranges: Vec<_> = std::iter::repeat_with(range).take(FIRST + 1).collect();
        let lease = |range| RemoteRead::begin(range).unwrap();
        let leases = [&ranges[0], &ranges[FIRST]].map(lease);
        drop((ranges, remote));
        for lease in leases {
            assert!(kept.upgrade().is_some(), "a job may use its key");
            drop(lease);
        }
        assert!(kept.upgrade().is_none(), "nothing keeps it");
    }
}
