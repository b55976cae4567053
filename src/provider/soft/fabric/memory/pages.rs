//! Pages of a memfd: how much memory it takes, wherever that lies in it.
//!
//! There may be pages behind its end, which nobody reaches. The party that lets go of a memfd last
//! frees them all, which takes 0.3 s for a GiB: so a peer's memfd has none there. Once it is sealed
//! `F_SEAL_GROW`, none come.

use std::fs::read_to_string;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use nix::sys::stat::{FileStat, fstat};

/// Returns the size of its pages in bytes.
pub(in super::super) fn bytes(memfd: &OwnedFd) -> nix::Result<u64> {
    Ok(bytes_of(&fstat(memfd)?))
}

/// The same, of what fstat(2) said.
pub(super) fn bytes_of(stat: &FileStat) -> u64 {
    let blocks = u64::try_from(stat.st_blocks).unwrap_or(0);
    blocks.saturating_mul(512)
}

/// Returns whether so many bytes of pages are more than a memfd of this size has before its end.
pub(in super::super) fn are_behind(bytes: u64, size: u64) -> bool {
    // A large page may reach behind the end.
    bytes > size.saturating_add(largest())
}

/// Returns the size, in bytes, of the largest page that memory comes in by itself.
fn largest() -> u64 {
    static LARGEST: OnceLock<u64> = OnceLock::new();
    *LARGEST.get_or_init(|| {
        let text = read_to_string("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size").ok();
        // The largest of all, if the system does not say so.
        text.and_then(|text| text.trim().parse().ok())
            .unwrap_or(512 << 20)
    })
}

#[cfg(test)]
pub(in super::super) mod tests {
    use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use nix::unistd::ftruncate;

    use super::*;

    /// Memory of this size, with these seals, and with more pages behind its end.
    pub(in super::super::super) fn more_than(size: i64, seals: SealFlag) -> OwnedFd {
        let memfd = memfd_create(c"test", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        ftruncate(&memfd, size).unwrap();
        let more = size + largest() as i64 + 4096;
        let keep_size = FallocateFlags::FALLOC_FL_KEEP_SIZE;
        fallocate(&memfd, keep_size, 0, more).unwrap();
        fcntl(&memfd, FcntlArg::F_ADD_SEALS(seals)).unwrap();
        assert_eq!(fstat(&memfd).unwrap().st_size, size);
        memfd
    }

    #[test]
    fn nothing_comes_behind_the_end_of_what_may_not_grow() {
        let memfd = memfd_create(c"test", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        ftruncate(&memfd, 4096).unwrap();
        fcntl(&memfd, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_GROW)).unwrap();
        let keep_size = FallocateFlags::FALLOC_FL_KEEP_SIZE;
        assert!(fallocate(&memfd, keep_size, 4096, 4096).is_err());
        assert_eq!(bytes(&memfd), Ok(0));
    }
}
