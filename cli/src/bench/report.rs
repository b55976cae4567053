//! The report of a run, which `--json` prints.

use serde::Serialize;
use serde::ser::{Error as _, Serializer};
use serde_json::value::RawValue;

use super::about::Run;
use super::kind::{BASELINES, MODES, name};
use super::load::Kind;
use super::measure::{Compared, Figures, Point};
use super::short::{count, rate};

#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) kind: &'static str,
    pub(super) device: String,
    pub(super) provider: &'static str,
    pub(super) threads: usize,
    /// The seconds for which the kind and each baseline of a point were measured.
    pub(super) seconds: f64,
    pub(super) points: Vec<Row>,
    /// The number of points that were not measured.
    pub(super) not_run: usize,
    pub(super) run: Run,
}

#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) size: usize,
    pub(super) depth: usize,
    pub(super) mode: &'static str,
    #[serde(flatten)]
    pub(super) measured: Measured,
    /// `None` without `--trace`.
    #[serde(serialize_with = "calls_or_why_not")]
    pub(super) system_calls: Option<Calls>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) vs: Vec<Versus>,
}

/// The system calls per operation, or why they were not counted.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Calls {
    PerOperation(f64),
    NotMeasured(String),
}

const NOT_ASKED: &str = "without --trace";

/// Serializes the system calls, or that there was no `--trace`.
fn calls_or_why_not<S: Serializer>(
    calls: &Option<Calls>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match calls {
        Some(calls) => calls.serialize(serializer),
        None => Calls::NotMeasured(NOT_ASKED.to_owned()).serialize(serializer),
    }
}

impl Calls {
    fn of(calls: &Result<f64, String>) -> Calls {
        match calls {
            Ok(calls) => Calls::PerOperation(*calls),
            Err(why) => Calls::NotMeasured(why.clone()),
        }
    }

    /// Returns the count, or why there is none, as a line for people.
    pub(super) fn words(&self) -> String {
        match self {
            Calls::PerOperation(calls) => format!("{} system calls/op", count(*calls)),
            Calls::NotMeasured(why) => format!("not measured: {why}"),
        }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Versus {
    pub(super) name: &'static str,
    #[serde(flatten)]
    pub(super) measured: Option<Measured>,
    /// The kind's operations per second divided by those of this baseline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) not_measured: Option<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct Measured {
    pub(super) operations: u64,
    pub(super) seconds: f64,
    pub(super) latency_ns: Latency,
    /// Shares of the operations, each with the nanoseconds within which they ended.
    #[serde(serialize_with = "in_one_line")]
    pub(super) latency_cdf: Vec<(f64, u64)>,
    pub(super) operations_per_second: f64,
    pub(super) bytes_per_second: f64,
    pub(super) cpu_ns_per_operation: f64,
    pub(super) allocations_per_operation: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct Latency {
    pub(super) p50: u64,
    pub(super) p99: u64,
    pub(super) p99_9: u64,
    pub(super) max: u64,
}

/// Serializes the pairs in a single line, where the JSON printer would use a line per number.
fn in_one_line<S: Serializer>(pairs: &[(f64, u64)], serializer: S) -> Result<S::Ok, S::Error> {
    let text = serde_json::to_string(pairs).map_err(S::Error::custom)?;
    let raw = RawValue::from_string(text).map_err(S::Error::custom)?;
    raw.serialize(serializer)
}

impl Row {
    pub(super) fn of(kind: Kind, point: &Point) -> Row {
        let bytes = kind.bytes(point.size);
        Row {
            size: point.size,
            depth: point.depth,
            mode: name(&MODES, &point.mode),
            measured: Measured::of(&point.figures, bytes),
            system_calls: point.calls.as_ref().map(Calls::of),
            vs: point.vs.iter().map(|it| Versus::of(it, bytes)).collect(),
        }
    }
}

impl Versus {
    /// Returns why the baseline was not measured.
    pub(super) fn why(&self) -> &str {
        let why = self.not_measured.as_deref();
        why.unwrap_or("for no reason that is known")
    }

    fn of(compared: &Compared, bytes: u64) -> Versus {
        let figures = compared.figures.as_ref();
        Versus {
            name: name(&BASELINES, &compared.baseline),
            measured: figures.ok().map(|it| Measured::of(it, bytes)),
            ratio: compared.ratio,
            not_measured: figures.err().cloned(),
        }
    }
}

impl Measured {
    /// Returns the bytes per second in a few characters; `-` for kinds that move no bytes.
    pub(super) fn bytes(&self) -> String {
        match self.bytes_per_second {
            0.0 => "-".to_owned(),
            some => rate(some),
        }
    }

    fn of(figures: &Figures, bytes: u64) -> Measured {
        let rate = figures.rate();
        let at = |share| figures.latency.value_at_quantile(share);
        Measured {
            operations: figures.operations(),
            seconds: figures.took.as_secs_f64(),
            latency_ns: Latency {
                p50: at(0.5),
                p99: at(0.99),
                p99_9: at(0.999),
                max: figures.latency.max(),
            },
            latency_cdf: figures.cdf(),
            operations_per_second: rate,
            bytes_per_second: rate * bytes as f64,
            cpu_ns_per_operation: figures.cpu_per_operation(),
            allocations_per_operation: figures.allocations_per_operation(),
        }
    }
}

impl Report {
    /// Returns the title: the kind, the device, and the address of the peer if there is one.
    pub(super) fn title(&self) -> String {
        let title = format!("{} by {} ({})", self.kind, self.device, self.provider);
        match &self.run.about.peer {
            Some(peer) => format!("{title} with {}", peer.address),
            None => title,
        }
    }

    /// Returns a note that system calls were not counted, unless the run had `--trace`.
    pub(super) fn not_traced(&self) -> Option<String> {
        let is_one_missing = self.points.iter().any(|row| row.system_calls.is_none());
        is_one_missing.then(|| format!("not measured: system calls, {NOT_ASKED}"))
    }

    /// Returns the sentence with which the command fails if points were not measured.
    pub(super) fn interrupted(&self) -> Option<String> {
        let all = self.points.len() + self.not_run;
        let left = self.not_run;
        (left > 0).then(|| format!("interrupted: {left} of {all} points were not measured"))
    }
}
