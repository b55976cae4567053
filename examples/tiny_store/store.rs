//! Blocks in memory that the device can access. The versions of a block alternate between two
//! slots, so that an interrupted write leaves the version before it intact.

use std::ops::Range;

use tokio::sync::{Mutex, MutexGuard};
use tokio_doca::crc::Crc;
use tokio_doca::mem::BufInventory;
use tokio_doca::{Buf, BufPool, Device, Dma, Mmap, WorkQ};

pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// The size of a block in bytes.
pub(crate) const BLOCK: usize = 4096;
pub(crate) const BLOCKS: usize = 1024;
/// The number of Bufs for blocks on their way from or to clients. Each client has at most one.
pub(crate) const CLIENTS: usize = 64;

/// The size of the memory: an entry for each of the two slots of each block, then the slots.
pub(crate) const MEMORY: usize = DATA + 2 * BLOCKS * BLOCK;
const DATA: usize = 2 * BLOCKS * ENTRY;
/// The size of an entry: the version and the CRC-32C of the data, as two `u64`.
const ENTRY: usize = 16;

fn place(block: usize, version: u64) -> usize {
    2 * block + (version % 2) as usize
}

/// Returns the range in the memory of a version's entry.
pub(crate) fn entry_at(block: usize, version: u64) -> Range<usize> {
    let start = place(block, version) * ENTRY;
    start..start + ENTRY
}

/// Returns the range in the memory of a version's data.
pub(crate) fn data_at(block: usize, version: u64) -> Range<usize> {
    let start = DATA + place(block, version) * BLOCK;
    start..start + BLOCK
}

pub(crate) struct Store {
    pub(crate) device: Device,
    pub(crate) workq: WorkQ,
    dma: Dma,
    crc: Crc,
    memory: Mmap,
    ranges: BufInventory,
    pool: BufPool,
    /// The latest version of each block; 0 if it was never written. Locked while the block is used.
    versions: Vec<Mutex<u64>>,
}

impl Store {
    pub(crate) fn new(device: &Device) -> Result<Store> {
        let workq = WorkQ::builder().build()?;
        let staging = Mmap::builder().device(device).alloc(CLIENTS * BLOCK)?;
        Ok(Store {
            dma: Dma::builder(device).attach(&workq)?,
            crc: Crc::builder(device).attach(&workq)?,
            memory: Mmap::builder().device(device).alloc(MEMORY)?,
            ranges: BufInventory::with_capacity(1024),
            pool: BufPool::builder(&staging).element_size(BLOCK).build()?,
            versions: (0..BLOCKS).map(|_| Mutex::new(0)).collect(),
            device: device.clone(),
            workq,
        })
    }

    /// Waits for an empty Buf of a block's size.
    pub(crate) async fn buf(&self) -> Buf {
        self.pool.alloc().await
    }

    /// Returns a range of the memory as a destination: all of it is tailroom.
    pub(crate) fn destination(&self, range: Range<usize>) -> Result<Buf> {
        Ok(self.ranges.buf(&self.memory, range)?)
    }

    /// Returns a range of the memory as a source: all of it is data.
    pub(crate) fn source(&self, range: Range<usize>) -> Result<Buf> {
        Ok(self.ranges.buf_filled(&self.memory, range)?)
    }

    /// Locks a block, and returns its version.
    pub(crate) async fn lock(&self, block: usize) -> Result<MutexGuard<'_, u64>> {
        let version = self.versions.get(block);
        let version = version.ok_or_else(|| format!("there are {BLOCKS} blocks"))?;
        Ok(version.lock().await)
    }

    /// Returns a copy of a block. A block that was never written is all zeroes.
    pub(crate) async fn read(&self, block: usize) -> Result<Buf> {
        let copy = self.buf().await; // before the lock: a Buf may be long in coming
        let version = self.lock(block).await?;
        let data = self.source(data_at(block, *version))?;
        self.dma.copy(&data, &copy).await?;
        Ok(copy)
    }

    /// Copies data to the slot of the next version, and returns the entry. The caller has locked
    /// the block, and then makes this version the latest.
    pub(crate) async fn put(&self, block: usize, version: u64, data: &Buf) -> Result<Buf> {
        if data.data_len() != BLOCK {
            return Err(format!("{} bytes, and a block has {BLOCK}", data.data_len()).into());
        }
        let to = self.destination(data_at(block, version))?;
        let copied = self.crc.copy_crc(data, &to).await?; // one pass over the data
        let entry = self.destination(entry_at(block, version))?;
        entry.extend_from_slice(&version.to_le_bytes())?;
        entry.extend_from_slice(&u64::from(copied.crc).to_le_bytes())?;
        Ok(entry)
    }

    /// Finds the latest version of each block in memory that another process has written.
    pub(crate) async fn recover(&self) -> Result<()> {
        for block in 0..BLOCKS {
            let mut latest = self.lock(block).await?;
            for at in 0..2 {
                let entry = self.source(entry_at(block, at))?;
                let mut words = [[0; 8]; 2];
                entry.copy_out(0, words.as_flattened_mut())?;
                let [version, crc] = words.map(u64::from_le_bytes);
                if version > *latest && version % 2 == at {
                    let data = self.source(data_at(block, version))?;
                    // The CRC of a block that was written in part does not match.
                    if u64::from(self.crc.crc32c(&data).await?) == crc {
                        *latest = version;
                    }
                }
            }
        }
        Ok(())
    }
}
