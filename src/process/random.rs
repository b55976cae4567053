//! Numbers that nobody guesses.
#![expect(unsafe_code, reason = "a system call that nix does not wrap")]

use std::io;

/// Returns sixteen bytes of the kernel's generator (getrandom(2)), which needs no file.
pub(crate) fn random() -> io::Result<[u8; 16]> {
    let mut bytes = [0_u8; 16];
    loop {
        // SAFETY: the array has as many bytes as the length says.
        let len = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        // So few bytes come all at once; a signal may interrupt the wait after a boot.
        if usize::try_from(len) == Ok(bytes.len()) {
            return Ok(bytes);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
