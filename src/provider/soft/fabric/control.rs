//! The control page of an exporting process. It has a word for each slot, which importers read
//! before each operation.
//!
//! | word | meaning |
//! |---|---|
//! | generation | exported; the generation is never 0, and each export of a slot has the next |
//! | 0, or another number | taken back |
//!
//! The last word is the owner's: the kernel marks it once the process has ended ([`Owner`]).
//!
//! All exports share one memfd, which is sealed before the first importer gets it. The kernel then
//! allows only the exporter to write it, and allows no process to shorten it. An importer reads
//! there what the exporter states about its own exports; nothing else depends on the page. A
//! Relaxed load is enough, since memory that was taken back stays mapped until the importer drops
//! it.
#![expect(unsafe_code, reason = "words in memory that processes share")]

use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::MapFlags;
use nix::sys::stat::fstat;
use nix::sys::statfs::{HUGETLBFS_MAGIC, fstatfs};

use super::memory::Mapping;
use super::memory::pages;
use super::protocol::SLOTS;
use crate::error::{Error, Result};
use crate::process::lengthen;

mod owner;

pub(super) use owner::Owner;

/// The index of the owner's word, which follows the words of all slots.
const OWNER: usize = SLOTS;
const BYTES: NonZeroUsize = NonZeroUsize::new(4 * (OWNER + 1)).expect("64 KiB");

/// The control page of this process.
pub(super) struct Control {
    memfd: Arc<OwnedFd>,
    words: Words,
}

/// A control page of this process or of another process, for reading.
#[derive(Clone)]
pub(super) struct Words(Arc<Mapping>);

/// One word of a control page.
#[derive(Clone)]
pub(super) struct Word {
    at: NonNull<AtomicU32>,
    _words: Words,
}

// SAFETY: the word is an atomic, in memory that `_words` keeps mapped.
unsafe impl Send for Word {}
// SAFETY: as above.
unsafe impl Sync for Word {}

fn seals() -> SealFlag {
    SealFlag::F_SEAL_SHRINK
        | SealFlag::F_SEAL_GROW
        | SealFlag::F_SEAL_FUTURE_WRITE
        | SealFlag::F_SEAL_SEAL
}

impl Control {
    pub(super) fn new() -> Result<Control> {
        let os = |errno: Errno| Error::os(None, "the control page", errno.into());
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let memfd = memfd_create(c"tokio-doca-control", flags).map_err(os)?;
        lengthen(&memfd, BYTES.get())?;
        fallocate(&memfd, FallocateFlags::empty(), 0, BYTES.get() as i64).map_err(os)?;
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_POPULATE;
        let mapping = Mapping::new(&memfd, BYTES, true, flags).map_err(os)?;
        let words = Words(Arc::new(mapping));
        // From here on no process can map the memfd for writing, even if it has the descriptor.
        fcntl(&memfd, FcntlArg::F_ADD_SEALS(seals())).map_err(os)?;
        let memfd = Arc::new(memfd);
        Ok(Control { memfd, words })
    }

    pub(super) fn memfd(&self) -> &Arc<OwnedFd> {
        &self.memfd
    }

    pub(super) fn words(&self) -> &Words {
        &self.words
    }

    /// Stores a slot's generation, or 0.
    pub(super) fn set(&self, slot: u32, value: u32) {
        let word = self.words.word(slot).expect("a slot of the table");
        // The store need not be ordered with importers' accesses to the memory.
        word.atomic().store(value, Relaxed);
    }
}

impl Words {
    /// Returns the device and the inode of a page that an exporter sent. Returns `EBADMSG` if it is
    /// not a page as [`Control`] makes them.
    pub(super) fn identify(memfd: &OwnedFd) -> nix::Result<(u64, u64)> {
        // This call comes first: it succeeds only for memory, so that no later call is made on
        // another kind of file.
        let have = fcntl(memfd, FcntlArg::F_GET_SEALS).map_err(|_| Errno::EBADMSG)?;
        let have = SealFlag::from_bits_retain(have);
        let stat = fstat(memfd)?;
        let huge = fstatfs(memfd)?.filesystem_type() == HUGETLBFS_MAGIC;
        let more = pages::are_behind(pages::bytes(memfd)?, BYTES.get() as u64);
        if !have.contains(seals()) || stat.st_size != BYTES.get() as i64 || huge || more {
            return Err(Errno::EBADMSG);
        }
        Ok((stat.st_dev, stat.st_ino))
    }

