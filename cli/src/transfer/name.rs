//! Checks the file names that a receiver gets from a sender.

use crate::output::misleads;

/// The longest file name that file systems permit, in bytes.
const MOST: usize = 255;

/// Checks that a file name is a single plain path component.
///
/// # Errors
///
/// Returns what is wrong, without the name, which may not be printable.
pub(super) fn check(name: &[u8]) -> Result<&str, &'static str> {
    let name = std::str::from_utf8(name).map_err(|_| "the name is no UTF-8")?;
    match name {
        "" => Err("the name is empty"),
        _ if name.len() > MOST => Err("the name is longer than 255 bytes"),
        _ if name.contains(['/', '\\']) => Err("the name has a separator of folders"),
        _ if name.starts_with('.') => Err("the name begins with a dot"),
        _ if name.starts_with('-') => Err("the name begins with a dash"),
        _ if name.contains(char::is_control) => Err("the name has control characters"),
        _ if name.contains(misleads) => Err("the name has characters that change how it is shown"),
        _ => Ok(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_names_alone_are_taken() {
        let long = "x".repeat(255);
        for name in ["a", "a.tar.gz", "a b", "größe", "a..b", &long] {
            assert_eq!(check(name.as_bytes()), Ok(name));
        }
        let longer = "x".repeat(256);
        for (name, part) in [
            ("", "empty"),
            (".", "dot"),
            ("..", "dot"),
            (".bashrc", "dot"),
            ("-rf", "dash"),
            ("/etc/passwd", "separator"),
            ("a/b", "separator"),
            ("../a", "separator"),
            ("a\\b", "separator"),
            ("a\0", "control"),
            ("a\nb", "control"),
            ("a\u{1b}[2J", "control"),
            ("a\u{9b}", "control"),
            ("a\u{202e}gpj.exe", "shown"),
            (&longer, "longer"),
        ] {
            let why = check(name.as_bytes()).unwrap_err();
            assert!(why.contains(part), "{name:?}: {why}");
        }
        assert!(check(b"a\xff").unwrap_err().contains("UTF-8"));
    }
}
