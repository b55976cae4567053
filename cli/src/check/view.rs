//! A report for people, in 80 columns: a row for each check and verdict of a group, the counts, and
//! a block of Markdown to paste into a bug report.

use std::fmt::Write;
use std::time::Duration;

use anstyle::{AnsiColor, Style};

use super::report::{Report, Summary};
use super::row::{Row, State, words};
use crate::output::{BOLD, indented, within};

/// The columns at which a check's text and its time begin.
const SAID: usize = 17;
const TIME: usize = 70;

impl Report {
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for group in self.rows.chunk_by(|a, b| a.group == b.group) {
            text += &self::group(group);
        }
        let _ = writeln!(text, "{BOLD}{}{BOLD:#}", self.summary.line());
        let _ = write!(text, "\nTo paste into a report:\n\n{}", self.block());
        text
    }

    fn block(&self) -> String {
        let mut lines = self.about.lines();
        lines.push(("result", self.summary.line()));
        let mut lacks: Vec<String> = self.ended(State::NotSupported).map(said).collect();
        lacks.dedup();
        lines.extend(lacks.into_iter().map(|text| ("lacks", text)));
        let failed = self.ended(State::Failed);
        lines.extend(failed.map(|row| ("FAILED", format!("{}: {}", row.subject, said(row)))));
        let lines = lines.iter().map(|(word, value)| {
            let value = indented(value, 13);
            format!("{word:<13}{}", value.trim_start())
        });
        format!("```text\n{}```\n", lines.collect::<String>())
    }
}

impl Summary {
    fn line(&self) -> String {
        let mut line = format!(
            "{} checks in {:.1} s: {} passed, {} not supported, {} failed",
            self.checks,
            self.took.as_secs_f64(),
            self.passed,
            self.not_supported,
            self.failed,
        );
        if self.not_run > 0 {
            let _ = write!(line, ", {} not made", self.not_run);
        }
        line
    }
}

/// Returns the name of a check and its text. The refusal of a context needs no name.
fn said(row: &Row) -> String {
    let name = words(&row.check);
    match row.why.as_ref().or(row.found.as_ref()) {
        Some(why) if row.check == "attach" => why.clone(),
        Some(more) => format!("{name}: {more}"),
        None => name,
    }
}

/// Returns the rows for one kind of operation. Checks of several subjects with the same verdict
/// share a row, with the sum of their times.
fn group(rows: &[Row]) -> String {
    let mut subjects: Vec<&str> = rows.iter().map(|row| &*row.subject).collect();
    subjects.dedup();
    let title = &rows[0].group;
    let mut text = format!("{BOLD}{title}{BOLD:#}\n");
    if subjects.len() > 1 {
        text += &indented(&subjects.join(", "), 2);
    }
    let mut shared: Vec<Vec<&Row>> = Vec::new();
    for row in rows {
        let is_alike = |it: &&mut Vec<&Row>| {
            (&it[0].check, it[0].state, &it[0].why) == (&row.check, row.state, &row.why)
        };
        match shared.iter_mut().find(is_alike) {
            Some(alike) => alike.push(row),
            None => shared.push(vec![row]),
        }
    }
    text.extend(shared.iter().map(|alike| line(alike, subjects.len())));
    text.push('\n');
    text
}

/// Returns a row: the verdict, the name of the check, its text if it has one, and the time.
fn line(alike: &[&Row], subjects: usize) -> String {
    let row = alike[0];
    let (word, color) = match row.state {
        State::Passed => ("passed", AnsiColor::Green),
        State::NotSupported => ("not supported", AnsiColor::Yellow),
        State::Failed => ("FAILED", AnsiColor::Red),
    };
    let style = Style::new().bold().fg_color(Some(color.into()));
    let said = match (row.state, alike.len()) {
        (_, all) if all == subjects => said(row),
        (State::Passed, some) => format!("{} ({some} of {subjects})", said(row)),
        _ => {
            let names: Vec<&str> = alike.iter().map(|row| &*row.subject).collect();
            format!("{}: {}", names.join(", "), said(row))
        }
    };
    let said = within(&said, SAID, TIME);
    let (first, rest) = said.split_once('\n').unwrap_or((&said, ""));
    let time = time(alike.iter().map(|row| row.took).sum());
    format!(
        "  {style}{word}{style:#}{:gap$}{:<width$}{time:>10}\n{rest}",
        "",
        first.trim_start(),
        gap = SAID - 2 - word.len(),
        width = TIME - SAID,
    )
}

