//! Setting the size of a memfd, and the size of its pages.

use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::{SysconfVar, ftruncate, sysconf};

use crate::error::{Error, ErrorKind, Result};

/// Sets the size of a memfd to `len` bytes.
///
/// # Errors
///
/// `NoMemory` if `len` is above this process's limit for a file, where the kernel would send
/// SIGXFSZ and so end the process (setrlimit(2)); otherwise the error of ftruncate(2).
pub(crate) fn lengthen(memfd: &OwnedFd, len: usize) -> Result<()> {
    let fail = |errno: Errno| Error::os(None, format!("ftruncate to {len} bytes"), errno.into());
    let size = i64::try_from(len).map_err(|_| fail(Errno::EFBIG))?;
    let (limit, _) = getrlimit(Resource::RLIMIT_FSIZE).map_err(fail)?;
    if len as u64 > limit {
        let text = format!(
            "{len} bytes of memory are a file (memfd_create(2)), and one of this process may have {limit}: raise the limit with \
             ulimit -f (LimitFSIZE= of a service)"
        );
        return Err(Error::new(ErrorKind::NoMemory, None, text));
    }
    ftruncate(memfd, size).map_err(fail)
}

/// Returns the size of a usual page in bytes.
pub(crate) fn page_size() -> usize {
    let page = sysconf(SysconfVar::PAGE_SIZE);
    page.ok().flatten().map_or(4096, |page| page as usize)
}
