//! Checks that habits that make comments hard to read (CONTRIBUTING, "Words") only become fewer.
//! Each habit has its number of occurrences in the comments of `src`, above which the test fails.

use super::layering::{Source, is_test, sources};

/// Each habit with the better wording, its words, and how often they occur.
const RECORD: [(&str, &[&str], usize); 11] = [
    (
        "an actor without a name: say caller, peer, task or thread",
        &["nobody", "somebody", "everybody", "anybody", "whoever"],
        0,
    ),
    ("a number: name the parameter", &["so many", "as many"], 22),
    ("a default: \"Defaults to\"", &["if not said"], 1),
    (
        "completed, ended",
        &["is over", "are over", "was over", "be over"],
        0,
    ),
    ("notified", &["told", "tell", "tells"], 13),
    ("signal", &["rang", "rung"], 0),
    ("slot, entry", &["place", "places"], 16),
    ("capacity, tailroom, buffer", &["room", "rooms"], 0),
    ("is stored, is queued", &["stands", "stand", "stood"], 0),
    ("poll, check", &["look", "looks", "looked"], 3),
    ("continues", &["goes on", "go on", "went on"], 0),
];

/// If a count is below its number by more than this, the number must be lowered.
const SLACK: usize = 10;

/// Returns the comments of a file, each paragraph as one text.
fn comments(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut fenced = false;
    let mut continues = false;
    for line in text.lines() {
        let line = line.trim_start();
        let comment = ["///", "//!", "//"]
            .iter()
            .find_map(|mark| line.strip_prefix(mark));
        let Some(comment) = comment else {
            (continues, fenced) = (false, false);
            continue;
        };
        let comment = comment.trim();
        fenced ^= comment.starts_with("```");
        if fenced || comment.is_empty() || comment.starts_with("```") {
            continues = false;
            continue;
        }
        match found.last_mut().filter(|_| continues) {
            Some(last) => last.extend([" ", comment]),
            None => found.push(comment.to_owned()),
        }
        continues = true;
    }
    found
}

/// Counts the words in a comment: whole words, in any case, and not in code.
fn occurrences(comment: &str, words: &[&str]) -> usize {
    let prose = comment
        .split('`')
        .step_by(2)
        .collect::<Vec<_>>()
        .join("`")
        .to_lowercase();
    let is_part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let count = |word: &&str| {
        let found = prose.match_indices(*word).filter(|(at, _)| {
            let (before, after) = (&prose[..*at], &prose[at + word.len()..]);
            !is_part(before.chars().next_back()) && !is_part(after.chars().next())
        });
        found.count()
    };
    words.iter().map(count).sum()
}

fn faults(sources: &[Source], record: &[(&str, &[&str], usize)]) -> Vec<String> {
    let texts = sources.iter().filter(|source| !is_test(&source.path));
    let comments: Vec<String> = texts.flat_map(|it| comments(&it.text)).collect();
    let mut faults = Vec::new();
    for (better, words, most) in record {
        let count: usize = comments.iter().map(|it| occurrences(it, words)).sum();
        if count > *most {
            faults.push(format!(
                "{words:?}: {count}, and at most {most}. Better: {better}"
            ));
        } else if count + SLACK < *most {
            faults.push(format!(
                "{words:?}: {count}, and recorded are {most}: lower it"
            ));
        }
    }
    faults
}

#[test]
fn habits_that_are_hard_to_read_become_fewer() {
    let faults = faults(&sources(), &RECORD);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_planted_habit_is_found() {
    let planted = |text: &str| {
        let source = Source {
            path: "mem/planted.rs".into(),
            text: text.into(),
        };
        faults(&[source], &[("better", &["is over", "nobody"], 0)])
    };
    assert_eq!(
        planted("/// The job is overdue.\nlet nobody = 1; // `nobody`\n"),
        [""; 0]
    );
    assert_eq!(planted("/// ```\n/// nobody();\n/// ```\n"), [""; 0]);
    for found in [
        "// Nobody waits.\n",
        "/// The job is\n/// over.\n",
        "//! Is over\n",
    ] {
        assert_eq!(planted(found).len(), 1, "{found}");
    }
}
