//! Checks whether a process belongs to this user.
//!
//! In a user namespace, all users whose ids are not mapped appear under one id, that in
//! `/proc/sys/kernel/overflowuid`. It may mean this user or a stranger.

use std::fs::read_to_string;
use std::sync::OnceLock;

use nix::unistd::geteuid;

/// Returns true if `uid`, which the kernel reports for a peer, is the id of this process's user and
/// of no other user.
pub(crate) fn is_own_user(uid: u32) -> bool {
    uid == geteuid().as_raw() && check_own_user().is_ok()
}

/// Fails with an error text if the id of this process's user may also be that of other users.
pub(crate) fn check_own_user() -> Result<(), String> {
    static OVERFLOW: OnceLock<u32> = OnceLock::new();
    let uid = geteuid().as_raw();
    let overflow = OVERFLOW.get_or_init(|| {
        let text = read_to_string("/proc/sys/kernel/overflowuid").ok();
        // The kernel's default (`DEFAULT_OVERFLOWUID`).
        text.and_then(|text| text.trim().parse().ok())
            .unwrap_or(65_534)
    });
    if uid != *overflow || is_identity(&read_to_string("/proc/self/uid_map")) {
        return Ok(());
    }
    Err(format!(
        "this process is in a user namespace in which the number of its user, {uid}, stands for \
         every user without a number: map the user (user_namespaces(7))"
    ))
}

/// Returns true if a map of user ids leaves all ids unchanged, so that each id belongs to one user.
fn is_identity(map: &std::io::Result<String>) -> bool {
    let Ok(map) = map else { return false };
    let numbers: Vec<&str> = map.split_whitespace().collect();
    numbers == ["0", "0", "4294967295"]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_the_identity_if_it_is_whole() {
        let map = |text: &str| is_identity(&Ok(text.to_owned()));
        assert!(map("         0          0 4294967295\n"));
        for other in [
            "",
            "0 1000 1\n",
            "65534 65534 1\n",
            "0 0 65535\n",
            "0 0 1\n1 1 4294967294\n",
        ] {
            assert!(!map(other), "{other}");
        }
        assert!(!is_identity(&Err(std::io::ErrorKind::NotFound.into())));
    }
}
