//! Reads a report that `bench --json` printed. Names of kinds, modes and baselines must be ones
//! that this program knows; of other texts, `plain` cuts the length and replaces
//! characters that mislead.

use std::path::Path;

use serde::Deserialize;

use super::Key;
use crate::bench::kind::{BASELINES, KINDS, MODES};
use crate::bench::range::{DEPTH, SIZE};
use crate::bench::{POINTS, THREADS};
use crate::failure::name;
use crate::output::misleads;
use crate::system;

/// The longest file that is read, in bytes. A run of all points is shorter.
const LONGEST: u64 = 16 << 20;

/// The largest latency and rate that fit in a table: an hour, and an operation each picosecond.
const NANOSECONDS: u64 = 3_600_000_000_000;
const RATE: f64 = 1e12;

pub(super) struct Run {
    pub(super) kind: &'static str,
    pub(super) device: String,
    pub(super) provider: String,
    pub(super) threads: usize,
    pub(super) peer: Option<String>,
    pub(super) date: Option<String>,
    pub(super) points: Vec<Point>,
}

pub(super) struct Point {
    pub(super) key: Key,
    pub(super) figures: Figures,
    /// The baselines that were measured alternately with the run's kind of operation.
    pub(super) vs: Vec<(&'static str, Figures)>,
}

pub(super) struct Figures {
    pub(super) p50: u64,
    pub(super) p99: u64,
    /// Operations per second.
    pub(super) rate: f64,
}

impl Run {
    pub(super) fn find(&self, key: Key) -> Option<&Point> {
        self.points.iter().find(|it| it.key == key)
    }
}

/// The fields of the JSON file that are read.
#[derive(Deserialize)]
struct Report {
    kind: String,
    device: String,
    provider: String,
    threads: usize,
    points: Vec<Row>,
    run: Option<About>,
}

#[derive(Deserialize)]
struct About {
    date: String,
    peer: Option<Peer>,
}

#[derive(Deserialize)]
struct Peer {
    address: String,
}

#[derive(Deserialize)]
struct Row {
    size: usize,
    depth: usize,
    mode: String,
    latency_ns: Latency,
    operations_per_second: f64,
    #[serde(default)]
    vs: Vec<Versus>,
}

/// A baseline of a point. The figures are missing if the baseline was not measured.
#[derive(Deserialize)]
struct Versus {
    name: String,
    latency_ns: Option<Latency>,
    operations_per_second: Option<f64>,
}

#[derive(Deserialize)]
struct Latency {
    p50: u64,
    p99: u64,
}

pub(super) fn run(path: &Path) -> Result<Run, String> {
    let bytes = system::bytes_within(path, LONGEST)?;
    let odd = |why: &str| format!("{} is no output of bench --json: {why}", name(path));
    let report = serde_json::from_slice::<Report>(&bytes).map_err(|error| {
        let line = error.line();
        odd(&match error.is_data() {
            true => format!("line {line} has something else"),
            false => format!("line {line} is no JSON"),
        })
    })?;
    run_of(report).map_err(|why| odd(&why))
}

fn run_of(report: Report) -> Result<Run, String> {
    let points = report.points.len();
    if points > POINTS {
        return Err(format!(
            "it has {points} points, and a run {POINTS} at most"
        ));
    }
    if report.threads > THREADS {
        return Err(format!("it has more than {THREADS} threads"));
    }
    Ok(Run {
        kind: known(&KINDS, &report.kind, "kind")?,
        device: plain(&report.device),
        provider: plain(&report.provider),
        threads: report.threads,
        date: report.run.as_ref().map(|it| plain(&it.date)),
        peer: report
            .run
            .and_then(|it| it.peer)
            .map(|it| plain(&it.address)),
        points: report
            .points
            .into_iter()
            .map(point)
            .collect::<Result<_, _>>()?,
    })
}

fn point(row: Row) -> Result<Point, String> {
    if row.size as u64 > SIZE || row.depth as u64 > DEPTH {
        return Err("a size or a depth is larger than that of a run".to_owned());
    }
    let mut vs = Vec::new();
    for versus in row.vs {
        let name = known(&BASELINES, &versus.name, "baseline")?;
        if let (Some(latency), Some(rate)) = (versus.latency_ns, versus.operations_per_second) {
            vs.push((name, figures(&latency, rate)?));
        }
    }
    Ok(Point {
        key: Key {
            size: row.size,
            depth: row.depth,
            mode: known(&MODES, &row.mode, "mode")?,
        },
        figures: figures(&row.latency_ns, row.operations_per_second)?,
        vs,
    })
}

fn figures(latency: &Latency, rate: f64) -> Result<Figures, String> {
    if latency.p50.max(latency.p99) > NANOSECONDS || !(0.0..=RATE).contains(&rate) {
        return Err("a latency or a rate is none that bench measures".to_owned());
    }
    Ok(Figures {
        p50: latency.p50,
        p99: latency.p99,
        rate,
    })
}

/// Returns `text` as a name of the list `names`, or an error if the list does not have it.
fn known<T>(names: &[(&'static str, T)], text: &str, what: &str) -> Result<&'static str, String> {
    let found = names.iter().find(|(name, _)| *name == text);
    let found = found.map(|(name, _)| *name);
    found.ok_or_else(|| format!("it has a {what} that bench has not"))
}

/// Returns at most 64 characters of a text of the file, with `?` for those that mislead.
fn plain(text: &str) -> String {
    let plain = text.chars().take(64);
    plain.map(|c| if misleads(c) { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_the_file_does_nothing_to_a_terminal() {
        assert_eq!(plain("pf0\u{1b}[31m\n\u{202e}"), "pf0?[31m??");
        assert_eq!(plain(&"x".repeat(1000)).len(), 64);
    }
}
