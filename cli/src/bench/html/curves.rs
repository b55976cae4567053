//! Curves of the rate and of p50 and p99: over the sizes with a line for each depth, and over the
//! depths with a line for each size.

use super::chart::{Axis, Chart, LINES, Line};
use super::few;
use super::scale::Scale;
use crate::bench::report::{Measured, Row};
use crate::bench::short::{rate, size, time};

#[derive(Clone, Copy, PartialEq)]
pub(super) enum By {
    Sizes,
    Depths,
}

impl By {
    fn of(self, row: &Row) -> (usize, usize) {
        match self {
            By::Sizes => (row.size, row.depth),
            By::Depths => (row.depth, row.size),
        }
    }

    fn label(self, value: usize) -> String {
        match self {
            By::Sizes => size(value),
            By::Depths => value.to_string(),
        }
    }

    /// Returns the name of a line all of whose rows share `value`.
    fn shared(self, value: usize) -> String {
        match self {
            By::Sizes => format!("depth {value}"),
            By::Depths => format!("{} bytes", size(value)),
        }
    }

    fn name(self) -> &'static str {
        match self {
            By::Sizes => "size in bytes",
            By::Depths => "depth",
        }
    }

    fn title(self) -> &'static str {
        match self {
            By::Sizes => "by size",
            By::Depths => "by depth",
        }
    }
}

/// A figure that a chart shows: its title, its axis, and how to get and print the value.
struct Shown {
    title: &'static str,
    axis: &'static str,
    value: fn(&Measured) -> f64,
    label: fn(f64) -> String,
}

const SHOWN: [Shown; 3] = [
    Shown {
        title: "Operations per second",
        axis: "op/s",
        value: |it| it.operations_per_second,
        label: rate,
    },
    Shown {
        title: "Median latency, p50",
        axis: "p50",
        value: |it| it.latency_ns.p50 as f64,
        label: time,
    },
    Shown {
        title: "Latency of 99%, p99",
        axis: "p99",
        value: |it| it.latency_ns.p99 as f64,
        label: time,
    },
];

/// The measured points of a line, before a chart picks the figure that it shows.
struct Series<'a> {
    name: String,
    is_kind: bool,
    points: Vec<(usize, &'a Measured)>,
}

/// Returns the charts of the rows of one mode, the number of lines that they show, and the number
/// of all lines. There are no charts if the rows have fewer than two values to draw them over.
pub(super) fn charts(kind: &str, rows: &[Row], by: By) -> (Vec<Chart>, usize, usize) {
    let mut values: Vec<usize> = rows.iter().map(|row| by.of(row).0).collect();
    values.sort_unstable();
    values.dedup();
    if values.len() < 2 {
        return (Vec::new(), 0, 0);
    }
    let series = series(kind, rows, by);
    let all = series.len();
    let series = fitting(series);
    let chart = |shown| chart(shown, &series, &values, by);
    (SHOWN.iter().map(chart).collect(), series.len(), all)
}

fn series<'a>(kind: &str, rows: &'a [Row], by: By) -> Vec<Series<'a>> {
    let mut shared: Vec<usize> = rows.iter().map(|row| by.of(row).1).collect();
    shared.sort_unstable();
    shared.dedup();
    let mut all: Vec<Series> = Vec::new();
    for value in &shared {
        let rows: Vec<&Row> = rows.iter().filter(|row| by.of(row).1 == *value).collect();
        let line = |name: &str, is_kind, points| Series {
            name: match (shared.len() > 1, is_kind) {
                (false, _) => name.to_owned(),
                (true, true) => by.shared(*value),
                (true, false) => format!("{name}, {}", by.shared(*value)),
            },
            is_kind,
            points,
        };
        let own = rows.iter().map(|row| (by.of(row).0, &row.measured));
        all.push(line(kind, true, own.collect()));
        let baselines = rows.first().map_or(&[][..], |row| &row.vs);
        for (at, versus) in baselines.iter().enumerate() {
            let theirs = rows.iter().filter_map(|row| {
                let measured = row.vs.get(at)?.measured.as_ref()?;
                Some((by.of(row).0, measured))
            });
            all.push(line(versus.name, false, theirs.collect()));
        }
    }
    for one in &mut all {
        one.points.sort_by_key(|(value, _)| *value);
    }
    all.retain(|it| !it.points.is_empty());
    all
}

/// Cuts `series` to at most [`LINES`] lines, leaving out baselines first.
fn fitting(mut series: Vec<Series<'_>>) -> Vec<Series<'_>> {
    if series.len() > LINES {
        series.retain(|it| it.is_kind);
    }
    few(series, LINES)
}

fn chart(shown: &Shown, series: &[Series], values: &[usize], by: By) -> Chart {
    let drawn = |(x, measured): &(usize, &Measured)| (*x as f64, (shown.value)(measured));
    let line = |series: &Series| Line {
        name: series.name.clone(),
        points: series.points.iter().map(drawn).collect(),
        marks: true,
        words: words(shown, series, by),
    };
    let lines: Vec<Line> = series.iter().map(line).collect();
    let y = Scale::round(lines.iter().flat_map(|it| &it.points).map(|(_, y)| *y));
    let labels = values.iter().step_by(values.len().div_ceil(7));
    Chart {
        title: format!("{} {}", shown.title, by.title()),
        x: Axis {
            name: by.name(),
            scale: Scale::exact(values.iter().map(|it| *it as f64)),
            ticks: labels.map(|it| (*it as f64, by.label(*it))).collect(),
        },
        y: Axis {
            name: shown.axis,
            scale: y,
            ticks: y
                .ticks(8)
                .into_iter()
                .map(|it| (it, (shown.label)(it)))
                .collect(),
        },
        lines,
    }
}

fn words(shown: &Shown, series: &Series, by: By) -> String {
    let of = |(x, measured): &(usize, &Measured)| {
        format!(
            "{} at {}",
            (shown.label)((shown.value)(measured)),
            by.label(*x)
        )
    };
    let each: Vec<String> = series.points.iter().map(of).collect();
    each.join(", ")
}
