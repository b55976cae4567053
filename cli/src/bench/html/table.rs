//! A table of every number of a run: a row for each point, and a row for each baseline of it.

use std::fmt::Write;

use super::escape::Escaped;
use crate::bench::report::{Measured, Report, Row};
use crate::bench::short::{count, rate, size, time, times};

/// The columns of the table: those that name the point, and those of its figures.
const POINT: [&str; 4] = ["what", "size", "depth", "mode"];
const FIGURES: [&str; 9] = [
    "p50",
    "p99",
    "p99.9",
    "max",
    "op/s",
    "B/s",
    "cpu/op",
    "alloc",
    "operations",
];

pub(super) fn write(page: &mut String, report: &Report) {
    let compares = report.points.iter().any(|row| !row.vs.is_empty());
    page.push_str(
        "<div class=\"wide\" role=\"region\" aria-labelledby=\"numbers\" tabindex=\"0\">\n\
         <table>\n<thead>\n<tr>",
    );
    let ratio = compares.then_some("ratio");
    for name in POINT.into_iter().chain(FIGURES).chain(ratio) {
        let _ = write!(page, "<th scope=\"col\">{}</th>", Escaped(name));
    }
    page.push_str("</tr>\n</thead>\n<tbody>\n");
    for row in &report.points {
        begin(page, report.kind, row, "kind");
        figures(page, &row.measured);
        if compares {
            page.push_str("<td></td>");
        }
        page.push_str("</tr>\n");
        for versus in &row.vs {
            begin(page, versus.name, row, "vs");
            match &versus.measured {
                Some(measured) => {
                    figures(page, measured);
                    let ratio = versus.ratio.map_or("-".to_owned(), times);
                    let _ = write!(page, "<td>{}</td>", Escaped(ratio));
                }
                None => {
                    let _ = write!(
                        page,
                        "<td class=\"why\" colspan=\"{}\">not measured: {}</td>",
                        FIGURES.len() + 1,
                        Escaped(versus.why())
                    );
                }
            }
            page.push_str("</tr>\n");
        }
    }
    page.push_str("</tbody>\n</table>\n</div>\n");
}

fn begin(page: &mut String, name: &str, row: &Row, class: &str) {
    let _ = write!(
        page,
        "<tr class=\"{class}\"><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td>{}</td>",
        Escaped(name),
        size(row.size),
        row.depth,
        Escaped(row.mode)
    );
}

fn figures(page: &mut String, measured: &Measured) {
    let latency = &measured.latency_ns;
    let ns = [latency.p50, latency.p99, latency.p99_9, latency.max];
    for ns in ns {
        let _ = write!(page, "<td>{}</td>", time(ns as f64));
    }
    let _ = write!(
        page,
        "<td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>",
        rate(measured.operations_per_second),
        measured.bytes(),
        time(measured.cpu_ns_per_operation),
        count(measured.allocations_per_operation),
        measured.operations
    );
}
