//! Tests the page on reports that are made up, not measured.

use roxmltree::{Document, ParsingOptions};

use super::super::about::Run;
use super::super::report::{Latency, Measured, Report, Row, Versus};
use super::*;

const HOSTILE: &str = "</dd><script>alert('x')</script><img src=\"x\" onerror=a> &amp; \u{1b}[31m";

fn measured(number: u64) -> Measured {
    let ns = number * 100;
    Measured {
        operations: number,
        seconds: 1.0,
        latency_ns: Latency {
            p50: ns,
            p99: ns,
            p99_9: ns,
            max: ns,
        },
        latency_cdf: vec![(0.5, ns), (0.9, 2 * ns), (1.0, 9 * ns)],
        operations_per_second: number as f64,
        bytes_per_second: 0.0,
        cpu_ns_per_operation: 1.0,
        allocations_per_operation: 0.0,
    }
}

/// Makes a report with a point for each size and depth. Each point has one baseline that was
/// measured and one that was not.
fn report(text: &str, sizes: &[usize], depths: &[usize]) -> Report {
    let versus = |name, measured, not_measured| Versus {
        name,
        ratio: None,
        measured,
        not_measured,
    };
    let mut points = Vec::new();
    for mode in ["event", "busy-poll"] {
        for &size in sizes {
            points.extend(depths.iter().map(|&depth| Row {
                size,
                depth,
                mode,
                measured: measured((size * depth) as u64),
                system_calls: None,
                vs: vec![
                    versus("tcp", Some(measured(1)), None),
                    versus("unix", None, Some(text.to_owned())),
                ],
            }));
        }
    }
    Report {
        kind: "stream",
        device: text.to_owned(),
        provider: "soft",
        threads: 1,
        seconds: 1.0,
        points,
        not_run: 1,
        run: Run::of_text(text),
    }
}

/// Parses a page as XML, and checks that it has no scripts and that all ids are unique.
fn parsed(page: &str) -> Document<'_> {
    let options = ParsingOptions {
        allow_dtd: true,
        ..ParsingOptions::default()
    };
    let document = Document::parse_with_options(page, options).unwrap();
    let mut ids = Vec::new();
    for node in document.descendants().filter(|it| it.is_element()) {
        let name = node.tag_name().name();
        assert!(!["script", "img"].contains(&name), "{name}");
        let handler = |it: roxmltree::Attribute| it.name().starts_with("on");
        assert!(!node.attributes().any(handler), "{node:?}");
        ids.extend(node.attribute("id"));
    }
    for node in document.descendants() {
        let labels = node.attribute("aria-labelledby").unwrap_or_default();
        assert!(
            labels
                .split(' ')
                .filter(|it| !it.is_empty())
                .all(|it| ids.contains(&it))
        );
    }
    let all = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), all);
    document
}

fn count(document: &Document, name: &str, class: &str) -> usize {
    let nodes = document.descendants().filter(|it| it.has_tag_name(name));
    nodes
        .filter(|it| it.attribute("class").unwrap_or_default().contains(class))
        .count()
}

#[test]
fn whatever_a_name_or_a_reason_is_it_stays_text() {
    let report = report(HOSTILE, &[64, 128], &[1, 2]);
    let page = page(&report, Some(HOSTILE));
    let document = parsed(&page);
    let shown = HOSTILE.replace('\u{1b}', "\u{fffd}");
    let nodes = document.descendants().filter(|it| it.is_text());
    let texts = nodes.filter_map(|it| it.text());
    let with = texts.filter(|it| it.contains(&shown)).count();
    // The title, the heading and its line, ten rows about the run, the table, and the notes.
    assert_eq!(with, 3 + 10 + 8 + 2);
}

#[test]
fn each_number_has_a_row_and_what_was_not_measured_says_why() {
    let report = report("EPERM", &[64, 128, 256], &[1, 8]);
    let page = page(&report, None);
    let document = parsed(&page);
    assert_eq!(
        (count(&document, "tr", "kind"), count(&document, "tr", "vs")),
        (12, 24)
    );
    assert_eq!(page.matches("not measured: EPERM</td>").count(), 12);
    assert!(page.contains("not measured: unix beside 12 points: EPERM"));
    assert!(page.contains("not measured: 1 point, because the run ended early"));
    // For each mode: one chart for each of the 6 points, 3 over the sizes, and 3 over the depths.
    assert_eq!(count(&document, "figure", ""), 2 * (6 + 3 + 3));
}

#[test]
fn no_chart_has_more_lines_than_can_be_told_apart() {
    let sizes: Vec<usize> = (0..16).map(|it| 64 << it).collect();
    let mut report = report("why", &sizes, &[1, 2, 4, 8, 16, 32, 64, 128]);
    for vs in [true, false] {
        let page = page(&report, None);
        let document = parsed(&page);
        for figure in document
            .descendants()
            .filter(|it| it.has_tag_name("figure"))
        {
            let lines = figure.children().filter(|it| it.has_tag_name("ul"));
            let lines = lines
                .flat_map(|it| it.children())
                .filter(|it| it.has_tag_name("li"));
            assert!((1..=chart::LINES).contains(&lines.count()));
        }
        assert!(page.contains("6 of 128 points are drawn"), "{vs}");
        assert!(page.contains(" lines are drawn; the table has all."));
        report.points.iter_mut().for_each(|row| row.vs.clear());
    }
}

#[test]
fn odd_figures_stay_within_their_chart() {
    let mut report = report("why", &[1, 128 << 20], &[1, 4096]);
    for (at, row) in report.points.iter_mut().enumerate() {
        let odd = [0.0, f64::NAN, f64::INFINITY, 1e300, -1.0];
        row.measured.operations_per_second = odd[at % odd.len()];
        row.measured.latency_ns.p99 = [0, u64::MAX][at % 2];
        row.measured.latency_cdf = vec![(0.0, 0), (2.0, u64::MAX)];
        row.measured.operations = 0;
    }
    let page = page(&report, None);
    let document = parsed(&page);
    for path in document.descendants().filter_map(|it| it.attribute("d")) {
        let numbers = path.split(|c: char| !c.is_ascii_digit() && c != '.');
        let mut numbers = numbers.filter(|it| !it.is_empty());
        assert!(
            numbers.all(|it| it.parse::<f64>().unwrap() <= 360.0),
            "{path}"
        );
        assert!(
            !path.contains("NaN") && !path.contains("inf") && !path.contains('-'),
            "{path}"
        );
    }
}

#[test]
fn a_long_list_is_shown_by_its_ends_and_some_between() {
    assert_eq!(few((0..30).collect(), 6), [0, 5, 11, 17, 23, 29]);
    assert_eq!(few((0..7).collect(), 6), [0, 1, 2, 3, 4, 6]);
    assert_eq!(few(vec![1, 2], 6), [1, 2]);
}
