//! Shared memory that two processes write: a doorbell page, a message ring, or the page of a sync
//! event.
//!
//! Neither side trusts the contents, or what the other side says about the memory. Both check that
//! no process can shorten it, and that it has the expected size. Holes are allowed: the process
//! that touches a hole allocates its page, and the memory is small.

use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::MapFlags;
use nix::sys::stat::fstat;
use nix::sys::statfs::{HUGETLBFS_MAGIC, fstatfs};

use super::mapping::Mapping;
use super::pages;
use crate::error::{Error, ErrorKind, Result};
use crate::process::lengthen;

/// The size of the largest arena in bytes.
const MAX: usize = 64 << 20;

pub(in super::super::super) struct Arena;

fn os(what: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::os(None, what, errno.into())
}

fn seals() -> SealFlag {
    SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL
}

/// Returns an error for memory that no honest peer sends.
fn hostile<T>(text: String) -> Result<T> {
    Err(Error::new(ErrorKind::NotPermitted, None, text))
}

impl Arena {
    /// Creates memory of zeros. Returns the memfd to send, and its mapping in this process.
    ///
    /// # Errors
    ///
    /// `OperatingSystem` if a system call fails; `NotPermitted` for 0 bytes, or more than 64 MiB.
    pub(in super::super::super) fn create(len: usize) -> Result<(Arc<OwnedFd>, Mapping)> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let memfd = memfd_create(c"tokio-doca-arena", flags).map_err(os("memfd_create"))?;
        lengthen(&memfd, len)?;
        fcntl(&memfd, FcntlArg::F_ADD_SEALS(seals())).map_err(os("fcntl(F_ADD_SEALS)"))?;
        let mapping = map(&memfd, whole(len)?)?;
        Ok((Arc::new(memfd), mapping))
    }

    /// Maps memory that a peer claims to have created by [`create`](Arena::create).
    ///
    /// # Errors
    ///
    /// `NotPermitted` if no honest peer would send such memory; `OperatingSystem` if a system call
    /// fails.
    pub(in super::super::super) fn received(memfd: &OwnedFd, len: usize) -> Result<Mapping> {
        let whole = whole(len)?;
        // This call comes first: it succeeds only for memory, so that no later call is made on
        // another kind of file.
        let Ok(have) = fcntl(memfd, FcntlArg::F_GET_SEALS) else {
            return hostile("the peer sent a descriptor that is no memfd".to_owned());
        };
        let have = SealFlag::from_bits_retain(have);
        if !have.contains(seals()) {
            return hostile(format!(
                "the peer's memfd has the seals {have:?}: it could be shortened under this process"
            ));
        }
        let stat = fstat(memfd).map_err(os("fstat"))?;
        let (size, paid) = (stat.st_size, pages::bytes_of(&stat));
        if usize::try_from(size) != Ok(len) || pages::are_behind(paid, len as u64) {
            return hostile(format!(
                "the peer's memfd has {size} bytes, with pages for {paid}, and {len} were to be shared"
            ));
        }
        // If no huge page is left, an access to a hole would cause a SIGBUS.
        let fs = fstatfs(memfd).map_err(os("fstatfs"))?;
        if fs.filesystem_type() == HUGETLBFS_MAGIC {
            return hostile("the peer's memfd has huge pages".to_owned());
        }
        map(memfd, whole)
    }
}

/// Returns the length as non-zero, if an arena may have it.
fn whole(len: usize) -> Result<NonZeroUsize> {
    match NonZeroUsize::new(len).filter(|_| len <= MAX) {
        Some(whole) => Ok(whole),
        None => hostile(format!(
            "memory of {len} bytes is to be shared: at most {MAX} are"
        )),
    }
}

fn map(memfd: &OwnedFd, whole: NonZeroUsize) -> Result<Mapping> {
    // Memory that is sealed against writing cannot be mapped in this way: EPERM.
    let mapping = Mapping::new(memfd, whole, true, MapFlags::MAP_SHARED);
    let mapping = mapping.map_err(os("mmap of shared memory"))?;
    mapping
        .keep_from_children()
        .map_err(os("madvise(MADV_DONTFORK)"))?;
    Ok(mapping)
}

