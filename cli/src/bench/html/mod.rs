//! A report as one page of HTML, which needs no network, no scripts and no fonts. It is well-formed
//! XML as well. Every text goes through [`Escaped`].

mod cdf;
mod chart;
mod curves;
mod escape;
mod scale;
mod table;

use std::fmt::Write;

use super::report::{Report, Row};
use super::short::counted;
use chart::Chart;
use curves::By;
use escape::Escaped;

/// Explains the columns of the table.
const NUMBERS: &str = "\
B/s counts one way. cpu/op is the CPU time of all threads of the process. alloc is the allocations \
of an operation. ratio is op/s of the kind over op/s of the row: above 1 the kind is faster.";

const STYLE: &str = include_str!("style.css");

/// Returns at most `most` items of `list`, evenly spaced, with the first and the last.
fn few<T>(list: Vec<T>, most: usize) -> Vec<T> {
    let all = list.len();
    if all <= most {
        return list;
    }
    let chosen: Vec<usize> = (0..most).map(|it| it * (all - 1) / (most - 1)).collect();
    let indexed = list.into_iter().enumerate();
    let kept = indexed.filter(|(at, _)| chosen.contains(at));
    kept.map(|(_, it)| it).collect()
}

/// Returns the page of a report. `failed` is the sentence that says why the run ended early.
pub(super) fn page(report: &Report, failed: Option<&str>) -> String {
    let mut page = Page {
        text: String::new(),
        charts: 0,
    };
    page.head(report);
    for rows in report.points.chunk_by(|a, b| a.mode == b.mode) {
        page.latency(report.kind, rows);
        page.curves(report.kind, rows, By::Sizes);
        page.curves(report.kind, rows, By::Depths);
    }
    page.section("numbers", "All numbers", NUMBERS);
    table::write(&mut page.text, report);
    page.section("where", "What was measured where", "");
    page.about(report);
    page.section("notes", "Notes", "");
    page.notes(report, failed);
    page.text.push_str("</main>\n</body>\n</html>\n");
    page.text
}

struct Page {
    text: String,
    /// The number of charts written so far.
    charts: usize,
}

impl Page {
    fn head(&mut self, report: &Report) {
        let title = report.title();
        let _ = write!(
            self.text,
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
             <meta http-equiv=\"Content-Security-Policy\" \
             content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\"/>\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
             <meta name=\"color-scheme\" content=\"light dark\"/>\n\
             <link rel=\"icon\" href=\"data:,\"/>\n\
             <title>tokio-doca bench: {title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
             <main>\n<h1>{title}</h1>\n<p>{points}, {threads}, {seconds} s each, {date}</p>\n",
            title = Escaped(title),
            points = counted(report.points.len(), "point"),
            threads = counted(report.threads, "thread"),
            seconds = report.seconds,
            date = Escaped(&report.run.date),
        );
    }

    fn section(&mut self, id: &str, name: &str, words: &str) {
        let _ = writeln!(self.text, "<h2 id=\"{id}\">{}</h2>", Escaped(name));
        if !words.is_empty() {
            let _ = writeln!(self.text, "<p>{}</p>", Escaped(words));
        }
    }

    /// Writes charts below a heading of their own. The heading's id has the number of the first
    /// chart.
    fn charts(&mut self, name: &str, words: &str, charts: &[Chart]) {
        self.section(&format!("s{}", self.charts), name, words);
        self.text.push_str("<div class=\"grid-of\">\n");
        for chart in charts {
            chart.write(&mut self.text, self.charts);
            self.charts += 1;
        }
        self.text.push_str("</div>\n");
    }

    fn latency(&mut self, kind: &str, rows: &[Row]) {
        let (charts, shown, all) = cdf::charts(kind, rows);
        let mut words =
            "How many of the operations end within a latency. The upper part shows the \
                         slowest: each step from 90% to 99% to 99.9% is as high."
                .to_owned();
        words += &left_out(shown, all, "points");
        self.charts(&format!("Latency, {}", rows[0].mode), &words, &charts);
    }

    fn curves(&mut self, kind: &str, rows: &[Row], by: By) {
        let (charts, shown, all) = curves::charts(kind, rows, by);
        if charts.is_empty() {
            return;
        }
        let name = match by {
            By::Sizes => "By size",
            By::Depths => "By depth",
        };
        let words = "Both axes are logarithmic.".to_owned() + &left_out(shown, all, "lines");
        self.charts(&format!("{name}, {}", rows[0].mode), &words, &charts);
    }

    fn about(&mut self, report: &Report) {
        let mut lines = report.run.lines();
        lines.push(("threads", report.threads.to_string()));
        lines.push(("time of a point", format!("{} s", report.seconds)));
        self.text.push_str("<dl>\n");
        for (name, value) in lines {
            let value = Escaped(value);
            let value = match name {
                "command" => format!("<code>{value}</code>"),
                _ => value.to_string(),
            };
            let _ = writeln!(self.text, "<dt>{}</dt><dd>{value}</dd>", Escaped(name));
        }
        self.text.push_str("</dl>\n");
    }

    fn notes(&mut self, report: &Report, failed: Option<&str>) {
        let mut notes = Vec::new();
        if let Some(why) = failed {
            notes.push(format!("The run ended early: {why}"));
        }
        if report.not_run > 0 {
            let left = counted(report.not_run, "point");
            notes.push(format!("not measured: {left}, because the run ended early"));
        }
        notes.extend(not_measured(&report.points));
        notes.extend(report.points.iter().filter_map(traced));
        notes.extend(report.not_traced());
        notes.push(match &report.run.about.peer {
            None => "Both sides of an operation are in one process.".to_owned(),
            Some(peer) => format!(
                "The other side is {}. CPU time and allocations are of this side alone.",
                peer.address
            ),
        });
        notes
            .push("What is compared takes turns with the kind, in five rounds of each.".to_owned());
        self.text.push_str("<ul class=\"notes\">\n");
        for note in notes {
            let _ = writeln!(self.text, "<li>{}</li>", Escaped(note));
        }
        self.text.push_str("</ul>\n");
    }
}

/// Returns the system calls of a point, or why they were not counted; `None` unless the run had
/// `--trace`.
fn traced(row: &Row) -> Option<String> {
    let Row {
        size, depth, mode, ..
    } = row;
    let calls = row.system_calls.as_ref()?.words();
    Some(format!(
        "{size} bytes, depth {depth}, {mode}: {calls}, under strace"
    ))
}

/// Returns a note for each reason for which a baseline was not measured.
fn not_measured(points: &[Row]) -> Vec<String> {
    let mut reasons: Vec<(&str, &str, usize)> = Vec::new();
    for versus in points.iter().flat_map(|row| &row.vs) {
        let Some(why) = versus.not_measured.as_deref() else {
            continue;
        };
        let same = reasons
            .iter_mut()
            .find(|it| (it.0, it.1) == (versus.name, why));
        match same {
            Some((.., count)) => *count += 1,
            None => reasons.push((versus.name, why, 1)),
        }
    }
    let note = |(name, why, count): (&str, &str, usize)| {
        let points = counted(count, "point");
        format!("not measured: {name} beside {points}: {why}")
    };
    reasons.into_iter().map(note).collect()
}

/// Returns a sentence that only `shown` of `all` are drawn; empty if all are.
fn left_out(shown: usize, all: usize, what: &str) -> String {
    match shown < all {
        true => format!(" {shown} of {all} {what} are drawn; the table has all."),
        false => String::new(),
    }
}

#[cfg(test)]
mod tests;
