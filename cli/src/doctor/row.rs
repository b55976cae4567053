//! The finding of a check, and the text that each row prints.

use std::fmt::Write;

use anstyle::{AnsiColor, Style};
use serde::Serialize;

use crate::output::indented;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    /// Nothing needs to be done.
    Ok,
    /// Advice, or a fact that could not be determined.
    Note,
    /// The library or its adapters cannot work in this state.
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

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) state: State,
    pub(super) found: String,
    /// The consequence for programs that use the library.
    pub(super) means: Option<String>,
    /// The command that fixes it.
    pub(super) mend: Option<String>,
}

/// A finding, or the reason why a check could not find anything out.
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

    /// Turns a note into a problem if `is_problem` is set.
    pub(super) fn or_problem(self, is_problem: bool) -> Finding {
        match is_problem {
            true => Finding {
                state: State::Problem,
                ..self
            },
            false => self,
        }
    }

    /// Makes a note without advice.
    pub(super) fn open(found: impl Into<String>) -> Finding {
        Finding {
            state: State::Note,
            ..Finding::ok(found)
        }
    }

    /// Makes a finding for information that is in no file, if `--root` forbids asking the system.
    pub(super) fn not_asked(what: &str) -> Finding {
        Finding::open(format!("{what}not asked: --root"))
    }
}

/// The columns at which the finding and its meaning begin.
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
