//! The disk: an Mmap, the jobs that write it, and the file behind it.

use std::fs::File;
use std::future::{Future, ready};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;

use nix::fcntl::Flock;
use tokio::sync::Notify;
use tokio_doca::crc::{Crc, CrcOptions};
use tokio_doca::error::JobError;
use tokio_doca::mem::{BufData, BufInventory, CopySource};
use tokio_doca::{Buf, BufPool, Device, Dma, ErrorKind, Mmap, WorkQ};

use super::flags::Values;
use super::{CLIENTS, Result, mapped};

/// Bytes that go to the disk by one job: what the software device copies at once.
pub(crate) const PART: usize = 64 << 10;

pub(crate) struct Disk {
    pub(crate) name: String,
    pub(crate) read_only: bool,
    /// Each write is checked.
    pub(crate) checksums: bool,
    mmap: Mmap,
    /// Bufs on any range of the disk.
    ranges: BufInventory,
    /// Bufs that a write comes into.
    pub(crate) pool: BufPool,
    zeroes: Buf,
    dma: Dma,
    crc: Crc,
    file: Option<Arc<Flock<File>>>,
    /// A lease on a part of the disk was returned.
    freed: Notify,
}

/// Tells those that wait for a lease, when it is dropped, that one was returned.
pub(crate) struct Returned<'a>(&'a Notify);

impl Drop for Returned<'_> {
    fn drop(&mut self) {
        self.0.notify_waiters();
    }
}

fn is_in_use<T>(result: &Result<T, JobError>) -> bool {
    matches!(result, Err(error) if error.kind() == ErrorKind::InUse)
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
                let (mmap, file) = mapped::open(device, path, size)?;
                (mmap, Some(Arc::new(file)))
            }
        };
        // One for each client, and the zeroes.
        let memory = Mmap::builder().device(device).alloc(PART * (CLIENTS + 1))?;
        let pool = BufPool::builder(&memory).element_size(PART).build()?;
        let zeroes = pool.try_alloc()?;
        zeroes.set_data(0, PART)?;
        let workq = WorkQ::builder().build()?;
        Ok(Disk {
            name: with.get("--export").to_owned(),
            read_only: with.has("--read-only"),
            checksums: with.has("--checksums"),
            mmap,
            ranges: BufInventory::with_capacity(2 * CLIENTS),
            pool,
            zeroes,
            dma: Dma::builder(device).attach(&workq)?,
            crc: Crc::builder(device).attach(&workq)?,
            file,
            freed: Notify::new(),
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.mmap.len()
    }

    /// Whether this is what a client calls it; no name is as good.
    pub(crate) fn is_named(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }

    /// The bytes of a request; `None` if the disk does not have them.
    pub(crate) fn range(&self, at: u64, len: u32) -> Option<Range<usize>> {
        let at = usize::try_from(at).ok()?;
        let end = at.checked_add(len as usize)?;
        (end <= self.len()).then_some(at..end)
    }

    /// A Buf that is this part of the disk: its data.
    pub(crate) fn part(&self, range: Range<usize>) -> io::Result<Buf> {
        Ok(self.ranges.buf_filled(&self.mmap, range)?)
    }

    /// Waits until nobody writes the part, and lends its bytes. Others may read it too.
    pub(crate) async fn lend<'a>(&self, part: &'a Buf) -> io::Result<BufData<'a>> {
        Ok(self.when_free(|| ready(part.data())).await?)
    }

    /// To be made before what is lent, so that it is dropped afterwards.
    pub(crate) fn returned(&self) -> Returned<'_> {
        Returned(&self.freed)
    }

    /// Copies the data of `src` to the disk.
    pub(crate) async fn write(&self, src: &Buf, at: usize) -> io::Result<()> {
        let range = at..at + src.data_len();
        if !self.checksums {
            return self.copy(src, range).await;
        }
        let _returned = self.returned();
        let dst = self.ranges.buf(&self.mmap, range.clone())?;
        let copied = self.when_free(|| self.crc.copy_crc(src, &dst)).await?;
        drop(dst);
        let (back, expected) = (self.part(range)?, CrcOptions::new().expected(copied.crc));
        self.when_free(|| self.crc.crc32c_with(expected, &back))
            .await?;
        Ok(())
    }

    /// Writes zeroes.
    pub(crate) async fn zero(&self, range: Range<usize>) -> io::Result<()> {
        for at in range.clone().step_by(PART) {
            let len = PART.min(range.end - at);
            self.copy(&self.zeroes.slice(..len)?, at..at + len).await?;
        }
        Ok(())
    }

    async fn copy<S>(&self, src: S, range: Range<usize>) -> io::Result<()>
    where
        S: CopySource + Copy,
    {
        let _returned = self.returned();
        let dst = self.ranges.buf(&self.mmap, range)?;
        self.when_free(|| self.dma.copy(src, &dst)).await?;
        Ok(())
    }

    /// What was written before it is safe once this is ready.
    pub(crate) async fn flush(&self) -> io::Result<()> {
        let Some(file) = self.file.clone() else {
            return Ok(());
        };
        // The pages that jobs wrote are written as well (fsync(2), mmap(2)).
        tokio::task::spawn_blocking(move || file.sync_data()).await?
    }

    /// The CRC-32C of the disk.
    pub(crate) async fn checksum(&self) -> io::Result<u32> {
        let mut crc = 0;
        for at in (0..self.len()).step_by(PART) {
            let part = self.part(at..self.len().min(at + PART))?;
            let seed = CrcOptions::new().seed(crc);
            let _returned = self.returned();
            crc = self.when_free(|| self.crc.crc32c_with(seed, &part)).await?;
        }
        Ok(crc)
    }

    /// Does it; while a job or a guard has the bytes, waits until one was returned.
    async fn when_free<T, F>(&self, mut attempt: impl FnMut() -> F) -> Result<T, JobError>
    where
        F: Future<Output = Result<T, JobError>>,
    {
        let mut result = attempt().await;
        while is_in_use(&result) {
            let mut freed = pin!(self.freed.notified());
            freed.as_mut().enable();
            result = attempt().await;
            if is_in_use(&result) {
                freed.await;
            }
        }
        result
    }
}
