//! Variables of the environment.
#![expect(unsafe_code, reason = "a system call that nix does not wrap")]

use std::ffi::OsString;

/// Returns the value of a variable of this crate's.
///
/// As secure_getenv(3), returns `None` in a program that runs with more rights than who started it
/// has (setuid, setgid, file capabilities): the environment is that one's.
pub(crate) fn variable(name: &str) -> Option<OsString> {
    // SAFETY: no pointers.
    let secure = unsafe { libc::getauxval(libc::AT_SECURE) };
    (secure == 0).then(|| std::env::var_os(name)).flatten()
}
