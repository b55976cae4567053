//! A system as described by the files below a root. A path in a check begins with the name of a
//! folder in the root, such as `proc/self/limits`.

use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};

use crate::failure::{Failure, Result, cannot, name};
use crate::{adapters, system};

pub(super) struct View {
    root: PathBuf,
    /// True if the root is that of the running system, which can be asked for more than its files
    /// say.
    pub(super) live: bool,
}

impl View {
    pub(super) fn new(root: Option<&Path>) -> Result<View> {
        let live = root.is_none();
        let root = root.unwrap_or(Path::new("/"));
        let metadata = fs::metadata(root).map_err(cannot("read", root));
        if !metadata.map_err(Failure::Usage)?.is_dir() {
            return Err(Failure::Usage(format!("{} is not a folder", name(root))));
        }
        if !["proc", "sys"].iter().any(|it| root.join(it).is_dir()) {
            return Err(Failure::Usage(format!(
                "{} has neither proc nor sys: --root takes the folder that has them",
                name(root)
            )));
        }
        Ok(View {
            root: root.to_owned(),
            live,
        })
    }

    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    pub(super) fn has(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    pub(super) fn text(&self, path: &str) -> Result<String, String> {
        system::text(&self.path(path))
    }

    /// Returns the text of a file that may contain names in any encoding.
    pub(super) fn lossy(&self, path: &str) -> Result<String, String> {
        let bytes = system::bytes(&self.path(path))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    pub(super) fn number(&self, path: &str) -> Result<u64, String> {
        let text = self.text(path)?;
        text.parse().map_err(|_| self.odd(path, "a number"))
    }

    /// Returns the sentence for a file whose contents are not as expected.
    pub(super) fn odd(&self, path: &str, what: &str) -> String {
        format!("{} does not have {what}", name(&self.path(path)))
    }

    /// Returns the names of a folder's entries, sorted. If the folder is missing but its parent
    /// exists, returns no names.
    pub(super) fn names(&self, path: &str) -> Result<Vec<String>, String> {
        let folder = self.path(path);
        match fs::read_dir(&folder) {
            Ok(_) => Ok(adapters::names(&folder)),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let parent = folder.parent().filter(|parent| parent.is_dir());
                let none = parent.map(|_| Vec::new());
                none.ok_or_else(|| cannot("read", &folder)(error))
            }
            Err(error) => Err(cannot("read", &folder)(error)),
        }
    }

    /// Returns the value of a line `Key:  value` in `/proc/self/status`.
    pub(super) fn status(&self, key: &str) -> Result<String, String> {
        const STATUS: &str = "proc/self/status";
        let text = self.lossy(STATUS)?;
        let mut values = text
            .lines()
            .filter_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        let value = values.next().map(|value| value.trim().to_owned());
        value.ok_or_else(|| self.odd(STATUS, &format!("a line {key}")))
    }

    /// Returns true if this is the first user namespace of the system. Only there do capabilities
    /// apply to the system as a whole.
    pub(super) fn is_first_user_namespace(&self) -> Result<bool, String> {
        let map = self.text("proc/self/uid_map")?;
        Ok(map.split_whitespace().eq(["0", "0", "4294967295"]))
    }

    /// Returns the names of the RDMA devices.
    pub(super) fn adapters(&self) -> Result<Vec<String>, String> {
        self.names(adapters::CLASS)
    }

    /// Returns true if there is an RDMA device, so that the needs of adapters matter.
    pub(super) fn has_adapter(&self) -> bool {
        self.adapters().is_ok_and(|names| !names.is_empty())
    }

    /// Returns the network interfaces of this namespace.
    pub(super) fn interfaces(&self) -> Result<Vec<String>, String> {
        let text = self.text("proc/net/dev")?;
        let names = text.lines().filter_map(|line| line.split_once(':'));
        Ok(names.map(|(name, _)| name.trim().to_owned()).collect())
    }

    /// Returns the IPv4 addresses of this namespace.
    pub(super) fn ipv4(&self) -> Result<Vec<IpAddr>, String> {
        let text = self.text("proc/net/fib_trie")?;
        let (mut found, mut last): (_, Option<IpAddr>) = (Vec::new(), None);
        for line in text.lines() {
            // The prefix lengths of an address follow its line.
            if let Some((_, address)) = line.split_once("|-- ") {
                last = address.trim().parse().ok();
            } else if line.trim().starts_with("/32 host LOCAL") {
                found.extend(last);
            }
        }
        Ok(found)
    }

    /// Returns the IPv6 addresses of this namespace.
    pub(super) fn ipv6(&self) -> Result<Vec<IpAddr>, String> {
        let text = self.text("proc/net/if_inet6")?;
        let addresses = text.lines().filter_map(|line| {
            let digits = line.split_whitespace().next()?;
            let bits = u128::from_str_radix(digits, 16).ok()?;
            Some(IpAddr::from(Ipv6Addr::from_bits(bits)))
        });
        Ok(addresses.collect())
    }
}

/// Returns a size in a readable unit: `8 MiB`, `7.5 GiB`.
pub(super) fn size(bytes: u64) -> String {
    let units = [(1_u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let Some((unit, name)) = units.into_iter().find(|(unit, _)| bytes >= *unit) else {
        return format!("{bytes} bytes");
    };
    let tenths = (u128::from(bytes) * 10).div_ceil(unit.into());
    match tenths % 10 {
        0 => format!("{} {name}", tenths / 10),
        rest => format!("{}.{rest} {name}", tenths / 10),
    }
}

/// Joins the first few words, and adds the number of the remaining words.
pub(super) fn few(words: &[String]) -> String {
    const MOST: usize = 4;
    let first = &words[..words.len().min(MOST)];
    match words.len() - first.len() {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_up() {
        assert_eq!(size(512), "512 bytes");
        assert_eq!(size(8 << 20), "8 MiB");
        assert_eq!(size((8 << 20) + 1), "8.1 MiB");
        assert_eq!(size(u64::MAX), "17179869184 GiB");
    }

    #[test]
    fn long_lists_are_cut() {
        let words: Vec<String> = (0..6).map(|it| it.to_string()).collect();
        assert_eq!(few(&words), "0, 1, 2, 3 and 2 more");
        assert_eq!(few(&words[..4]), "0, 1, 2, 3");
        assert_eq!(few(&[]), "");
    }
}
