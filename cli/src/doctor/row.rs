//! What a check has found, and what each row prints.

use std::fmt::Write;

use anstyle::{AnsiColor, Style};
use serde::Serialize;

use crate::output::indented;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    /// Nothing is to be done.
    Ok,
    /// Advice, or something that could not be found out.
    Note,
    /// The library, or its adapters, cannot work so.
    Problem,
}

impl State {
    fn word(self) -> (&'static str, AnsiColor) {
        match self {
            State::Ok => ("ok", AnsiColor::Green),
            State::Note => ("note", AnsiColor::Yellow),
            State::Problem => ("problem", AnsiColor::Red),
        }
    }
}

/// What a check has found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) state: State,
    pub(super) found: String,
    /// What this means for programs that use the library.
    pub(super) means: Option<String>,
    /// The command that mends it.
    pub(super) mend: Option<String>,
}

/// A finding, or why a check could not find anything out.
pub(super) type Found = Result<Finding, String>;

impl Finding {
    pub(super) fn ok(found: impl Into<String>) -> Finding {
        Finding {
            state: State::Ok,
            found: found.into(),
            means: None,
            mend: None,
        }
    }

    pub(super) fn note(
        found: impl Into<String>,
        means: impl Into<String>,
        mend: impl Into<String>,
    ) -> Finding {
        Finding {
            state: State::Note,
            found: found.into(),
            means: Some(means.into()),
            mend: Some(mend.into()),
        }
    }

    /// Makes a problem of a note if `is_problem` is set.
    pub(super) fn or_problem(self, is_problem: bool) -> Finding {
        match is_problem {
            true => Finding {
                state: State::Problem,
                ..self
            },
            false => self,
        }
    }

    /// A note without advice.
    pub(super) fn open(found: impl Into<String>) -> Finding {
        Finding {
            state: State::Note,
            ..Finding::ok(found)
        }
    }

    /// For what no file says, if `--root` forbids to ask the system.
    pub(super) fn not_asked(what: &str) -> Finding {
        Finding::open(format!("{what}not asked: --root"))
    }
}

/// The columns before what was found, and before what it means.
const FOUND: usize = 28;
const MEANS: usize = 9;

/// A check's name, and its finding.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) name: &'static str,
    #[serde(flatten)]
    pub(super) finding: Finding,
}

impl Row {
    pub(super) fn new(name: &'static str, found: Found) -> Row {
        let unknown = |why| Finding::open(format!("unknown: {why}"));
        Row {
            name,
            finding: found.unwrap_or_else(unknown),
        }
    }

    pub(super) fn text(&self) -> String {
        let Finding {
            state,
            found,
            means,
            mend,
        } = &self.finding;
        let (word, color) = state.word();
        let style = Style::new().bold().fg_color(Some(color.into()));
        let name = format!("{:<width$}", self.name, width = FOUND - MEANS);
        let found = indented(found, FOUND);
        let found = found.trim_start();
        let mut text = format!("{style}{word}{style:#}");
        let _ = write!(text, "{:gap$}{name}{found}", "", gap = MEANS - word.len());
        if let Some(means) = means {
            text += &indented(means, MEANS);
        }
        if let Some(mend) = mend {
            text += &indented(&format!("Mend: {mend}"), MEANS);
        }
        text
    }
}
