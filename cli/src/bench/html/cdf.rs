//! Charts of the latency distribution: the share of the operations that end within a time. Each
//! point gets a chart beside its baselines; without baselines, one chart has a line for each point.

use super::chart::{Axis, Chart, LINES, Line};
use super::few;
use super::scale::Scale;
use crate::bench::report::{Measured, Row};
use crate::bench::short::{size, time};

/// Returns the charts of the rows of one mode, the number of points that they show, and the number
/// of all points.
pub(super) fn charts(kind: &str, rows: &[Row]) -> (Vec<Chart>, usize, usize) {
    let all = rows.len();
    let shown = few(rows.iter().collect(), LINES);
    let points = shown.len();
    if rows.iter().all(|row| row.vs.is_empty()) {
        let lines = shown.iter().map(|row| (name(row), &row.measured));
        let title = match all {
            1 => format!("{kind}, {}", name(shown[0])),
            _ => kind.to_owned(),
        };
        return (vec![chart(title, lines.collect())], points, all);
    }
    let of = |row: &&Row| {
        let mut lines = vec![(kind.to_owned(), &row.measured)];
        for versus in &row.vs {
            let measured = versus.measured.as_ref();
            lines.extend(measured.map(|it| (versus.name.to_owned(), it)));
        }
        chart(format!("{kind}, {}", name(row)), lines)
    };
    (shown.iter().map(of).collect(), points, all)
}

fn name(row: &Row) -> String {
    format!("{} bytes, depth {}", size(row.size), row.depth)
}

fn chart(title: String, measured: Vec<(String, &Measured)>) -> Chart {
    let most = measured.iter().map(|(_, it)| it.operations).max();
    let shares = Scale::shares(most.unwrap_or(1));
    let lines = measured.into_iter().map(|(name, measured)| Line {
        name,
        points: points(&measured.latency_cdf),
        marks: false,
        words: words(measured),
    });
    let lines: Vec<Line> = lines.collect();
    let times = Scale::round(lines.iter().flat_map(|it| &it.points).map(|(x, _)| *x));
    Chart {
        title,
        x: Axis {
            name: "latency",
            scale: times,
            ticks: times
                .ticks(7)
                .into_iter()
                .map(|it| (it, time(it)))
                .collect(),
        },
        y: Axis {
            name: "share of the operations within the latency",
            scale: shares,
            ticks: shares
                .ticks(8)
                .into_iter()
                .map(|it| (it, share(it)))
                .collect(),
        },
        lines,
    }
}

/// Returns the points of a line, from the fastest operation, at share 0, to the slowest.
fn points(cdf: &[(f64, u64)]) -> Vec<(f64, f64)> {
    let place = |(share, ns): &(f64, u64)| ((*ns).max(1) as f64, *share);
    let first = cdf.first().map(|(_, ns)| (0.0, *ns));
    first.iter().chain(cdf).map(place).collect()
}

fn share(share: f64) -> String {
    let percent = format!("{:.3}", share * 100.0);
    let percent = percent.trim_end_matches('0').trim_end_matches('.');
    format!("{percent}%")
}

fn words(measured: &Measured) -> String {
    let of = &measured.latency_ns;
    let time = |ns: u64| time(ns as f64);
    format!(
        "half of them within {}, 99 % within {}, 99.9 % within {}, all within {}",
        time(of.p50),
        time(of.p99),
        time(of.p99_9),
        time(of.max)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_have_only_the_digits_that_they_need() {
        let of = [0.0, 0.5, 0.9, 0.999, 0.99999].map(share);
        assert_eq!(of, ["0%", "50%", "90%", "99.9%", "99.999%"]);
    }

    #[test]
    fn a_line_begins_where_no_operation_has_ended() {
        let line = points(&[(0.5, 0), (1.0, 80)]);
        assert_eq!(line, [(1.0, 0.0), (1.0, 0.5), (80.0, 1.0)]);
        assert!(points(&[]).is_empty());
    }
}
