//! The disk: an Mmap, the jobs that write it, and the file behind it.

use std::fs::File;
use std::io;
use std::iter::from_fn;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::fcntl::Flock;
use tokio::sync::RwLock;
use tokio_doca::crc::{Crc, CrcOptions};
use tokio_doca::mem::{BufInventory, CopySource};
use tokio_doca::{Buf, BufPool, Device, Dma, Mmap, WorkQ};

use super::flags::Values;
use super::{CLIENTS, Result, mapped};

/// The number of bytes that one job writes to the disk, which the software device copies at once.
pub(crate) const PART: usize = 64 << 10;
/// The number of locks that the parts of the disk share.
const LOCKS: usize = 1024;

pub(crate) struct Disk {
    pub(crate) name: String,
    pub(crate) read_only: bool,
    /// Verify each write by its checksum.
    pub(crate) checksums: bool,
    /// How long a client may keep the server waiting within a request, besides the time for its
    /// bytes.
    pub(crate) stall: Duration,
    mmap: Mmap,
    /// Allocates Bufs over any range of the disk.
    ranges: BufInventory,
    /// Bufs that receive the data of writes.
    pub(crate) pool: BufPool,
    zeroes: Buf,
    dma: Dma,
    crc: Crc,
    file: Option<Arc<Flock<File>>>,
    /// Lock `n % LOCKS` protects part `n` of the disk. The locks are fair: a waiting writer comes
    /// before readers that arrive later.
    locks: Vec<RwLock<()>>,
}

/// Divides a range of the disk at the multiples of [`PART`], so that one lock covers each piece.
pub(crate) fn parts(mut range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    from_fn(move || {
        let at = range.start;
        range.start = range.end.min((at / PART + 1) * PART);
        (at < range.end).then_some(at..range.start)
    })
}

impl Disk {
    pub(crate) fn open(
        device: &Device,
        file: Option<&Path>,
        size: usize,
        with: &Values,
    ) -> Result<Disk> {
        let (mmap, file) = match file {
            None => (Mmap::builder().device(device).alloc(size)?, None),
            Some(path) => {
                let (mmap, file) = mapped::open(device, path, size, with.has("--read-only"))?;
                (mmap, Some(Arc::new(file)))
            }
        };
        // One Buf for each client, and one that holds zeroes.
        let memory = Mmap::builder().device(device).alloc(PART * (CLIENTS + 1))?;
        let pool = BufPool::builder(&memory).element_size(PART).build()?;
        let zeroes = pool.try_alloc()?;
        zeroes.set_data(0, PART)?;
        let workq = WorkQ::builder().build()?;
        Ok(Disk {
            name: with.get("--export").to_owned(),
            read_only: with.has("--read-only"),
            checksums: with.has("--checksums"),
            stall: Duration::from_millis(with.get("--stall-ms").parse()?),
            mmap,
            ranges: BufInventory::with_capacity(2 * CLIENTS),
            pool,
            zeroes,
            dma: Dma::builder(device).attach(&workq)?,
            crc: Crc::builder(device).attach(&workq)?,
            file,
            locks: (0..LOCKS).map(|_| RwLock::new(())).collect(),
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.mmap.len()
    }

    /// Returns true if `name` is the disk's name or is empty.
    pub(crate) fn is_named(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }

    /// Returns the range of a request, or `None` if it exceeds the disk.
    pub(crate) fn range(&self, at: u64, len: u32) -> Option<Range<usize>> {
        let at = usize::try_from(at).ok()?;
        let end = at.checked_add(len as usize)?;
        (end <= self.len()).then_some(at..end)
    }

    /// Returns a Buf over a range of the disk, all of it data.
    pub(crate) fn part(&self, range: Range<usize>) -> io::Result<Buf> {
        Ok(self.ranges.buf_filled(&self.mmap, range)?)
    }

    /// The lock of a part that lies between two multiples of [`PART`].
    pub(crate) fn lock(&self, part: &Range<usize>) -> &RwLock<()> {
        &self.locks[part.start / PART % LOCKS]
    }

    /// Copies the data of `src` to a part of the disk.
    pub(crate) async fn write(&self, src: &Buf, part: Range<usize>) -> io::Result<()> {
        if !self.checksums {
            return self.copy(src, part).await;
        }
        // The lock is held during both jobs, so that the data that is read back is the data just
        // written.
        let _held = self.lock(&part).write().await;
        let dst = self.ranges.buf(&self.mmap, part.clone())?;
        let copied = self.crc.copy_crc(src, &dst).await?;
        drop(dst);
        let (back, expected) = (self.part(part)?, CrcOptions::new().expected(copied.crc));
        self.crc.crc32c_with(expected, &back).await?;
        Ok(())
    }

    /// Writes zeroes to a range of the disk.
    pub(crate) async fn zero(&self, range: Range<usize>) -> io::Result<()> {
        for part in parts(range) {
            self.copy(&self.zeroes.slice(..part.len())?, part).await?;
        }
        Ok(())
    }

    async fn copy<S>(&self, src: S, part: Range<usize>) -> io::Result<()>
    where
        S: CopySource,
    {
        let _held = self.lock(&part).write().await;
        let dst = self.ranges.buf(&self.mmap, part)?;
        self.dma.copy(src, &dst).await?;
        Ok(())
    }

    /// Waits until all data that was written before the call is on stable storage.
    pub(crate) async fn flush(&self) -> io::Result<()> {
        let Some(file) = self.file.clone() else {
            return Ok(());
        };
        // This also writes the pages that jobs have changed (fsync(2), mmap(2)).
        tokio::task::spawn_blocking(move || file.sync_data()).await?
    }

    /// Returns the CRC-32C of the disk.
    pub(crate) async fn checksum(&self) -> io::Result<u32> {
        let mut crc = 0;
        for part in parts(0..self.len()) {
            let _held = self.lock(&part).read().await;
            let (seed, part) = (CrcOptions::new().seed(crc), self.part(part)?);
            crc = self.crc.crc32c_with(seed, &part).await?;
        }
        Ok(crc)
    }
}
