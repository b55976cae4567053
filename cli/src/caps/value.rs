//! A limit or an operation: its key in JSON, its words, and its value.

use std::fmt::Write;

use serde::Serialize;

use crate::output::indented;

/// The column at which a value begins.
const VALUE: usize = 36;

/// A value. JSON has it as it is; the text for people adds the unit.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Value {
    Is(bool),
    Count(u64),
    Bytes(u64),
    Text(String),
    List(Vec<u32>),
    None,
}

/// One limit or operation: its key in JSON, its words, and its value.
pub(super) struct Row(
    pub(super) &'static str,
    pub(super) &'static str,
    pub(super) Value,
);

impl Row {
    /// Returns true if the row says that the device lacks something.
    pub(super) fn is_lack(&self) -> bool {
        matches!(self.2, Value::Is(false))
    }

    /// Returns the line of the row. `why` is the reason of a lack.
    pub(super) fn line(&self, why: Option<&str>) -> String {
        let mut value = self.2.text();
        if let Some(why) = why {
            let _ = write!(value, ": {why}");
        }
        let value = indented(&value, VALUE);
        format!("  {:<1$}{2}", self.1, VALUE - 2, value.trim_start())
    }
}

impl Value {
    fn text(&self) -> String {
        match self {
            Value::Is(true) => "yes".to_owned(),
            Value::Is(false) => "no".to_owned(),
            Value::Count(NO_LIMIT | u64::MAX) => "no limit".to_owned(),
            Value::Count(count) => grouped(*count),
            Value::Bytes(bytes) => match *bytes {
                bytes if bytes >= i64::MAX as u64 => "no limit".to_owned(),
                bytes => bytes_text(bytes),
            },
            Value::Text(text) => text.clone(),
            Value::List(list) => format!("{list:?}"),
            Value::None => "none".to_owned(),
        }
    }
}

/// A 32-bit count with this value means that there is no limit.
const NO_LIMIT: u64 = u32::MAX as u64;

/// Returns a number with commas between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns a number of bytes in the largest binary unit that it is a multiple of.
fn bytes_text(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units
        .iter()
        .find(|(bits, _)| bytes > 0 && bytes.is_multiple_of(1 << bits));
    match unit {
        Some((bits, unit)) => format!("{} bytes ({} {unit})", grouped(bytes), bytes >> bits),
        None => format!("{} bytes", grouped(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_by_persons() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(bytes_text(1 << 31), "2,147,483,648 bytes (2 GiB)");
        assert_eq!(bytes_text(1000), "1,000 bytes");
        assert_eq!(bytes_text(0), "0 bytes");
    }
}
