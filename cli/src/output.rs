//! Prints on stdout: tables of at most 80 columns, JSON, and lines.

use std::io::{self, Write};

use anstyle::Style;
use comfy_table::{ContentArrangement, Table, presets::NOTHING};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::failure::{Failure, Result, reason};

/// The width of a table in columns. It is the same for a terminal and a pipe.
const COLUMNS: u16 = 80;

/// The style of headings if the output is a terminal.
pub(crate) const BOLD: Style = Style::new().bold();

/// Maps the error of a write: a closed pipe is told apart from an output that cannot be written.
pub(crate) fn written(result: io::Result<()>) -> Result {
    result.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::Closed,
        _ => Failure::Failed(format!("cannot write the output: {}", reason(&error))),
    })
}

/// Returns true for characters that change how the text around them is shown: control characters,
/// and those that have no width or set the direction of writing. A stranger's text may have them.
pub(crate) fn misleads(c: char) -> bool {
    let direction = matches!(c, '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}');
    c.is_control() || direction || matches!(c, '\u{200b}'..='\u{200f}' | '\u{feff}')
}

/// Prints text on stdout. Its styles are shown only on a terminal.
pub(crate) fn print(text: &str) -> Result {
    let mut out = anstream::stdout().lock();
    written(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// Prints bytes on stdout as they are.
pub(crate) fn print_bytes(bytes: &[u8]) -> Result {
    let mut out = io::stdout().lock();
    written(out.write_all(bytes).and_then(|()| out.flush()))
}

pub(crate) fn print_json(value: &impl Serialize) -> Result {
    let text = serde_json::to_string_pretty(value);
    let text = text.map_err(|error| format!("cannot write JSON: {error}"))?;
    print_bytes(format!("{text}\n").as_bytes())
}

/// Makes a progress bar for bytes on stderr, which is shown only if stderr is a terminal.
pub(crate) fn bar(size: u64, what: &'static str) -> ProgressBar {
    let template = "{msg} {bar:20} {percent:>3} % of {total_bytes}, {bytes_per_sec}, {eta} left";
    let style = ProgressStyle::with_template(template).expect("the template is right");
    let bar = ProgressBar::new(size).with_style(style.progress_chars("#>-"));
    bar.with_message(what)
}

/// Breaks a sentence into lines between its words.
pub(crate) fn wrapped(text: &str) -> String {
    indented(text, 0)
}

/// Breaks a sentence into lines that begin with `indent` spaces.
pub(crate) fn indented(text: &str, indent: usize) -> String {
    within(text, indent, COLUMNS.into())
}

/// Breaks a sentence into lines that begin with `indent` spaces and end at `columns`.
pub(crate) fn within(text: &str, indent: usize, columns: usize) -> String {
    let margin = " ".repeat(indent);
    let mut lines = margin.clone();
    let mut column = indent;
    for word in text.split(' ') {
        let length = word.chars().count();
        if column > indent && column + 1 + length > columns {
            lines.push('\n');
            lines.push_str(&margin);
            column = indent;
        } else if column > indent {
            lines.push(' ');
            column += 1;
        }
        lines.push_str(word);
        column += length;
    }
    lines.push('\n');
    lines
}

/// A table without borders, whose heading is bold.
pub(crate) fn table<const N: usize>(heading: [&str; N], rows: &[[String; N]]) -> String {
    let mut table = Table::new();
    table
        .load_preset(NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(COLUMNS)
        .set_header(heading)
        .add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let text = table.trim_fmt();
    let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
    let end = if rest.is_empty() { "" } else { "\n" };
    format!("{BOLD}{first}{BOLD:#}\n{rest}{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_between_words() {
        let text = wrapped(&["word"; 40].join(" "));
        assert_eq!(text.lines().map(str::len).collect::<Vec<_>>(), [79, 79, 39]);
        assert_eq!(wrapped("a b"), "a b\n");
        let long = "x".repeat(90);
        assert_eq!(wrapped(&format!("a {long}")), format!("a\n{long}\n"));
        let text = indented(&["word"; 20].join(" "), 10);
        assert_eq!(text.lines().map(str::len).collect::<Vec<_>>(), [79, 39]);
    }
}
