//! A topology as TOML: read by hand from the parser's tables, so that what is wrong is named with its line.

use std::collections::BTreeMap;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::{Function, Port, Topology};
use crate::device::{PciAddr, PciFunction};
use crate::error::{Error, ErrorKind, Result};

/// Nobody's topology is as long as that.
const BYTES_MAX: u64 = 1 << 20;

pub(super) fn load(path: &Path) -> Result<Topology> {
    let os = |error| Error::os("Topology::load", path.display(), error);
    let mut options = std::fs::OpenOptions::new();
    // It does not wait for whoever writes a FIFO.
    let file = options.read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = file.map_err(os)?;
    if !file.metadata().map_err(os)?.is_file() {
        let text = format!("{} is no regular file", path.display());
        return Err(Error::new(ErrorKind::InvalidValue, "Topology::load", text));
    }
    let mut text = String::new();
    let read = file.take(BYTES_MAX + 1).read_to_string(&mut text);
    if read.map_err(os)? as u64 > BYTES_MAX {
        let text = format!("{} is longer than {BYTES_MAX} bytes", path.display());
        return Err(Error::new(ErrorKind::InvalidValue, "Topology::load", text));
    }
    parse(&text).map_err(|error| {
        let text = format!("{}: {}", path.display(), error.message());
        Error::new(error.kind(), "Topology::load", text)
    })
}

pub(super) fn parse(text: &str) -> Result<Topology> {
    read(text).map_err(|wrong| match wrong.at {
        Some(at) => {
            let line = 1 + text[..at.start.min(text.len())].matches('\n').count();
            let text = format!("line {line}: {}", wrong.text);
            Error::new(ErrorKind::InvalidValue, "Topology::from_str", text)
        }
        None => Error::new(ErrorKind::InvalidValue, "Topology::from_str", wrong.text),
    })
}

/// What is wrong, and where.
struct Wrong {
    text: String,
    at: Option<Range<usize>>,
}

impl Wrong {
    fn new(text: impl Into<String>, at: Range<usize>) -> Wrong {
        Wrong {
            text: text.into(),
            at: Some(at),
        }
    }
}

fn read(text: &str) -> Result<Topology, Wrong> {
    let table = DeTable::parse(text).map_err(|error| Wrong {
        text: error.message().to_owned(),
        at: error.span(),
    })?;
    let at = table.span();
    let mut table = Fields::of(table.get_ref(), &at);
    let mut builder = Topology::builder();
    if let Some(card) = table.text("card")? {
        builder = builder.card(card);
    }
    for mut table in table.tables("port")? {
        let mut port = Port::new(table.needed("name")?, table.addr()?);
        for mut table in table.tables("function")? {
            port = port.function(function(&mut table)?);
            table.end()?;
        }
        table.end()?;
        builder = builder.port(port);
    }
    table.end()?;
    builder.build().map_err(|error| Wrong {
        text: error.message().to_owned(),
        at: None,
    })
}

fn function(table: &mut Fields<'_>) -> Result<Function, Wrong> {
    let name = table.needed("name")?.to_owned();
    let kind = match table.needed("kind")? {
        "pf" => PciFunction::Pf,
        "vf" => PciFunction::Vf,
        "sf" => PciFunction::Sf,
        other => {
            let text = format!("\"{other}\" is no kind of function: there are pf, vf and sf");
            return Err(Wrong::new(text, table.at.clone()));
        }
    };
    let addr = match kind {
        PciFunction::Sf => None,
        PciFunction::Pf | PciFunction::Vf => Some(table.addr()?),
    };
    let mut function = Function::new(name, addr, kind);
    if let Some(representor) = table.text("representor")? {
        function = function.representor(representor);
    }
    if table.yes("emulated")? {
        function = function.emulated();
    }
    Ok(function)
}

/// A value, and where it stands.
type Value<'a> = (&'a DeValue<'a>, Range<usize>);

/// What of a table has not been read yet.
struct Fields<'a> {
    fields: BTreeMap<&'a str, Value<'a>>,
    at: Range<usize>,
}

impl<'a> Fields<'a> {
    fn of(table: &'a DeTable<'a>, at: &Range<usize>) -> Fields<'a> {
        let field = |(key, value): (&'a toml::Spanned<_>, &'a toml::Spanned<DeValue<'a>>)| {
            let key: &std::borrow::Cow<'a, str> = key.get_ref();
            (&**key, (value.get_ref(), value.span()))
        };
        Fields {
            fields: table.iter().map(field).collect(),
            at: at.clone(),
        }
    }

    fn text(&mut self, key: &str) -> Result<Option<&'a str>, Wrong> {
        let Some((value, at)) = self.fields.remove(key) else {
            return Ok(None);
        };
        let text = value.as_str();
        text.map(Some)
            .ok_or_else(|| Wrong::new(format!("{key} is a string"), at))
    }

    fn needed(&mut self, key: &str) -> Result<&'a str, Wrong> {
        let at = self.at.clone();
        self.text(key)?
            .ok_or_else(|| Wrong::new(format!("{key} is missing"), at))
    }

    fn addr(&mut self) -> Result<PciAddr, Wrong> {
        let text = self.needed("address")?;
        let addr = text.parse();
        addr.map_err(|error: Error| Wrong::new(error.to_string(), self.at.clone()))
    }

    fn yes(&mut self, key: &str) -> Result<bool, Wrong> {
        let Some((value, at)) = self.fields.remove(key) else {
            return Ok(false);
        };
        let yes = value.as_bool();
        yes.ok_or_else(|| Wrong::new(format!("{key} is true or false"), at))
    }

    fn tables(&mut self, key: &str) -> Result<Vec<Fields<'a>>, Wrong> {
        let Some((value, at)) = self.fields.remove(key) else {
            return Ok(Vec::new());
        };
        let wrong = || Wrong::new(format!("{key} is a list of tables: [[{key}]]"), at.clone());
        let mut tables = Vec::new();
        for value in value.as_array().ok_or_else(wrong)?.iter() {
            let table = value.get_ref().as_table().ok_or_else(wrong)?;
            tables.push(Fields::of(table, &value.span()));
        }
        Ok(tables)
    }

    /// Nothing else stands there.
    fn end(self) -> Result<(), Wrong> {
        match self.fields.into_iter().next() {
            None => Ok(()),
            Some((key, (_, at))) => Err(Wrong::new(format!("{key} means nothing here"), at)),
        }
    }
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
        for (text, part) in [
            (String::new(), "0 ports"),
            ("card = 7".into(), "line 1: card is a string"),
            ("\n\nport = 7".into(), "line 3: port is a list of tables"),
            ("port = [7]".into(), "line 1: port is a list of tables"),
            ("cards = \"x\"".into(), "line 1: cards means nothing here"),
            (
                "[[port]]\nname = \"p0\"".into(),
                "line 1: address is missing",
            ),
            ("port = [".into(), "line 1: "),
            (change("\"sf\"", "\"xf\""), "line 9: \"xf\" is no kind"),
            (change("0b:00.0", "0b:00.9"), "line 6: PciAddr"),
            (change("false", "0"), "line 8: emulated is true or false"),
            (change("kind", "kinds"), "line 6: kind is missing"),
            (
                change("\"sf\"", "\"sf\", address = \"0b:00.7\""),
                "line 9: address means nothing",
            ),
            (change("p1s0", "p0s0"), "\"p0s0\" stands there twice"),
        ] {
            let error = parse(&text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidValue);
            assert!(error.to_string().contains(part), "{part:?}: {error}");
        }
    }
}
