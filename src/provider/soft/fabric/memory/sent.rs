//! How a memfd is sealed and opened before an importer gets a descriptor of it.
//!
//! | | importers of this export may write | only other importers may | no peer may |
//! |---|---|---|---|
//! | seals | SHRINK, GROW, SEAL | SHRINK, GROW, SEAL | SHRINK, GROW, SEAL, FUTURE_WRITE |
//! | descriptor | to read and write | to read | to read |
//!
//! In the middle column the kernel permits no writes through the descriptor, and the mode of the
//! memfd keeps other users from opening it anew. A process of the same user can open it anew: for
//! such a process the rule not to write is only advice.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl, open};
use nix::sys::stat::{Mode, fchmod, fstat};
use nix::sys::statfs::{HUGETLBFS_MAGIC, fstatfs};

use crate::error::{Error, ErrorKind, Result};

fn os(what: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::os(None, what, errno.into())
}

/// Checks that the memory is the whole memfd, except for the rest of its last page. An importer
/// always gets the whole memfd.
///
/// # Errors
///
/// `NotPermitted` if the memory is only a part of a memfd.
pub(in super::super) fn check_whole(memfd: &OwnedFd, offset: u64, len: usize) -> Result<()> {
    let size = u64::try_from(fstat(memfd).map_err(os("fstat"))?.st_size).unwrap_or(0);
    let page = u64::try_from(fstatfs(memfd).map_err(os("fstatfs"))?.block_size()).unwrap_or(0);
    if offset == 0 && size < (len as u64).saturating_add(page) {
        return Ok(());
    }
    let text = format!(
        "the Mmap has {len} bytes from byte {offset} on of a memfd of {size}, and an importer gets a memfd as a whole: take what \
         shall be exported a memfd of its own"
    );
    Err(Error::new(ErrorKind::NotPermitted, None, text))
}

/// Seals the memfd, so that no process can shorten it. If `peer_writable` is false, no process can
/// map it for writing from now on. `write` is true if the importers of this export may write.
///
/// # Errors
///
/// `NotSupported` for huge pages that a peer may write; `NotPermitted` if other seals prevent it;
/// `OperatingSystem` if another system call fails.
pub(in super::super) fn seal(memfd: &OwnedFd, peer_writable: bool, write: bool) -> Result<()> {
    let fs = fstatfs(memfd).map_err(os("fstatfs"))?;
    if peer_writable && fs.filesystem_type() == HUGETLBFS_MAGIC {
        let text = "memory in huge pages that a peer may write is not exported, as who may write it can punch holes, and a hole that no \
                    huge page is left for is a SIGBUS: leave the peer-write permissions away, or take HugePages::Transparent";
        return Err(Error::new(ErrorKind::NotSupported, None, text));
    }
    let have = seals(memfd)?;
    if write && have.intersects(SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_FUTURE_WRITE) {
        let text = "the memfd is sealed against writing, by its maker or by an export that lets no peer write, and this export \
                    lets the importer write: give it a memfd of its own";
        return Err(Error::new(ErrorKind::NotPermitted, None, text));
    }
    let lacks = missing(have, peer_writable);
    if !lacks.is_empty()
        && let Err(errno) = fcntl(memfd, FcntlArg::F_ADD_SEALS(lacks))
        // Another export of the memfd may have added the seals first.
        && !missing(seals(memfd)?, peer_writable).is_empty()
    {
        let text = format!(
            "the memfd lacks the seals {lacks:?}, and they could not be added ({errno}), so that an importer could shorten or write \
             what it may not: create it with MFD_ALLOW_SEALING and without F_SEAL_SEAL, and give memory that peers may \
             write a memfd of its own"
        );
        return Err(Error::new(ErrorKind::NotPermitted, None, text));
    }
    match peer_writable && !write {
        true => {
            fchmod(memfd, Mode::S_IRUSR | Mode::S_IWUSR).map_err(os("fchmod of the memfd to 0600"))
        }
        false => Ok(()),
    }
}

fn seals(memfd: &OwnedFd) -> Result<SealFlag> {
    let seals = fcntl(memfd, FcntlArg::F_GET_SEALS).map_err(os("fcntl(F_GET_SEALS)"))?;
    Ok(SealFlag::from_bits_retain(seals))
}

fn missing(have: SealFlag, peer_writable: bool) -> SealFlag {
    let against_writers = match peer_writable || have.contains(SealFlag::F_SEAL_WRITE) {
        true => SealFlag::empty(),
        false => SealFlag::F_SEAL_FUTURE_WRITE,
    };
    let always = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    (always | against_writers) - have
}

/// Returns a descriptor for an importer. The descriptor has its own file offset and flags, and
/// permits writes only if `write` is set.
///
/// The call does not wait: it returns `EAGAIN` if a peer has a lease on the file (fcntl(2)).
pub(in super::super) fn reopen(memfd: BorrowedFd<'_>, write: bool) -> nix::Result<OwnedFd> {
    let path = format!("/proc/thread-self/fd/{}", memfd.as_raw_fd());
    let access = match write {
        true => OFlag::O_RDWR,
        false => OFlag::O_RDONLY,
    };
    let flags = access | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    let reopen = || open(&*path, flags, Mode::empty());
    match reopen() {
        // A peer of the same user may have removed the permissions.
        Err(Errno::EACCES | Errno::EPERM) => {
            fchmod(memfd, Mode::S_IRUSR | Mode::S_IWUSR)?;
            reopen()
        }
        opened => opened,
    }
}
