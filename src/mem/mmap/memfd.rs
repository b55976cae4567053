//! Memory in a memfd: one that is created here, or the application's.
//!
//! All of it is populated (a page fault costs as much as copying 20 to 40 pages) and not inherited
//! by a child of `fork`. The application's memfd is sealed against shrinking, since a thread that
//! touches a page that was cut off gets a SIGBUS.
#![expect(unsafe_code, reason = "maps memory")]

use std::num::NonZeroUsize;
use std::ops::{Range, RangeBounds};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, OFlag, SealFlag, fallocate, fcntl, open};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap};
use nix::sys::stat::{Mode, fstat};
use nix::sys::statfs::{HUGETLBFS_MAGIC, fstatfs};

use super::huge::{self, HugePages};
use super::memory::{Mapping, Memory};
use super::mmap::MmapInner;
use crate::error::{Error, ErrorKind, Result};
use crate::process::{lengthen, page_size};

const ALLOC: &str = "MmapBuilder::alloc";
const FROM_MEMFD: &str = "MmapBuilder::from_memfd";

/// Allocates `len` bytes of zeroed memory.
pub(super) fn alloc(len: NonZeroUsize, huge: Option<HugePages>) -> Result<Memory> {
    i64::try_from(len.get()).map_err(|_| fail("ftruncate", len.get())(Errno::EFBIG))?;
    let mapping = match huge.map(|huge| (huge, huge.page())) {
        None => usual(len)?,
        Some((huge, Some(page))) => from_pool(len, huge, page)?,
        Some((_, None)) => transparent(len)?,
    };
    Ok(Memory::mapped(mapping, len.get(), false))
}

fn fail(call: &str, len: usize) -> impl Fn(Errno) -> Error {
    let what = format!("{call} for {len} bytes");
    move |errno| Error::os(ALLOC, &what, errno.into())
}

