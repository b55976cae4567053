//! The checks of a memfd that an exporter sent, before it is mapped.
//!
//! The exporter may be hostile. The descriptor may be any file, or be shorter than the exporter
//! says. The exporter may shorten the file or punch holes while this process uses it. The file may
//! lack pages, so that this process would allocate them, or have more pages than the exporter says,
//! which this process would have to free.

use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::time::Instant;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::mman::MapFlags;
use nix::sys::stat::fstat;
use nix::sys::statfs::{HUGETLBFS_MAGIC, fstatfs};
use nix::unistd::{Whence, lseek};

use super::mapping::Mapping;
use super::pages;
use crate::error::{Error, ErrorKind, Result};
use crate::process::page_size;

/// The number of bytes that are mapped between two checks of the time limit: four page faults of
/// sixteen pages each. An exporter that punches holes may delay each fault for as long as it does
/// so.
const PIECE: usize = 256 << 10;

fn os(what: &str) -> impl Fn(Errno) -> Error {
    move |errno| {
        Error::os(
            None,
            format!("{what} of the exporter's memfd"),
            errno.into(),
        )
    }
}

/// The properties of a memfd.
struct Kind {
    /// True if the memfd is sealed against writing.
    fixed: bool,
    huge: bool,
    /// The size of a page in bytes.
    page: u64,
}

/// The sizes of a memfd, in bytes.
struct Size {
    /// The length of the file.
    file: u64,
    /// The length of the pages that are mapped, a multiple of the page size.
    whole: NonZeroUsize,
    /// The size of the pages that were allocated before this process maps the memfd.
    paid: u64,
}

/// Maps a memfd of `len` bytes, with all its pages, by the deadline.
///
/// # Errors
///
/// `NotPermitted` if no honest exporter would send the memfd; `TimedOut` after the deadline;
/// `OperatingSystem` if the kernel refuses a call.
pub(in super::super) fn map(
    memfd: &OwnedFd,
    len: u64,
    write: bool,
    deadline: Instant,
) -> Result<Mapping> {
    let kind = Kind::check(memfd, write)?;
    let size = Size::check(memfd, len, &kind)?;
    // No process can write a memfd that is sealed against writing. Before Linux 6.7 such a memfd
    // could only be mapped privately.
    let sharing = match kind.fixed {
        true => MapFlags::MAP_PRIVATE,
        false => MapFlags::MAP_SHARED,
    };
    let map = |flags| {
        let mapped = Mapping::new(memfd, size.whole, write, flags);
        let what = || format!("mmap of {} bytes", size.whole);
        mapped.map_err(|errno| Error::os(None, what(), errno.into()))
    };
    let mut mapping = map(sharing)?;
    let piece = PIECE.next_multiple_of(usize::try_from(kind.page).unwrap_or(PIECE));
    if !populate(&mapping, piece, memfd, &size, deadline)? {
        mapping = map(sharing | MapFlags::MAP_POPULATE)?;
        size.check_unpaid(memfd)?;
    }
    mapping
        .keep_from_children()
        .map_err(os("madvise(MADV_DONTFORK)"))?;
    Ok(mapping)
}

fn hostile<T>(text: String) -> Result<T> {
    Err(Error::new(ErrorKind::NotPermitted, None, text))
}

