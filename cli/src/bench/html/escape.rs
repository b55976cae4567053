//! Escapes text of a page, so that no name of a device, file or variable can act as markup.

use std::fmt::{self, Display, Write};

use crate::output::misleads;

/// Displays a value with every character replaced that has a meaning in HTML or XML.
pub(super) struct Escaped<T>(pub(super) T);

impl<T: Display> Display for Escaped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escapes(f), "{}", self.0)
    }
}

struct Escapes<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl Write for Escapes<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            match c {
                '&' => self.0.write_str("&amp;")?,
                '<' => self.0.write_str("&lt;")?,
                '>' => self.0.write_str("&gt;")?,
                '"' => self.0.write_str("&quot;")?,
                '\'' => self.0.write_str("&#39;")?,
                odd if misleads(odd) || is_no_text(odd) => self.0.write_char('\u{fffd}')?,
                plain => self.0.write_char(plain)?,
            }
        }
        Ok(())
    }
}

/// Returns true for U+FFFE and U+FFFF, which XML forbids.
fn is_no_text(c: char) -> bool {
    matches!(c, '\u{fffe}' | '\u{ffff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_text_is_markup() {
        let text = Escaped("</td><script>\"a\" & 'b'\0\n\u{202e}é").to_string();
        let safe =
            "&lt;/td&gt;&lt;script&gt;&quot;a&quot; &amp; &#39;b&#39;\u{fffd}\u{fffd}\u{fffd}é";
        assert_eq!(text, safe);
        assert_eq!(Escaped(1.5).to_string(), "1.5");
    }
}
