//! Escaping of text that may come from outside: a blob's path, a topology, an environment variable.

use std::borrow::Cow;

/// Escapes every character that is not printable: control characters, line ends, and the marks that
/// change the direction of text. So text from a blob can neither add lines to a log nor control the
/// terminal that shows it.
///
/// The rule is that of [`char::escape_debug`], except that quotes and backslashes stay.
pub(super) fn printable(text: Cow<'static, str>) -> Cow<'static, str> {
    if text.chars().all(is_printable) {
        return text;
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for char in text.chars() {
        match is_printable(char) {
            true => escaped.push(char),
            false => escaped.extend(char.escape_debug()),
        }
    }
    Cow::Owned(escaped)
}

fn is_printable(char: char) -> bool {
    matches!(char, '"' | '\'' | '\\') || char.escape_debug().len() == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_printable_is_escaped_and_the_rest_stays() {
        for plain in ["", "no device \"x\": C:\\it's", "naïve ≤ 日本"] {
            assert!(matches!(printable(plain.into()), Cow::Borrowed(same) if same == plain));
        }
        for (text, shown) in [
            ("a\nb\r\tc\0", r"a\nb\r\tc\0"),
            ("\x1b[2J\x07\x7f\u{9b}", r"\u{1b}[2J\u{7}\u{7f}\u{9b}"),
            (
                "\u{202e}\u{2066}\u{200b}\u{2028}",
                r"\u{202e}\u{2066}\u{200b}\u{2028}",
            ),
        ] {
            assert_eq!(printable(text.into()), shown);
        }
    }
}
