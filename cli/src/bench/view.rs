//! Prints a report for people, in 80 columns: a row for each point, and one below it for each
//! baseline.

use std::fmt::Write;

use super::report::{Measured, Report, Row, Versus};
use super::short::{count, counted, rate, size, time, times};
use crate::output::{BOLD, indented, wrapped};

/// Widths in columns: of the label of a row, and of each figure, which is right-aligned.
const WHAT: usize = 16;
const FIGURES: [(&str, usize); 8] = [
    ("p50", 7),
    ("p99", 7),
    ("p99.9", 7),
    ("max", 7),
    ("op/s", 6),
    ("B/s", 6),
    ("cpu/op", 7),
    ("alloc", 7),
];
const RATIO: usize = 8;

impl Report {
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        if let (Some(peer), false) = (&self.run.about.peer, self.points.is_empty()) {
            text += &wrapped(&format!("{} is {}", peer.address, peer.about));
        }
        for rows in self.points.chunk_by(|a, b| a.mode == b.mode) {
            if !text.is_empty() {
                text.push('\n');
            }
            self.heading(&mut text, rows[0].mode);
            for row in rows {
                point(&mut text, row);
            }
        }
        text.extend(self.not_traced().map(|note| format!("\n{note}\n")));
        text
    }

    fn heading(&self, text: &mut String, mode: &str) {
        let threads = counted(self.threads, "thread");
        let (title, seconds) = (self.title(), self.seconds);
        let of = format!("{title}, {mode}, {threads}, {seconds} s a point");
        let mut names = format!("{:>9}{:>7}", "size", "depth");
        for (name, width) in FIGURES {
            let _ = write!(names, "{name:>width$}");
        }
        if self.points.iter().any(|row| !row.vs.is_empty()) {
            let _ = write!(names, "{:>RATIO$}", "ratio");
        }
        let _ = writeln!(text, "{}{BOLD}{names}{BOLD:#}", wrapped(&of));
    }
}

fn point(text: &mut String, row: &Row) {
    let _ = write!(text, "{:>9}{:>7}", size(row.size), row.depth);
    figures(text, &row.measured);
    text.push('\n');
    if let Some(calls) = &row.system_calls {
        beside(text, "strace", &calls.words());
    }
    row.vs.iter().for_each(|versus| self::versus(text, versus));
}

fn versus(text: &mut String, versus: &Versus) {
    match &versus.measured {
        Some(measured) => {
            let _ = write!(text, "  {:<width$}", versus.name, width = WHAT - 2);
            figures(text, measured);
            let ratio = versus.ratio.map_or("-".to_owned(), times);
            let _ = writeln!(text, "{ratio:>RATIO$}");
        }
        None => beside(
            text,
            versus.name,
            &format!("not measured: {}", versus.why()),
        ),
    }
}

/// Writes a row of a label and a text.
fn beside(text: &mut String, name: &str, words: &str) {
    let _ = write!(text, "  {name:<width$}", width = WHAT - 2);
    let _ = write!(text, " {}", indented(words, WHAT + 1).trim_start());
}

fn figures(text: &mut String, measured: &Measured) {
    let latency = &measured.latency_ns;
    let time = |ns: u64| time(ns as f64);
    let values = [
        time(latency.p50),
        time(latency.p99),
        time(latency.p99_9),
        time(latency.max),
        rate(measured.operations_per_second),
        measured.bytes(),
        self::time(measured.cpu_ns_per_operation),
        count(measured.allocations_per_operation),
    ];
    for (value, (_, width)) in values.iter().zip(FIGURES) {
        let _ = write!(text, "{value:>width$}");
    }
}

#[cfg(test)]
mod tests {
    use super::super::about::Run;
    use super::super::report::Latency;
    use super::*;

    #[test]
    fn the_widest_rows_and_reasons_fit() {
        let measured = || Measured {
            operations: 1,
            seconds: 1.0,
            latency_ns: Latency {
                p50: 123_456,
                p99: 12_345,
                p99_9: 1_234_567,
                max: 12_345_678_901,
            },
            latency_cdf: Vec::new(),
            operations_per_second: 12_345.0,
            bytes_per_second: 1.2e13,
            cpu_ns_per_operation: 12_345.0,
            allocations_per_operation: 1234.5,
        };
        let versus = |measured, why: Option<String>| Versus {
            name: "spawn_blocking",
            ratio: Some(0.0123),
            measured,
            not_measured: why,
        };
        let report = Report {
            kind: "rdma-atomic",
            device: "a-device-with-a-long-name-0".to_owned(),
            provider: "verbs",
            threads: 16,
            seconds: 0.05,
            points: vec![Row {
                size: 1_073_741_823,
                depth: 4096,
                mode: "busy-poll",
                measured: measured(),
                system_calls: None,
                vs: vec![
                    versus(Some(measured()), None),
                    versus(None, Some(["reason"; 30].join(" "))),
                ],
            }],
            not_run: 0,
            run: Run::of_text("a test"),
        };
        let text = anstream::adapter::strip_str(&report.text()).to_string();
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        assert_eq!(text.matches("reason").count(), 30, "{text}");
        assert!(
            text.contains("  spawn_blocking not measured: reason"),
            "{text}"
        );
        assert!(text.contains("0.012x"), "{text}");
    }
}
