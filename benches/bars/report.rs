//! The lines.

/// What a figure must reach.
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
    missed: Vec<String>,
}

impl Report {
    pub(crate) fn begin() -> Report {
        println!("{:<14} {:>12} {:>10}      what", "name", "measured", "bar");
        Report { missed: Vec::new() }
    }

    /// One bar. `unit` stands behind both numbers: `x`, `ns`, nothing.
    pub(crate) fn line(&mut self, name: &str, measured: f64, goal: Goal, unit: &str, what: &str) {
        let digits = if measured < 10.0 && unit == "x" {
            2
        } else {
            usize::from(measured.fract() != 0.0)
        };
        let (sign, bar) = match goal {
            AtMost(bar) => ("<=", bar),
            AtLeast(bar) => (">=", bar),
            Exactly(bar) => ("=", bar),
        };
        let verdict = if goal.reached(measured) { "ok" } else { "MISS" };
        let measured = format!("{measured:.digits$}{unit}");
        println!(
            "{name:<14} {measured:>12} {:>10} {verdict:<4} {what}",
            format!("{sign}{bar}{unit}")
        );
        if verdict == "MISS" {
            self.missed.push(name.to_owned());
        }
    }

    /// A bar that could not be measured here.
    pub(crate) fn skip(&mut self, name: &str, why: &str) {
        println!("{name:<14} {:>12} {:>10} {:<4} {why}", "-", "-", "skip");
    }

    /// Whether a bar was missed.
    pub(crate) fn end(self) -> bool {
        if !self.missed.is_empty() {
            println!("missed: {}", self.missed.join(" "));
        }
        !self.missed.is_empty()
    }
}
