//! `tokio-doca bench compare`: compares two runs whose reports were written by `bench --json`.

mod read;
mod view;

use std::path::PathBuf;

use serde::Serialize;

use super::short::{counted, rate, size};
use crate::failure::{Failure, Result, name};
use crate::output::{print, print_json};
use read::{Figures, Run};

#[derive(clap::Args)]
pub(super) struct Args {
    /// What bench --json has printed
    #[arg(value_name = "A.json")]
    before: PathBuf,
    /// What it has printed later, or on another system
    #[arg(value_name = "B.json")]
    after: PathBuf,
    /// Fail if a rate of B is lower by more, 0 to 100
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    fail_above: Option<f64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn percent(text: &str) -> Result<f64, String> {
    let percent = text.parse::<f64>().ok();
    let percent = percent.filter(|it| (0.0..=100.0).contains(it));
    percent.ok_or_else(|| "write 0 to 100, for example 5".to_owned())
}

/// The result of a comparison; `--json` prints all of it.
#[derive(Debug, Serialize)]
struct Comparison {
    kind: &'static str,
    threads: usize,
    a: Side,
    b: Side,
    points: Vec<Row>,
    only_in_a: Vec<Key>,
    only_in_b: Vec<Key>,
}

/// The file of a run, and where and when the run was made.
#[derive(Debug, Serialize)]
struct Side {
    file: String,
    device: String,
    provider: String,
    /// The address of the other side, if that was in another process.
    peer: Option<String>,
    date: Option<String>,
}

/// The size, depth and mode of a point. No two points of a run share all three.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Key {
    size: usize,
    depth: usize,
    mode: &'static str,
}

#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    key: Key,
    #[serde(flatten)]
    changes: Changes,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    vs: Vec<Versus>,
}

/// The changes of one baseline that both runs measured.
#[derive(Debug, Serialize)]
struct Versus {
    name: &'static str,
    #[serde(flatten)]
    changes: Changes,
}

#[derive(Debug, Serialize)]
struct Changes {
    p50_ns: Change,
    p99_ns: Change,
    operations_per_second: Change,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Change {
    a: f64,
    b: f64,
    /// How much larger `b` is than `a`, in percent. `None` if `a` is 0.
    percent: Option<f64>,
}

pub(super) fn run(args: &Args) -> Result {
    let (a, b) = (read::run(&args.before)?, read::run(&args.after)?);
    let names = (name(&args.before), name(&args.after));
    let comparison = Comparison::of(names, a, b)?;
    match args.json {
        true => print_json(&comparison)?,
        false => print(&comparison.text())?,
    }
    let slower = args.fail_above.and_then(|most| comparison.slower(most));
    slower.map_or(Ok(()), |why| Err(Failure::Failed(why)))
}

impl Comparison {
    /// Compares the runs `a` and `b`. Fails if they differ in kind or threads, or have no point in
    /// common.
    fn of(names: (String, String), a: Run, b: Run) -> Result<Comparison> {
        let with = |run: &Run| format!("{} by {}", run.kind, counted(run.threads, "thread"));
        if (a.kind, a.threads) != (b.kind, b.threads) {
            let (of_a, of_b) = (with(&a), with(&b));
            let text = format!(
                "{} has {of_a}, and {} has {of_b}: compare runs of one kind, with equal --threads",
                names.0, names.1
            );
            return Err(Failure::Failed(text));
        }
        let mut points = Vec::new();
        for point in &a.points {
            points.extend(b.find(point.key).map(|other| Row::of(point, other)));
        }
        if points.is_empty() {
            return Err(Failure::Failed(format!(
                "{} and {} have no point in common: compare runs of equal sizes, depths and modes",
                names.0, names.1
            )));
        }
        let only = |run: &Run, other: &Run| {
            let keys = run.points.iter().map(|it| it.key);
            keys.filter(|it| other.find(*it).is_none()).collect()
        };
        Ok(Comparison {
            kind: a.kind,
            threads: a.threads,
            only_in_a: only(&a, &b),
            only_in_b: only(&b, &a),
            a: Side::of(names.0, a),
            b: Side::of(names.1, b),
            points,
        })
    }

    /// Returns the sentence with which the command fails if a rate of the kind fell by more than
    /// `most` percent.
    fn slower(&self, most: f64) -> Option<String> {
        let rates = self.points.iter().filter_map(|row| {
            let rate = row.changes.operations_per_second;
            Some((row.key, rate, rate.percent?))
        });
        let mut fallen: Vec<_> = rates.filter(|(.., percent)| *percent < -most).collect();
        fallen.sort_by(|(.., a), (.., b)| a.total_cmp(b));
        let (key, change, percent) = fallen.first()?;
        Some(format!(
            "{} of {} rates fell by more than {most} %, most that of {}: {} to {} op/s, \
             {percent:.1} %",
            fallen.len(),
            self.points.len(),
            key.words(),
            rate(change.a),
            rate(change.b)
        ))
    }
}

impl Side {
    fn of(file: String, run: Run) -> Side {
        Side {
            file,
            device: run.device,
            provider: run.provider,
            peer: run.peer,
            date: run.date,
        }
    }
}

impl Key {
    fn words(self) -> String {
        let size = size(self.size);
        format!("{size} bytes, depth {}, {}", self.depth, self.mode)
    }
}

impl Row {
    fn of(a: &read::Point, b: &read::Point) -> Row {
        let versus = a.vs.iter().filter_map(|(name, figures)| {
            let (_, other) = b.vs.iter().find(|(other, _)| other == name)?;
            Some(Versus {
                name,
                changes: Changes::of(figures, other),
            })
        });
        Row {
            key: a.key,
            changes: Changes::of(&a.figures, &b.figures),
            vs: versus.collect(),
        }
    }
}

impl Changes {
    fn of(a: &Figures, b: &Figures) -> Changes {
        Changes {
            p50_ns: Change::of(a.p50 as f64, b.p50 as f64),
            p99_ns: Change::of(a.p99 as f64, b.p99 as f64),
            operations_per_second: Change::of(a.rate, b.rate),
        }
    }
}

impl Change {
    fn of(a: f64, b: f64) -> Change {
        let percent = (b / a - 1.0) * 100.0;
        Change {
            a,
            b,
            percent: percent.is_finite().then_some(percent),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_share_of_a_rate() {
        for (text, value) in [("0", 0.0), ("5", 5.0), ("2.5", 2.5), ("100", 100.0)] {
            assert_eq!(percent(text), Ok(value));
        }
        for text in ["", "-1", "101", "nan", "inf", "5%", "x"] {
            assert!(percent(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_change_of_nothing_has_no_percent() {
        assert_eq!(Change::of(200.0, 150.0).percent, Some(-25.0));
        assert_eq!(Change::of(200.0, 0.0).percent, Some(-100.0));
        assert_eq!(Change::of(0.0, 1.0).percent, None);
        assert_eq!(Change::of(0.0, 0.0).percent, None);
    }
}
