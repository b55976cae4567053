//! The pages of a memfd: how much memory they take, wherever they lie in the file.
//!
//! A memfd may have pages behind its end, which no process can access. The process that closes the
//! memfd last frees all of them, which takes 0.3 s for a GiB. So this process refuses a peer's
//! memfd that has such pages. A memfd that is sealed with `F_SEAL_GROW` gets no further ones.

use std::fs::read_to_string;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use nix::sys::stat::{FileStat, fstat};

/// Returns the size of all pages of a memfd, in bytes.
pub(in super::super) fn bytes(memfd: &OwnedFd) -> nix::Result<u64> {
    Ok(bytes_of(&fstat(memfd)?))
}

/// Returns the size of all pages of a file with this status, in bytes.
pub(super) fn bytes_of(stat: &FileStat) -> u64 {
    let blocks = u64::try_from(stat.st_blocks).unwrap_or(0);
    blocks.saturating_mul(512)
}

/// Returns true if a memfd of `size` bytes that has `bytes` bytes of pages must have some of them
/// behind its end.
pub(in super::super) fn are_behind(bytes: u64, size: u64) -> bool {
    // A large page may begin before the end, and reach behind it.
    bytes > size.saturating_add(largest())
}

/// Returns the size, in bytes, of the largest page that the kernel may use without being asked.
fn largest() -> u64 {
    static LARGEST: OnceLock<u64> = OnceLock::new();
    *LARGEST.get_or_init(|| {
        let text = read_to_string("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size").ok();
        // If the system does not state the size, this is the largest one of all architectures.
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

    /// Returns a memfd of this size, with these seals, and with further pages allocated beyond its
    /// end.
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
