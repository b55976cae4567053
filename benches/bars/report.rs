//! The report: a line for each bar.

/// The goal that a figure must reach.
#[derive(Clone, Copy)]
pub(crate) enum Goal {
    AtMost(f64),
    AtLeast(f64),
    Exactly(f64),
}

use Goal::{AtLeast, AtMost, Exactly};

impl Goal {
    fn reached(self, measured: f64) -> bool {
        match self {
            AtMost(bar) => measured <= bar,
            AtLeast(bar) => measured >= bar,
            Exactly(bar) => measured == bar,
        }
    }
}

pub(crate) struct Report {
    lines: Vec<Line>,
}

/// The measurement of one bar.
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) measured: f64,
    pub(crate) unit: String,
    /// The goal as it is printed: `<=1.1x`.
    pub(crate) bar: String,
    pub(crate) met: bool,
    pub(crate) what: String,
}

impl Line {
    /// Formats the measurement as a line of a file.
    fn format(&self) -> String {
        let Line {
            name,
            measured,
            unit,
            bar,
            met,
            what,
        } = self;
        format!("{name}\t{measured}\t{unit}\t{bar}\t{met}\t{what}\n")
    }

    /// Parses a line that `format` returned, without its line break.
    pub(crate) fn parse(text: &str) -> Option<Line> {
        let mut fields = text.split('\t');
        let mut next = || fields.next().map(str::to_owned);
        Some(Line {
            name: next()?,
            measured: next()?.parse().ok()?,
            unit: next()?,
            bar: next()?,
            met: next()?.parse().ok()?,
            what: next()?,
        })
    }
}

/// Formats a figure with as many digits as it needs.
pub(crate) fn figure(measured: f64, unit: &str) -> String {
    let digits = match measured < 10.0 && unit == "x" {
        true => 2,
        false => usize::from(measured.fract() != 0.0),
    };
    format!("{measured:.digits$}{unit}")
}

impl Report {
    pub(crate) fn begin() -> Report {
        println!("{:<14} {:>12} {:>10}      what", "name", "measured", "bar");
        Report { lines: Vec::new() }
    }

    /// Reports a bar: prints its line and stores it. `unit` follows both numbers: `x`, `ns` or
    /// nothing.
    pub(crate) fn line(&mut self, name: &str, measured: f64, goal: Goal, unit: &str, what: &str) {
        let (sign, bar) = match goal {
            AtMost(bar) => ("<=", bar),
            AtLeast(bar) => (">=", bar),
            Exactly(bar) => ("=", bar),
        };
        let (bar, met) = (format!("{sign}{bar}{unit}"), goal.reached(measured));
        let verdict = if met { "ok" } else { "MISS" };
        let figure = figure(measured, unit);
        let named = |line: &&Line| line.name.split('#').next() == Some(name);
        let name = match self.lines.iter().filter(named).count() {
            0 => name.to_owned(),
            before => format!("{name}#{}", before + 1),
        };
        println!("{name:<14} {figure:>12} {bar:>10} {verdict:<4} {what}");
        self.lines.push(Line {
            name,
            measured,
            unit: unit.to_owned(),
            bar,
            met,
            what: what.to_owned(),
        });
    }

    /// Reports a bar that a tool counts, or why it cannot be counted here.
    pub(crate) fn counted(
        &mut self,
        name: &str,
        counted: Result<f64, String>,
        goal: Goal,
        what: &str,
    ) {
        match counted {
            Ok(count) => self.line(name, count, goal, "", what),
            Err(why) => self.skip(name, &why),
        }
    }

    /// Reports that a bar could not be measured here.
    pub(crate) fn skip(&mut self, name: &str, why: &str) {
        println!("{name:<14} {:>12} {:>10} {:<4} {why}", "-", "-", "skip");
    }

    /// Prints the missed bars, and returns all lines in the order in which they were measured.
    pub(crate) fn end(self) -> Vec<Line> {
        let missed = self.lines.iter().filter(|line| !line.met);
        let missed: Vec<&str> = missed.map(|line| line.name.as_str()).collect();
        if !missed.is_empty() {
            println!("missed: {}", missed.join(" "));
        }
        if let Some(file) = std::env::var_os(super::page::LINES) {
            let lines: String = self.lines.iter().map(Line::format).collect();
            std::fs::write(file, lines).expect("the file of the page");
        }
        self.lines
    }
}
