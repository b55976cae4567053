//! Environment variables.
#![expect(unsafe_code, reason = "a system call that nix does not wrap")]

use std::ffi::OsString;

/// Returns the value of an environment variable.
///
/// Like secure_getenv(3), returns `None` in a program that runs with more rights than the user who
/// started it (setuid, setgid, file capabilities), since that user controls the environment.
pub(crate) fn variable(name: &str) -> Option<OsString> {
    is_own().then(|| std::env::var_os(name)).flatten()
}

/// Returns the names of the environment variables that begin with `prefix`; none under the
/// condition in which [`variable`] returns `None`.
pub(crate) fn variables(prefix: &str) -> Vec<String> {
    let all = is_own().then(std::env::vars_os).into_iter().flatten();
    let names = all.map(|(name, _)| name.to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(prefix)).collect()
}

/// Returns true if the environment is that of the user whose rights the program has.
fn is_own() -> bool {
    // SAFETY: no pointers.
    let secure = unsafe { libc::getauxval(libc::AT_SECURE) };
    secure == 0
}
