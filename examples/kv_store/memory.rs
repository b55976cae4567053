//! The memory of the store: a memfd that peers may read.

use std::ops::Range;
use std::os::fd::OwnedFd;

use tokio_doca::crc::{Crc, CrcOptions};
use tokio_doca::mem::{Access, BufInventory, Source};
use tokio_doca::{Buf, Device, Mmap, WorkQ};

use super::Result;

/// Peers may read: `export_rdma` gives them a descriptor that cannot write. The DPU right, although
/// no DPU gets an export, keeps the memfd from being sealed against new writers
/// ([`Mmap::export_dpu`]), because the next server is a new writer. On the software device, a
/// process of the same user can still write, by opening the descriptor anew.
const ACCESS: Access = Access::LOCAL_READ_WRITE
    .union(Access::RDMA_READ)
    .union(Access::DPU_READ_WRITE);

/// The store's memory. The server makes all its writes through this type.
pub(crate) struct Memory {
    mmap: Mmap,
    whole: Buf,
    ranges: BufInventory,
    crc: Crc,
    /// How many more of its simulated crashes this process survives. It may "die" before each
    /// write, and in the middle of one.
    #[cfg(test)]
    pub(crate) lives: std::cell::Cell<Option<usize>>,
}

impl Memory {
    pub(crate) fn open(memfd: OwnedFd, device: &Device, workq: &WorkQ) -> Result<Memory> {
        let builder = Mmap::builder().device(device).access(ACCESS);
        let mmap = builder.from_memfd(memfd, ..)?;
        let ranges = BufInventory::with_capacity(3);
        Ok(Memory {
            whole: ranges.buf_filled(&mmap, ..)?,
            ranges,
            mmap,
            crc: Crc::builder(device).attach(workq)?,
            #[cfg(test)]
            lives: std::cell::Cell::new(None),
        })
    }

    pub(crate) fn mmap(&self) -> &Mmap {
        &self.mmap
    }

    pub(crate) fn load(&self, at: usize) -> Result<u64> {
        Ok(u64::from_le(self.whole.load(at)?))
    }

    pub(crate) fn read(&self, at: usize, bytes: &mut [u8]) -> Result<()> {
        Ok(self.whole.copy_out(at, bytes)?)
    }

    pub(crate) fn store(&self, at: usize, word: u64) -> Result<()> {
        self.survives()?;
        Ok(self.whole.store(at, word.to_le())?)
    }

    pub(crate) fn write(&self, at: usize, bytes: &[u8]) -> Result<()> {
        self.survives()?;
        if let Err(died) = self.survives() {
            self.whole.copy_in(at, &bytes[..bytes.len() / 2])?;
            return Err(died);
        }
        Ok(self.whole.copy_in(at, bytes)?)
    }

    /// Has the device copy the data of `src` to `range`. Returns the CRC-32C of the data, from
    /// `seed` on.
    pub(crate) async fn copy(
        &self,
        src: impl Source,
        range: Range<usize>,
        seed: u32,
    ) -> Result<u32> {
        self.survives()?;
        let dst = self.ranges.buf(&self.mmap, range)?;
        let options = CrcOptions::new().seed(seed);
        Ok(self.crc.copy_crc_with(options, src, &dst).await?.crc)
    }

    /// Returns a range as the source of a copy.
    pub(crate) fn source(&self, range: Range<usize>) -> Result<Buf> {
        Ok(self.ranges.buf_filled(&self.mmap, range)?)
    }

    #[cfg(not(test))]
    fn survives(&self) -> Result<()> {
        Ok(())
    }

    #[cfg(test)]
    fn survives(&self) -> Result<()> {
        match self.lives.get() {
            Some(0) => return Err("killed".into()),
            lives => self.lives.set(lives.map(|lives| lives - 1)),
        }
        Ok(())
    }
}