/// Converts the error of [`map`].
fn unmapped(len: usize) -> impl Fn((&'static str, Errno)) -> Error {
    move |(call, errno)| fail(call, len)(errno)
}

fn create(flags: MFdFlags) -> nix::Result<OwnedFd> {
    let flags = flags | MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let file = memfd_create(c"tokio-doca", flags)?;
    // Opened once more, since the kernel does not count the first descriptor as a writer. While a
    // file has a writer, the kernel grants no peer a lease on it (fcntl(2)), which would keep this
    // process from opening the file for another importer. Without /proc the file is never opened
    // again, so the first descriptor suffices.
    let path = format!("/proc/thread-self/fd/{}", file.as_raw_fd());
    let counted = open(&*path, OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty());
    Ok(counted.unwrap_or(file))
}

/// Returns a new memfd of `len` bytes, whose pages are not allocated yet.
fn file(len: usize) -> Result<OwnedFd> {
    let file = create(MFdFlags::empty()).map_err(fail("memfd_create", len))?;
    lengthen(&file, len).map_err(|error| error.with_call(ALLOC))?;
    Ok(file)
}

/// Allocates memory in pages of the usual size.
fn usual(len: NonZeroUsize) -> Result<Mapping> {
    let size = len.get();
    affordable(ALLOC, size)?;
    let file = file(size)?;
    // Allocates the pages now, so that too few are an error here, and not a signal at the first
    // touch.
    fallocate(&file, FallocateFlags::empty(), 0, size as i64).map_err(fail("fallocate", size))?;
    let flags = MapFlags::MAP_SHARED | MapFlags::MAP_POPULATE;
    map(file, 0, len, writable(), flags).map_err(unmapped(size))
}

/// Allocates memory in huge pages where the kernel finds some. The advice applies to the mapping,
/// so the pages are populated through the mapping.
fn transparent(len: NonZeroUsize) -> Result<Mapping> {
    let size = len.get();
    affordable(ALLOC, size)?;
    let file = file(size)?;
    let mapping = map(file, 0, len, writable(), MapFlags::MAP_SHARED);
    let mapping = mapping.map_err(unmapped(size))?;
    // EINVAL means a kernel without transparent huge pages: usual pages are used then.
    match advise(&mapping, MmapAdvise::MADV_HUGEPAGE) {
        Ok(()) | Err(Errno::EINVAL) => {}
        Err(errno) => return Err(fail("madvise(MADV_HUGEPAGE)", size)(errno)),
    }
    match advise(&mapping, MmapAdvise::MADV_POPULATE_WRITE) {
        Ok(()) => {}
        // Linux before 5.14 does not know this advice.
        Err(Errno::EINVAL) => {
            fallocate(mapping.file(), FallocateFlags::empty(), 0, size as i64)
                .map_err(fail("fallocate", size))?;
        }
        Err(errno) => return Err(fail("madvise(MADV_POPULATE_WRITE)", size)(errno)),
    }
    Ok(mapping)
}

/// Allocates memory in whole pages out of the pool of their size.
fn from_pool(len: NonZeroUsize, huge: HugePages, page: usize) -> Result<Mapping> {
    let size = len.get();
    let whole = len
        .get()
        .checked_next_multiple_of(page)
        .and_then(NonZeroUsize::new)
        .ok_or_else(|| fail("ftruncate", size)(Errno::EFBIG))?;
    let short = |kind| Error::new(kind, ALLOC, huge::too_few(size, page));
    let file = create(huge.flags()).map_err(|errno| match errno {
        // The kernel has no huge pages, or the machine has none of that size.
        Errno::EINVAL | Errno::ENODEV | Errno::ENOENT => short(ErrorKind::NotSupported),
        errno => fail("memfd_create", size)(errno),
    })?;
    lengthen(&file, whole.get()).map_err(|error| error.with_call(ALLOC))?;
    let taken = fallocate(&file, FallocateFlags::empty(), 0, whole.get() as i64);
    let mapping = taken.map_err(|errno| ("fallocate", errno)).and_then(|()| {
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_POPULATE;
        map(file, 0, whole, writable(), flags)
    });
    // The pages that were allocated are back in the pool by now, so that the error shows the right
    // numbers.
    mapping.map_err(|(call, errno)| match errno {
        Errno::ENOSPC | Errno::ENOMEM => short(ErrorKind::NoMemory),
        errno => unmapped(size)((call, errno)),
    })
}

/// Maps a part of the application's memfd.
pub(super) fn adopt(
    file: OwnedFd,
    range: impl RangeBounds<usize> + Clone,
    write: bool,
) -> Result<Memory> {
    let seals = seals(&file, write)?;
    let fixed = seals.contains(SealFlag::F_SEAL_WRITE);
    let page = page(&file)?;
    let within = within(&file, range.clone())?;
    if within.start % page != 0 {
        let text = format!(
            "the range begins at byte {}, which is no multiple of the page size, {page} (mmap(2)): \
             begin at {}, and take a range of the Mmap",
            within.start,
            within.start / page * page
        );
        return refuse(ErrorKind::InvalidValue, text);
    }
    if !seals.contains(SealFlag::F_SEAL_SHRINK) {
        seal(&file)?;
    }
    // Checked once more, since the memfd may have been shortened before it was sealed.
    let within = self::within(&file, range)?;
    let size = within.len();
    if fstatfs(&file).is_ok_and(|fs| fs.filesystem_type() != HUGETLBFS_MAGIC) {
        let holes = holes(&file, size)?;
        affordable(FROM_MEMFD, holes)?;
    }
    let whole = NonZeroUsize::new(size.next_multiple_of(page)).expect("a range has a byte");
    let protection = match write {
        true => writable(),
        false => ProtFlags::PROT_READ,
    };
    // No party can write a sealed memfd, and before Linux 6.7 such a memfd could be mapped
    // privately only.
    let sharing = match fixed {
        true => MapFlags::MAP_PRIVATE,
        false => MapFlags::MAP_SHARED,
    };
    let fail = |call: &str, errno: Errno| {
        let text = format!("{call} of bytes {within:?} of the memfd");
        Error::os(FROM_MEMFD, text, errno.into())
    };
    let flags = sharing | MapFlags::MAP_POPULATE;
    let mapping = map(file, within.start, whole, protection, flags);
    let mapping = mapping.map_err(|(call, errno)| fail(call, errno))?;
    let populate = match write {
        true => MmapAdvise::MADV_POPULATE_WRITE,
        false => MmapAdvise::MADV_POPULATE_READ,
    };
    // Populates the pages once more, since MAP_POPULATE reports no failure. Before Linux 5.14
    // (EINVAL) there is only MAP_POPULATE.
    match advise(&mapping, populate) {
        Ok(()) | Err(Errno::EINVAL) => {}
        Err(errno) => return Err(fail("madvise(MADV_POPULATE)", errno)),
    }
    Ok(Memory::mapped(mapping, size, !fixed))
}

fn refuse<T>(kind: ErrorKind, text: impl Into<String>) -> Result<T> {
    Err(Error::new(kind, FROM_MEMFD, text.into()))
}

/// Returns the seals of a memfd. `write` is true if the memfd is to be written.
fn seals(file: &OwnedFd, write: bool) -> Result<SealFlag> {
    let Ok(seals) = fcntl(file, FcntlArg::F_GET_SEALS) else {
        let text = "the descriptor is no memfd: memfd_create(2) makes one, with MFD_ALLOW_SEALING";
        return refuse(ErrorKind::InvalidValue, text);
    };
    let seals = SealFlag::from_bits_retain(seals);
    if write && seals.intersects(SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_FUTURE_WRITE) {
        let text =
            "the memfd is sealed against writing: build the Mmap with Access::LOCAL_READ_ONLY";
        return refuse(ErrorKind::NotPermitted, text);
    }
    Ok(seals)
}

/// Seals the memfd against being shortened.
fn seal(file: &OwnedFd) -> Result<()> {
    fcntl(file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).map(drop).or_else(|errno| {
        let text = format!(
            "the memfd could not be sealed with F_SEAL_SHRINK ({errno}), and whoever shortened it would end this \
             process by SIGBUS: create it with MFD_ALLOW_SEALING, or seal it before it is handed over"
        );
        refuse(ErrorKind::NotPermitted, text)
    })
}

/// Resolves the range, and checks that it lies within the memfd's current size.
fn within(file: &OwnedFd, range: impl RangeBounds<usize>) -> Result<Range<usize>> {
    let stat = fstat(file).map_err(|errno| Error::os(FROM_MEMFD, "fstat", errno.into()))?;
    let len = usize::try_from(stat.st_size).unwrap_or(0);
    MmapInner::resolve_some(range, len, "the memfd")
        .map_err(|text| Error::new(ErrorKind::InvalidValue, FROM_MEMFD, text))
}

/// Returns the most bytes, out of `size`, that may have no pages yet.
fn holes(file: &OwnedFd, size: usize) -> Result<usize> {
    let stat = fstat(file).map_err(|errno| Error::os(FROM_MEMFD, "fstat", errno.into()))?;
    let missing = stat
        .st_size
        .saturating_sub(stat.st_blocks.saturating_mul(512));
    Ok(size.min(usize::try_from(missing).unwrap_or(0)))
}

/// Returns the size of a page of the memfd in bytes.
fn page(file: &OwnedFd) -> Result<usize> {
    let fs = fstatfs(file).map_err(|errno| Error::os(FROM_MEMFD, "fstatfs", errno.into()))?;
    Ok(match fs.filesystem_type() == HUGETLBFS_MAGIC {
        true => fs.block_size() as usize,
        false => page_size(),
    })
}

fn writable() -> ProtFlags {
    ProtFlags::PROT_READ | ProtFlags::PROT_WRITE
}

/// Maps a part of a file, such that a child of fork(2) does not inherit the mapping. The error
/// includes the name of the system call that failed.
fn map(
    file: OwnedFd,
    from: usize,
    len: NonZeroUsize,
    protection: ProtFlags,
    flags: MapFlags,
) -> Result<Mapping, (&'static str, Errno)> {
    let offset = i64::try_from(from).map_err(|_| ("mmap", Errno::EFBIG))?;
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let base = unsafe { mmap(None, len, protection, flags, &file, offset) };
    let base = base.map_err(|errno| ("mmap", errno))?;
    // SAFETY: the mapping was just made, and has no other owner.
    let mapping = unsafe { Mapping::new(base.cast(), len.get(), file, from as u64) };
    let kept = advise(&mapping, MmapAdvise::MADV_DONTFORK);
    kept.map_err(|errno| ("madvise(MADV_DONTFORK)", errno))?;
    Ok(mapping)
}

/// Calls madvise(2) with advice that changes no byte.
fn advise(mapping: &Mapping, advice: MmapAdvise) -> nix::Result<()> {
    // SAFETY: the range is the mapping's, which no code uses yet; the advice that this file gives
    // changes only what pages it has, and what a child inherits.
    unsafe { madvise(mapping.base().cast(), mapping.len(), advice) }
}

/// Fails if less than `len` bytes are available. The kernel does not account for pages of a memfd
/// in advance, and populating too many would call the OOM killer instead of failing.
fn affordable(op: &'static str, len: usize) -> Result<()> {
    match available().filter(|&available| len as u64 > available) {
        Some(available) => {
            let text = format!("{len} bytes, and {available} are available on this machine");
            Err(Error::new(ErrorKind::NoMemory, op, text))
        }
        None => Ok(()),
    }
}

/// Returns how many bytes can be allocated without swapping, if the kernel reports that.
fn available() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}
