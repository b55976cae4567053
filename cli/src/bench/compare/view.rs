//! Prints a comparison for people, in 80 columns: a row for each point of both runs, and below it a
//! row for each baseline of both.

use std::fmt::Write;

use super::{Change, Changes, Comparison, Key, Side};
use crate::bench::short::{counted, rate, size, time};
use crate::output::{BOLD, wrapped};

/// Widths in columns: of the label of a row, and of each of the three figures.
const WHAT: usize = 16;
const NUMBER: usize = 7;

impl Comparison {
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        side(&mut text, "A", &self.a);
        side(&mut text, "B", &self.b);
        for rows in self.points.chunk_by(|a, b| a.key.mode == b.key.mode) {
            self.heading(&mut text, rows[0].key.mode);
            for row in rows {
                let Key { size, depth, .. } = row.key;
                let _ = write!(text, "{:>9}{depth:>7}", self::size(size));
                changes(&mut text, &row.changes);
                for versus in &row.vs {
                    let _ = write!(text, "  {:<width$}", versus.name, width = WHAT - 2);
                    changes(&mut text, &versus.changes);
                }
            }
        }
        for (name, keys) in [("A", &self.only_in_a), ("B", &self.only_in_b)] {
            for key in keys {
                let _ = writeln!(text, "only in {name}: {}", key.words());
            }
        }
        text
    }

    fn heading(&self, text: &mut String, mode: &str) {
        let threads = counted(self.threads, "thread");
        let mut names = format!("{:>9}{:>7}", "size", "depth");
        for name in ["p50 A", "p99 A", "op/s A"] {
            let _ = write!(
                names,
                "{name:>NUMBER$}{:>NUMBER$}{:>NUMBER$}",
                "B", "change"
            );
        }
        let kind = self.kind;
        let _ = writeln!(text, "\n{kind}, {mode}, {threads}\n{BOLD}{names}{BOLD:#}");
    }
}

fn side(text: &mut String, name: &str, side: &Side) {
    let Side {
        file,
        device,
        provider,
        peer,
        date,
    } = side;
    let date = date.as_ref().map_or(String::new(), |it| format!(", {it}"));
    let peer = peer
        .as_ref()
        .map_or(String::new(), |it| format!(" with {it}"));
    let of = format!("{name}: {file}, by {device} ({provider}){peer}{date}");
    text.push_str(&wrapped(&of));
}

fn changes(text: &mut String, changes: &Changes) {
    let Changes {
        p50_ns,
        p99_ns,
        operations_per_second,
    } = changes;
    change(text, p50_ns, time);
    change(text, p99_ns, time);
    change(text, operations_per_second, rate);
    text.push('\n');
}

fn change(text: &mut String, change: &Change, short: fn(f64) -> String) {
    let percent = change.percent.map_or("-".to_owned(), percent);
    let (a, b) = (short(change.a), short(change.b));
    let _ = write!(text, "{a:>NUMBER$}{b:>NUMBER$}{percent:>NUMBER$}");
}

/// Formats a percentage in at most six characters.
fn percent(percent: f64) -> String {
    match percent {
        few if few.abs() < 99.95 => format!("{few:+.1}%"),
        many if many < 9999.5 => format!("{many:+.0}%"),
        _ => ">9999%".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_short() {
        for (change, text) in [
            (0.0, "+0.0%"),
            (-12.34, "-12.3%"),
            (99.96, "+100%"),
            (-100.0, "-100%"),
            (1234.4, "+1234%"),
            (1e9, ">9999%"),
        ] {
            assert_eq!(percent(change), text);
        }
    }
}