#[cfg(test)]
mod tests {
    use nix::unistd::ftruncate;

    use super::super::pages::tests::more_than;
    use super::*;

    const LEN: usize = 3 * 4096;

    fn memfd(len: usize, seals: SealFlag, flags: MFdFlags) -> nix::Result<OwnedFd> {
        let memfd = memfd_create(c"test", MFdFlags::MFD_ALLOW_SEALING | flags)?;
        ftruncate(&memfd, len as i64)?;
        fcntl(&memfd, FcntlArg::F_ADD_SEALS(seals))?;
        Ok(memfd)
    }

    fn kind(memfd: &OwnedFd, len: usize) -> ErrorKind {
        Arena::received(memfd, len).err().unwrap().kind()
    }

    #[test]
    fn what_one_side_creates_the_other_maps_and_nobody_resizes() {
        let (memfd, here) = Arena::create(LEN).unwrap();
        let sent = memfd.try_clone().unwrap();
        let there = Arena::received(&sent, LEN).unwrap();
        assert_ne!(here.base(), there.base());
        assert_eq!(ftruncate(&sent, LEN as i64 - 1), Err(Errno::EPERM));
        assert_eq!(ftruncate(&sent, LEN as i64 + 1), Err(Errno::EPERM));
        // Each side sees what the other side writes. The test uses the file, since it must not
        // touch the memory itself.
        assert_eq!(nix::sys::uio::pwrite(&sent, &[7], 5000), Ok(1));
        let mut read = [0];
        assert_eq!(nix::sys::uio::pread(&*memfd, &mut read, 5000), Ok(1));
        assert_eq!(read, [7]);
        // A child of fork(2) has neither mapping: dc is VM_DONTCOPY (proc(5)).
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        for mapping in [&here, &there] {
            let start = format!("{:x}-", mapping.base().addr());
            let (_, of) = maps.split_once(&start).unwrap();
            let flags = of.lines().find(|line| line.starts_with("VmFlags")).unwrap();
            assert!(flags.contains(" dc"), "{flags}");
        }
    }

    #[test]
    fn what_could_be_shortened_or_is_something_else_is_refused() {
        let none = MFdFlags::empty();
        let right = memfd(LEN, seals(), none).unwrap();
        assert!(Arena::received(&right, LEN).is_ok());
        for len in [0, LEN - 1, LEN + 1, 2 * LEN, usize::MAX] {
            assert_eq!(kind(&right, len), ErrorKind::NotPermitted, "{len}");
        }
        for wrong in [
            seals() - SealFlag::F_SEAL_SHRINK,
            seals() - SealFlag::F_SEAL_GROW,
            seals() - SealFlag::F_SEAL_SEAL,
            seals() | SealFlag::F_SEAL_WRITE,
            seals() | SealFlag::F_SEAL_FUTURE_WRITE,
        ] {
            let memfd = memfd(LEN, wrong, none).unwrap();
            assert_eq!(kind(&memfd, LEN), ErrorKind::NotPermitted, "{wrong:?}");
        }
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert_eq!(kind(&file.into(), LEN), ErrorKind::NotPermitted);
        // A machine without huge pages can still create the file; only an access to its pages would
        // fail.
        if let Ok(huge) = memfd(2 << 20, seals(), MFdFlags::MFD_HUGETLB) {
            assert_eq!(kind(&huge, 2 << 20), ErrorKind::NotPermitted);
        }
        let more = more_than(LEN as i64, seals());
        assert_eq!(kind(&more, LEN), ErrorKind::NotPermitted);
        let large = memfd(MAX + 1, seals(), none).unwrap();
        assert_eq!(kind(&large, MAX + 1), ErrorKind::NotPermitted);
        let most = memfd(MAX, seals(), none).unwrap();
        assert!(Arena::received(&most, MAX).is_ok());
        assert_eq!(
            Arena::create(MAX + 1).err().unwrap().kind(),
            ErrorKind::NotPermitted
        );
        assert!(Arena::create(0).is_err());
    }
}
