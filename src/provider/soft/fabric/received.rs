//! What is checked of a memfd that an exporter sent, before it is mapped.
//!
//! The exporter may be hostile: the memfd may be any file, shorter than it says, be shortened or punched while we use it, or have
//! no pages, so that we would be the ones who take them.

use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::mman::MapFlags;
use nix::sys::stat::fstat;
use nix::sys::statfs::{HUGETLBFS_MAGIC, fstatfs};
use nix::unistd::{SysconfVar, Whence, lseek, sysconf};

use super::mapping::Mapping;
use crate::error::{Error, ErrorKind, Result};

const OP: &str = "import";

fn os(what: &str) -> impl Fn(Errno) -> Error {
    move |errno| Error::os(OP, format!("{what} of the exporter's memfd"), errno.into())
}

/// Maps `len` bytes of it from `offset` on.
///
/// # Errors
///
/// `NotPermitted` for what no exporter of ours would send; what could not be had.
pub(super) fn map(memfd: &OwnedFd, offset: u64, len: u64, write: bool) -> Result<Mapping> {
    let hostile = |text: String| Err(Error::new(ErrorKind::NotPermitted, OP, text));
    // First: only memory answers, and nothing else of this file is done to anything else.
    let Ok(seals) = fcntl(memfd, FcntlArg::F_GET_SEALS) else {
        return hostile("the exporter sent a descriptor that is no memfd".to_owned());
    };
    let seals = SealFlag::from_bits_retain(seals);
    let needed = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    if !seals.contains(needed) {
        let lacks = needed - seals;
        return hostile(format!(
            "the exporter's memfd lacks the seals {lacks:?}: it could be shortened under this process, which would be a SIGBUS"
        ));
    }
    let fs = fstatfs(memfd).map_err(os("fstatfs"))?;
    let huge = fs.filesystem_type() == HUGETLBFS_MAGIC;
    let fixed = seals.contains(SealFlag::F_SEAL_WRITE);
    if write && fixed {
        return hostile(
            "the exporter's memfd is sealed against writing, which the export permits: what this process wrote would be in pages of \
             its own"
                .to_owned(),
        );
    }
    if huge && !fixed && !seals.contains(SealFlag::F_SEAL_FUTURE_WRITE) {
        return hostile(
            "the exporter's memfd has huge pages and can be punched, which would be a SIGBUS here"
                .to_owned(),
        );
    }
    let page = match huge {
        true => fs.block_size() as u64,
        false => usual_page(),
    };
    let stat = fstat(memfd).map_err(os("fstat"))?;
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let fits =
        offset.checked_add(len).is_some_and(|end| end <= size) && offset.is_multiple_of(page);
    let whole = len
        .checked_next_multiple_of(page)
        .and_then(|len| usize::try_from(len).ok());
    let Some(whole) = whole.and_then(NonZeroUsize::new).filter(|_| fits) else {
        return hostile(format!(
            "the exporter says that its memory is {len} bytes from byte {offset} on, and sent a memfd of {size} bytes in pages of \
             {page}"
        ));
    };
    // Whoever maps a hole takes its page. As many blocks as bytes is as good as no hole: the exporter has paid for them. It is
    // known at once, where looking for a hole goes through all pages.
    let paid = u64::try_from(stat.st_blocks)
        .unwrap_or(0)
        .saturating_mul(512);
    if paid < size && (huge || first_hole(memfd, offset)? < offset + len) {
        return hostile(format!(
            "the exporter's memfd has holes: {paid} of its {size} bytes have pages, and this process would have to take the others"
        ));
    }
    // Nobody can write what is sealed, and before Linux 6.7 such a memfd could be mapped privately only.
    let sharing = match fixed {
        true => MapFlags::MAP_PRIVATE,
        false => MapFlags::MAP_SHARED,
    };
    let map = |flags| {
        Mapping::new(memfd, offset, whole, write, flags)
            .map_err(|errno| Error::os(OP, format!("mmap of {whole} bytes"), errno.into()))
    };
    let mapping = map(sharing)?;
    // To be read, whatever it is for: of shared memory that maps pages to be written as well, sixteen at a fault instead of one.
    let mapping = match mapping.populate() {
        Ok(()) => mapping,
        // Before Linux 5.14: it says nothing when it fails.
        Err(Errno::EINVAL) => map(sharing | MapFlags::MAP_POPULATE)?,
        Err(errno) => {
            let what = format!("madvise(MADV_POPULATE) of {whole} bytes");
            return Err(Error::os(OP, what, errno.into()));
        }
    };
    mapping
        .keep_from_children()
        .map_err(os("madvise(MADV_DONTFORK)"))?;
    Ok(mapping)
}

fn first_hole(memfd: &OwnedFd, from: u64) -> Result<u64> {
    let from = i64::try_from(from).map_err(|_| os("lseek")(Errno::EOVERFLOW))?;
    let hole = lseek(memfd, from, Whence::SeekHole).map_err(os("lseek(SEEK_HOLE)"))?;
    Ok(u64::try_from(hole).unwrap_or(0))
}

fn usual_page() -> u64 {
    let page = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
    page.and_then(|page| u64::try_from(page).ok())
        .unwrap_or(4096)
}