    /// Maps a page that an exporter sent, and that [`identify`](Words::identify) accepts.
    pub(super) fn received(memfd: &OwnedFd) -> nix::Result<Words> {
        Self::identify(memfd)?;
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_POPULATE;
        let mapping = Mapping::new(memfd, BYTES, false, flags)?;
        // Before Linux 5.14 (EINVAL), MAP_POPULATE must suffice.
        match mapping.populate(0..mapping.len()) {
            Ok(()) | Err(Errno::EINVAL) => Ok(Words(Arc::new(mapping))),
            Err(errno) => Err(errno),
        }
    }

    /// Returns the word of a slot, and `None` beyond the last slot.
    pub(super) fn word(&self, slot: u32) -> Option<Word> {
        let slot = usize::try_from(slot).ok().filter(|&slot| slot < SLOTS)?;
        self.at(slot)
    }

    /// Returns the owner's word.
    pub(super) fn owner(&self) -> Word {
        self.at(OWNER).expect("the last word of the page")
    }

    /// Returns the word at this index, and `None` beyond the page.
    fn at(&self, word: usize) -> Option<Word> {
        let base = self.0.base().cast::<AtomicU32>().as_ptr();
        let word = Some(word).filter(|word| *word <= OWNER)?;
        Some(Word {
            at: NonNull::new(base.wrapping_add(word))?,
            _words: self.clone(),
        })
    }
}

impl Word {
    #[inline]
    pub(super) fn get(&self) -> u32 {
        // A Relaxed load of four bytes is allowed on memory that is mapped read-only
        // (std::sync::atomic).
        self.atomic().load(Relaxed)
    }

    #[inline]
    fn atomic(&self) -> &AtomicU32 {
        // SAFETY:
        // - The word lies within the page, which `_words` keeps mapped, at a multiple of 4.
        // - This process and the kernel reach it only by atomics. Another process can write only
        //   words of its own.
        unsafe { self.at.as_ref() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::pages::tests::more_than;
    use nix::unistd::ftruncate;

    use super::*;

    #[test]
    fn an_importer_reads_what_the_exporter_says_and_cannot_write() {
        let control = Control::new().unwrap();
        let words = Words::received(&control.memfd).unwrap();
        let last = SLOTS as u32 - 1;
        assert_eq!(words.word(last).unwrap().get(), 0);
        control.set(last, 7);
        assert_eq!(words.word(last).unwrap().get(), 7);
        assert!(words.word(SLOTS as u32).is_none());
        let write = Mapping::new(&control.memfd, BYTES, true, MapFlags::MAP_SHARED);
        assert_eq!(write.err(), Some(Errno::EPERM));
    }

    #[test]
    fn pages_that_somebody_could_write_or_cut_are_refused() {
        let all = seals();
        for missing in [
            SealFlag::F_SEAL_SHRINK,
            SealFlag::F_SEAL_GROW,
            SealFlag::F_SEAL_FUTURE_WRITE,
            SealFlag::F_SEAL_SEAL,
            SealFlag::empty(),
        ] {
            let len = if missing.is_empty() {
                4096
            } else {
                BYTES.get()
            };
            let memfd = memfd_create(c"test", MFdFlags::MFD_ALLOW_SEALING).unwrap();
            ftruncate(&memfd, len as i64).unwrap();
            fcntl(&memfd, FcntlArg::F_ADD_SEALS(all - missing)).unwrap();
            assert_eq!(
                Words::received(&memfd).err(),
                Some(Errno::EBADMSG),
                "{missing:?}"
            );
        }
        let more = more_than(BYTES.get() as i64, all);
        assert_eq!(Words::received(&more).err(), Some(Errno::EBADMSG));
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(Words::received(&file.into()).is_err());
    }
}
