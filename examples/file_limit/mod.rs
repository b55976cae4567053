//! Checks the limit of this process for the length of a file (setrlimit(2)).

use nix::sys::resource::{Resource, getrlimit};

use super::Result;

/// Fails if a file of length `len` exceeds the limit. The kernel would send SIGXFSZ for such a
/// file, which ends the process.
pub(crate) fn allows(len: usize) -> Result<()> {
    let (limit, _) = getrlimit(Resource::RLIMIT_FSIZE)?;
    if len as u64 > limit {
        let text = format!(
            "a file of {len} bytes, and one of this process may have {limit}: raise the limit with \
             ulimit -f (LimitFSIZE= of a service)"
        );
        return Err(text.into());
    }
    Ok(())
}