impl Kind {
    /// Returns an error if the file is no memfd, if it could be shortened, or if `write` is set and
    /// it cannot be written.
    fn check(memfd: &OwnedFd, write: bool) -> Result<Kind> {
        // This call comes first: it succeeds only for memory, so that no later call is made on
        // another kind of file.
        let Ok(seals) = fcntl(memfd, FcntlArg::F_GET_SEALS) else {
            return hostile("the exporter sent a descriptor that is no memfd".to_owned());
        };
        let seals = SealFlag::from_bits_retain(seals);
        let needed = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        if !seals.contains(needed) {
            let lacks = needed - seals;
            return hostile(format!(
                "the exporter's memfd lacks the seals {lacks:?}: it could be shortened under this \
                 process, which would be a SIGBUS"
            ));
        }
        let fs = fstatfs(memfd).map_err(os("fstatfs"))?;
        let huge = fs.filesystem_type() == HUGETLBFS_MAGIC;
        let fixed = seals.contains(SealFlag::F_SEAL_WRITE);
        if write && fixed {
            return hostile(
                "the exporter's memfd is sealed against writing, which the export permits: what \
                 this process wrote would be in pages of its own"
                    .to_owned(),
            );
        }
        if huge && !fixed && !seals.contains(SealFlag::F_SEAL_FUTURE_WRITE) {
            return hostile(
                "the exporter's memfd has huge pages and can be punched, which would be a SIGBUS \
                 here"
                    .to_owned(),
            );
        }
        let page = match huge {
            true => fs.block_size() as u64,
            false => page_size() as u64,
        };
        Ok(Kind { fixed, huge, page })
    }
}

impl Size {
    /// Returns an error unless the memfd has `len` bytes and less than a page more, and all of the
    /// pages for `len` bytes.
    fn check(memfd: &OwnedFd, len: u64, kind: &Kind) -> Result<Size> {
        let page = kind.page;
        let stat = fstat(memfd).map_err(os("fstat"))?;
        let file = u64::try_from(stat.st_size).unwrap_or(0);
        // An honest exporter's memory is all of its memfd (`sent::check_whole`).
        let fits = len <= file && file < len.saturating_add(page);
        let whole = len
            .checked_next_multiple_of(page)
            .and_then(|len| usize::try_from(len).ok());
        let Some(whole) = whole.and_then(NonZeroUsize::new).filter(|_| fits) else {
            return hostile(format!(
                "the exporter says that its memory is {len} bytes, and sent a memfd of {file} \
                 bytes in pages of {page}"
            ));
        };
        // A process that populates a mapping (MAP_POPULATE) allocates the pages of its holes. If
        // the memfd has fewer blocks than bytes, it has a hole. If it has blocks for all its bytes,
        // there may still be a hole, since blocks can lie behind the end; then the number of blocks
        // grows while the memory is mapped. SEEK_HOLE alone is no better check, as it also reports
        // pages as holes that fallocate(2) has allocated.
        let paid = blocks(memfd)?;
        if pages::are_behind(paid, file) {
            return hostile(format!(
                "the exporter's memfd of {file} bytes has pages for {paid}"
            ));
        }
        if paid < file && (kind.huge || first_hole(memfd)? < len) {
            return with_holes(file);
        }
        Ok(Size { file, whole, paid })
    }

    /// Returns an error if the memfd has more pages now than its exporter has allocated: mapping it
    /// here has filled its holes.
    fn check_unpaid(&self, memfd: &OwnedFd) -> Result<()> {
        match blocks(memfd)? > self.paid {
            true => with_holes(self.file),
            false => Ok(()),
        }
    }
}

/// Makes the kernel map all pages of a mapping by the deadline. Returns `false` before Linux 5.14,
/// which cannot do it piece by piece. Then only `MAP_POPULATE` is left, which does not report
/// failures.
fn populate(
    mapping: &Mapping,
    piece: usize,
    memfd: &OwnedFd,
    size: &Size,
    deadline: Instant,
) -> Result<bool> {
    let whole = size.whole.get();
    let mut done = 0;
    while done < whole {
        if Instant::now() >= deadline {
            let text = format!(
                "{done} of the exporter's {whole} bytes were mapped within the time limit: give it \
                 more time, unless the exporter punches holes into its memory meanwhile"
            );
            return Err(Error::new(ErrorKind::TimedOut, None, text));
        }
        let end = done.saturating_add(piece).min(whole);
        // The pages are populated for reading, even if they will be written: for shared memory this
        // also maps writable pages, and sixteen per fault instead of one.
        match mapping.populate(done..end) {
            Ok(()) => done = end,
            Err(Errno::EINVAL) => return Ok(false),
            Err(errno) => {
                let what = format!("madvise(MADV_POPULATE) of {whole} bytes");
                return Err(Error::os(None, what, errno.into()));
            }
        }
        size.check_unpaid(memfd)?;
    }
    Ok(true)
}

