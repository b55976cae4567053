//! Reads a topology from a file of TOML, and names the line of what is wrong in it.

use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::Topology;
use super::card::Card;
use super::check::Invalid;
use crate::error::{Error, ErrorKind, Result};

/// The longest file, in bytes. A topology of thousands of functions is shorter.
const BYTES_MAX: u64 = 1 << 20;

pub(super) fn load(path: &Path) -> Result<Topology> {
    let os = |error| Error::os("Topology::load", path.display(), error);
    let invalid = |text| {
        let text = format!("{}: {text}", path.display());
        Error::new(ErrorKind::InvalidValue, "Topology::load", text)
    };
    let mut options = std::fs::OpenOptions::new();
    // Without `O_NONBLOCK`, opening a FIFO would wait for a writer.
    let file = options.read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = file.map_err(os)?;
    if !file.metadata().map_err(os)?.is_file() {
        return Err(invalid("it is no regular file".to_owned()));
    }
    let mut text = String::new();
    let read = file.take(BYTES_MAX + 1).read_to_string(&mut text);
    if read.map_err(os)? as u64 > BYTES_MAX {
        return Err(invalid(format!("it is longer than {BYTES_MAX} bytes")));
    }
    parse(&text).map_err(invalid)
}

/// Returns the topology, or a text with the line of what is wrong.
pub(super) fn parse(text: &str) -> Result<Topology, String> {
    let card = toml::from_str::<Card>(text).map_err(|error| Invalid {
        text: error.message().to_owned(),
        at: error.span().unwrap_or_default(),
    });
    card.and_then(Topology::checked)
        .map_err(|Invalid { text: wrong, at }| {
            let before = text.bytes().take(at.start);
            let line = 1 + before.filter(|&byte| byte == b'\n').count();
            format!("line {line}: {wrong}")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: &str = r#"
        [[port]]
        name = "p0"
        address = "03:00.0"
        function = [
            { name = "pf0", kind = "pf", address = "0b:00.0" },
            { name = "pf0vf0", kind = "vf", address = "0000:0b:00.2", representor = "hpf0vf0" },
            { name = "pf0vf1", kind = "vf", address = "0b:00.3", emulated = false },
            { name = "p0s0", kind = "sf" },
        ]

        [[port]]
        name = "p1"
        address = "03:00.1"
        [[port.function]]
        name = "pf1"
        kind = "pf"
        address = "0b:00.1"
        [[port.function]]
        name = "pf1vf0"
        kind = "vf"
        address = "0b:00.4"
        [[port.function]]
        name = "p1s0"
        kind = "sf"
    "#;

    #[test]
    fn the_default_can_be_written_down() {
        assert_eq!(parse(DEFAULT).unwrap(), Topology::default());
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let change = |from: &str, to: &str| DEFAULT.replacen(from, to, 1);
        let kinds = "unknown variant `xf`, expected one of `pf`, `vf`, `sf`";
        for (text, part) in [
            (String::new(), "line 1: 0 ports: a card has 1 to 255"),
            (
                "card = 7".into(),
                "line 1: invalid type: integer `7`, expected a string",
            ),
            (
                "\ncard = \"a b\"".into(),
                "line 2: the serial number \"a b\"",
            ),
            (
                "\n\nport = 7".into(),
                "line 3: invalid type: integer `7`, expected a sequence",
            ),
            (
                "port = [7]".into(),
                "line 1: invalid type: integer `7`, expected struct",
            ),
            (
                "\ncards = \"x\"".into(),
                "line 2: unknown field `cards`, expected `card` or `port`",
            ),
            (
                "[[port]]\nname = \"p0\"".into(),
                "line 1: missing field `address`",
            ),
            ("port = [".into(), "line 1: "),
            (change("\"sf\"", "\"xf\""), &format!("line 9: {kinds}")),
            (
                change("0b:00.0", "0b:00.9"),
                "line 6: \"0b:00.9\" is no PCI address: write",
            ),
            (
                change("false", "0"),
                "line 8: invalid type: integer `0`, expected a boolean",
            ),
            (
                change("kind", "kinds"),
                "line 6: unknown field `kinds`, expected one of `name`",
            ),
            (
                change("kind = \"pf\", ", ""),
                "line 6: missing field `kind`",
            ),
            (
                change("\"sf\"", "\"sf\", address = \"0b:00.7\""),
                "line 9: p0s0 is an sf: it has the address of its port",
            ),
            (
                change(", address = \"0b:00.0\"", ""),
                "line 6: pf0 has no address",
            ),
            (
                change("p1s0", "p0s0"),
                "line 24: two devices are called p0s0",
            ),
            (
                change("pf1vf0", "P"),
                "line 20: the name \"P\": 1 to 15 lower-case letters",
            ),
            (
                change("0b:00.4", "0b:00.2"),
                "line 22: two functions of the host are at 0000:0b:00.2",
            ),
            (
                change("03:00.1", "03:00.0"),
                "line 14: two ports are at 0000:03:00.0",
            ),
            (
                change("hpf0vf0", "hpf0"),
                "line 7: two representors are called hpf0",
            ),
            (
                change("hpf0vf0", "hpf0vf1"),
                "line 8: two representors are called hpf0vf1",
            ),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(error.starts_with(part), "{part:?}: {error}");
        }
    }
}