fn time(took: Duration) -> String {
    match took.as_millis() {
        short @ 0..10_000 => format!("{short} ms"),
        _ => format!("{:.1} s", took.as_secs_f64()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::about::About;

    fn row(subject: &str, check: &str, state: State, why: Option<&str>) -> Row {
        Row {
            group: "Hashes (SHA)".to_owned(),
            subject: subject.to_owned(),
            check: check.to_owned(),
            state,
            why: why.map(str::to_owned),
            found: None,
            took: Duration::from_millis(7),
        }
    }

    /// Returns the report and its text for the rows of a run that had `checks` to make.
    fn text(rows: Vec<Row>, checks: usize) -> (Report, String) {
        let about = About {
            version: "1.2.3",
            kernel: None,
            device: "mlx5_0".to_owned(),
            default: true,
            provider: "verbs".to_owned(),
            pci_address: None,
            driver: Some("mlx5_core".to_owned()),
            firmware: Some("28.39.1002".to_owned()),
            link: Some("port 1, active, Ethernet, 100 Gb/sec (4X EDR)".to_owned()),
            settings: Vec::new(),
            peer: None,
        };
        let report = Report::new(about, rows, checks, Duration::from_millis(1234));
        let text = anstream::adapter::strip_str(&report.text()).to_string();
        (report, text)
    }

    #[test]
    fn a_failed_check_is_told_in_its_row_in_the_block_and_on_stderr() {
        let why = "duty 1: a Job completed twice";
        let (report, text) = text(
            vec![
                row("SHA-1", "busy_polls", State::Passed, None),
                row(
                    "SHA-1",
                    "signals_once",
                    State::NotSupported,
                    Some("no completion events"),
                ),
                row("SHA-256", "busy_polls", State::Failed, Some(why)),
                row(
                    "SHA-256",
                    "signals_once",
                    State::NotSupported,
                    Some("no completion events"),
                ),
            ],
            4,
        );
        assert_eq!(
            text,
            "\
Hashes (SHA)
  SHA-1, SHA-256
  passed         busy polls (1 of 2)                                        7 ms
  not supported  signals once: no completion events                        14 ms
  FAILED         SHA-256: busy polls: duty 1: a Job completed twice         7 ms

4 checks in 1.2 s: 1 passed, 2 not supported, 1 failed

To paste into a report:

```text
tool         tokio-doca 1.2.3
device       mlx5_0, the default
provider     verbs
driver       mlx5_core
firmware     28.39.1002
link         port 1, active, Ethernet, 100 Gb/sec (4X EDR)
result       4 checks in 1.2 s: 1 passed, 2 not supported, 1 failed
lacks        signals once: no completion events
FAILED       SHA-256: busy polls: duty 1: a Job completed twice
```
"
        );
        let failure = report.failure().unwrap();
        assert_eq!(failure, "a check failed: SHA-256: busy polls");
    }

    #[test]
    fn long_sentences_stay_within_the_columns() {
        let why = ["words"; 60].join(" ");
        let rows = vec![row("SHA-1", "busy_polls", State::Failed, Some(&why))];
        let (_, text) = text(rows, 1);
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        assert_eq!(text.matches("words").count(), 120, "{text}");
    }

    #[test]
    fn an_interrupted_run_says_what_it_left_out() {
        let rows = vec![row("SHA-1", "busy_polls", State::Passed, None)];
        let (report, said) = text(rows, 3);
        assert!(
            said.contains("1 passed, 0 not supported, 0 failed, 2 not made"),
            "{said}"
        );
        let failure = report.failure().unwrap();
        assert_eq!(failure, "interrupted: 2 of 3 checks were not made");
        let rows = vec![row("SHA-1", "busy_polls", State::Passed, None)];
        assert_eq!(text(rows, 1).0.failure(), None);
    }
}