fn with_holes<T>(size: u64) -> Result<T> {
    hostile(format!(
        "the exporter's memfd of {size} bytes has holes, and this process would have to take their pages"
    ))
}

fn blocks(memfd: &OwnedFd) -> Result<u64> {
    pages::bytes(memfd).map_err(os("fstat"))
}

fn first_hole(memfd: &OwnedFd) -> Result<u64> {
    let hole = lseek(memfd, 0, Whence::SeekHole).map_err(os("lseek(SEEK_HOLE)"))?;
    Ok(u64::try_from(hole).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::thread;
    use std::time::Duration;

    use nix::fcntl::{FallocateFlags, fallocate};
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use nix::unistd::ftruncate;

    use super::super::pages::tests::more_than;
    use super::*;

    const LEN: i64 = 8 << 20;

    fn memory() -> OwnedFd {
        let memfd = memfd_create(c"test", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        ftruncate(&memfd, LEN).unwrap();
        fallocate(&memfd, FallocateFlags::empty(), 0, LEN).unwrap();
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&memfd, FcntlArg::F_ADD_SEALS(seals)).unwrap();
        memfd
    }

    fn map_within(memfd: &OwnedFd, limit: Duration) -> Result<Mapping> {
        map(memfd, LEN as u64, true, Instant::now() + limit)
    }

    #[test]
    fn memory_is_mapped_by_the_deadline_or_not_at_all() {
        let memfd = memory();
        let late = map_within(&memfd, Duration::ZERO).err().unwrap();
        assert_eq!(late.kind(), ErrorKind::TimedOut, "{late}");
        assert_eq!(
            map_within(&memfd, Duration::from_secs(60)).unwrap().len(),
            LEN as usize
        );
    }

    #[test]
    fn an_exporter_that_punches_meanwhile_is_waited_for_no_longer() {
        let (memfd, over) = (memory(), AtomicBool::new(false));
        let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    fallocate(&memfd, punch, 0, LEN).unwrap();
                    fallocate(&memfd, FallocateFlags::empty(), 0, LEN).unwrap();
                }
            });
            for _ in 0..10 {
                match map_within(&memfd, Duration::from_millis(5)) {
                    Ok(mapping) => assert_eq!(mapping.len(), LEN as usize),
                    Err(error) => assert!(
                        [ErrorKind::TimedOut, ErrorKind::NotPermitted].contains(&error.kind()),
                        "{error}"
                    ),
                }
            }
            over.store(true, Relaxed);
        });
    }

    #[test]
    fn blocks_behind_the_end_are_no_pages() {
        let memfd = memfd_create(c"test", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        ftruncate(&memfd, LEN).unwrap();
        fallocate(&memfd, FallocateFlags::FALLOC_FL_KEEP_SIZE, LEN, LEN).unwrap();
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&memfd, FcntlArg::F_ADD_SEALS(seals)).unwrap();
        let before = blocks(&memfd).unwrap();
        assert!(before >= LEN as u64);
        let error = map_within(&memfd, Duration::from_secs(60)).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::NotPermitted, "{error}");
        // At most one piece was allocated before the number of blocks was noticed.
        assert!(blocks(&memfd).unwrap() <= before + PIECE as u64);
    }

    #[test]
    fn memory_that_is_more_than_was_exported_is_refused() {
        let refused = |memfd: &OwnedFd, len: i64| {
            let end = Instant::now() + Duration::from_secs(60);
            let error = map(memfd, len as u64, true, end).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::NotPermitted, "{error}");
        };
        refused(&memory(), LEN - 4096);
        refused(&memory(), 1);
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        refused(&more_than(LEN, seals), LEN);
    }
}
