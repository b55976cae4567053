//! The result of a run: its rows and their counts.

use std::time::Duration;

use serde::Serialize;

use super::row::{Row, State, seconds, words};
use crate::about::About;

#[derive(Debug, Serialize)]
pub(super) struct Report {
    #[serde(flatten)]
    pub(super) about: About,
    pub(super) rows: Vec<Row>,
    pub(super) summary: Summary,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Summary {
    /// The number of all checks of the device.
    pub(super) checks: usize,
    pub(super) passed: usize,
    pub(super) not_supported: usize,
    pub(super) failed: usize,
    /// The number of checks that a signal has left out.
    pub(super) not_run: usize,
    #[serde(rename = "seconds", serialize_with = "seconds")]
    pub(super) took: Duration,
}

impl Report {
    /// Returns the report of a run of `checks` checks, with the numbers of its rows in each state.
    /// Checks without a row were not run.
    pub(super) fn new(about: About, rows: Vec<Row>, checks: usize, took: Duration) -> Report {
        let count = |state| rows.iter().filter(|row| row.state == state).count();
        let summary = Summary {
            checks,
            passed: count(State::Passed),
            not_supported: count(State::NotSupported),
            failed: count(State::Failed),
            not_run: checks - rows.len(),
            took,
        };
        Report {
            about,
            rows,
            summary,
        }
    }

    /// Returns the rows of checks that ended so.
    pub(super) fn ended(&self, state: State) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.state == state)
    }

    /// Returns the sentence with which the command fails, or `None` if all is well.
    pub(super) fn failure(&self) -> Option<String> {
        let Summary {
            checks,
            failed,
            not_run,
            ..
        } = self.summary;
        let failed = match failed {
            0 => None,
            1 => self.ended(State::Failed).next().map(|row| {
                let text = format!("a check failed: {}: {}", row.subject, words(&row.check));
                match (&self.about.peer, &row.why) {
                    (Some(_), Some(why)) => format!("{text}: {why}"),
                    _ => text,
                }
            }),
            many => Some(format!(
                "{many} of {checks} checks failed; the report says why"
            )),
        };
        let left = format!("interrupted: {not_run} of {checks} checks were not made");
        match (not_run, failed) {
            (0, failed) => failed,
            (_, None) => Some(left),
            (_, Some(failed)) => Some(format!("{left}, and {failed}")),
        }
    }
}
