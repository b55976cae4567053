//! One check: its subject, its result, and how long it took.

use std::time::Duration;

use serde::{Serialize, Serializer};
use tokio_doca_contract::{Outcome, Verdict};

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    Passed,
    /// The device declares that it lacks the feature that the check needs.
    NotSupported,
    Failed,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    /// The kind of operation, as `caps` names it.
    pub(super) group: String,
    /// The subject of the check, such as `SHA-1 in parts`.
    pub(super) subject: String,
    /// The check's name, which is that of a function in `tokio-doca-contract`.
    pub(super) check: String,
    pub(super) state: State,
    /// The reason why the device lacks the feature or why the check failed, as a sentence.
    pub(super) why: Option<String>,
    /// The result that a passed check has measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) found: Option<String>,
    #[serde(rename = "seconds", serialize_with = "seconds")]
    pub(super) took: Duration,
}

impl Row {
    pub(super) fn of(outcome: Outcome) -> Row {
        let (state, why) = match outcome.verdict {
            Verdict::Passed => (State::Passed, None),
            Verdict::Refused(why) => (State::NotSupported, Some(sentence(&why))),
            Verdict::Failed(why) => (State::Failed, Some(sentence(&why))),
            other => (
                State::Failed,
                Some(format!("this tool is older than {other:?}")),
            ),
        };
        Row {
            group: group(&outcome.subject).to_owned(),
            subject: outcome.subject,
            check: outcome.check.to_owned(),
            state,
            why,
            found: None,
            took: outcome.took,
        }
    }
}

pub(super) fn seconds<S: Serializer>(took: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(took.as_micros() as f64 / 1e6)
}

/// Returns the name of a check with spaces for underscores.
pub(super) fn words(check: &str) -> String {
    check.replace('_', " ")
}

fn group(subject: &str) -> &str {
    match subject {
        "copies" => "Copies (DMA)",
        "rdma" => "RDMA",
        "sync events" => "Sync events",
        "accelerator" => "Jobs of its own (accel)",
        it if it.starts_with("SHA-") || it == "hashes" => "Hashes (SHA)",
        it if it.starts_with("CRC-") => "CRC-32C",
        it => it,
    }
}

/// Makes one line of the text of a panic or an error. Drops the words of `assert_eq!` before the
/// text, the name of the Rust function that failed, and the library's reference to
/// `DevInfo::caps()`.
fn sentence(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let text = lines.join(", ");
    let (text, _) = text.split_once(": DevInfo::caps()").unwrap_or((&text, ""));
    let (first, rest) = text.split_once(": ").unwrap_or(("", text));
    let is_code = first.contains("::") && !first.contains(' ');
    match is_code || first.starts_with("assertion `") {
        true => rest.to_owned(),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_is_one_line_in_the_words_of_a_person() {
        for (text, wanted) in [
            ("duty 1: lost", "duty 1: lost"),
            (
                "assertion `left == right` failed: duty 1: a count\n  left: 1\n right: 2",
                "duty 1: a count, left: 1, right: 2",
            ),
            (
                "Sha::attach: pf0 does not hash: DevInfo::caps().sha says who",
                "pf0 does not hash",
            ),
            ("no words", "no words"),
        ] {
            assert_eq!(sentence(text), wanted);
        }
    }

    #[test]
    fn subjects_are_grouped_as_caps_groups_them() {
        assert_eq!(group("SHA-512 in parts"), group("hashes"));
        assert_eq!(group("CRC-32C of copies"), "CRC-32C");
        assert_eq!(group("something new"), "something new");
    }
}
