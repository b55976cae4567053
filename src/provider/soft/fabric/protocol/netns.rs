//! The network namespace of a process, as other processes that want to connect know it: the boot of
//! the machine, and the inode of the namespace.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::{Mutex, OnceLock};

use crate::error::{Error, ErrorKind, Result};
use crate::sync::{EachProcess, lock};

/// Sixteen random bytes, which cannot be guessed: an instance of a fabric, a key, or a nonce.
pub(in super::super::super) type Id = [u8; 16];

/// Returns an Id as two words, which atomics can hold.
#[inline]
pub(in super::super::super) fn words_of(id: &Id) -> [u64; 2] {
    [0, 8].map(|at| u64::from_ne_bytes(id[at..at + 8].try_into().expect("eight bytes")))
}

/// A boot of a machine, and one of the network namespaces of that boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Netns {
    pub(in super::super) boot: Id,
    /// The device and the inode of the namespace. They differ for any two namespaces of one boot.
    pub(in super::super) net: (u64, u64),
}

impl Netns {
    /// Returns the boot and the network namespace of the calling thread: a thread can have its own
    /// namespace (setns(2)).
    pub(in super::super) fn here() -> Result<Netns> {
        const NET: &str = "/proc/thread-self/ns/net";
        let net = fs::metadata(NET).map_err(|error| Error::os(None, NET, error))?;
        let (boot, net) = (boot()?, (net.dev(), net.ino()));
        Ok(Netns { boot, net })
    }
}

/// Returns the id of the machine's boot. It is read once, since a boot outlives the process.
pub(in super::super) fn boot() -> Result<Id> {
    const BOOT: &str = "/proc/sys/kernel/random/boot_id";
    static READ: OnceLock<Id> = OnceLock::new();
    if let Some(boot) = READ.get() {
        return Ok(*boot);
    }
    let text = fs::read_to_string(BOOT).map_err(|error| Error::os(None, BOOT, error))?;
    let boot = uuid(text.trim()).ok_or_else(|| {
        let text = format!("{BOOT} has \"{}\", and no UUID", text.trim());
        Error::new(ErrorKind::Unexpected, None, text)
    })?;
    Ok(*READ.get_or_init(|| boot))
}

fn uuid(text: &str) -> Option<Id> {
    let digits: String = text.chars().filter(|&c| c != '-').collect();
    let value = u128::from_str_radix(&digits, 16).ok()?;
    (digits.len() == 32).then(|| value.to_be_bytes())
}

/// Returns sixteen random bytes of the kernel. Each system call gets bytes for several calls of
/// this function.
pub(in super::super::super) fn random() -> Result<Id> {
    static AHEAD: EachProcess<Mutex<Vec<Id>>> = EachProcess::new(Mutex::default);
    let mut ahead = lock(AHEAD.get());
    if let Some(id) = ahead.pop() {
        return Ok(id);
    }
    let mut ids = [Id::default(); 32];
    getrandom::fill(ids.as_flattened_mut())
        .map_err(|error| Error::os(None, "getrandom", error.into()))?;
    let [id, others @ ..] = ids;
    ahead.extend(others);
    Ok(id)
}

/// Returns an Id as hexadecimal digits.
pub(in super::super) fn hex(id: &Id) -> String {
    format!("{:032x}", u128::from_be_bytes(*id))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_boot_id_is_read_and_junk_is_not() {
        let id = uuid("00010203-0405-0607-0809-0a0b0c0d0e0f").unwrap();
        assert_eq!(hex(&id), "000102030405060708090a0b0c0d0e0f");
        for junk in ["", "00010203", "zz010203-0405-0607-0809-0a0b0c0d0e0f"] {
            assert_eq!(uuid(junk), None, "{junk}");
        }
        assert_eq!(Netns::here().unwrap(), Netns::here().unwrap());
    }

    #[test]
    fn random_ids_differ_also_once_the_kernel_is_asked_again() {
        let ids: HashSet<_> = (0..100).map(|_| random().unwrap()).collect();
        assert_eq!(ids.len(), 100);
    }
}
