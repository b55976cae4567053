//! Checks that habits that make comments hard to read (CONTRIBUTING, "Words") only become fewer.
//! Each habit has its number of occurrences in the comments and in the Markdown of all folders,
//! above which the test fails. The records of decisions are left out: they are of their time.

use super::columns::{prose, words};

/// Each habit with the better wording, its words, and how often they occur.
const RECORD: [(&str, &[&str], usize); 12] = [
    (
        "an actor without a name: say caller, peer, task or thread",
        &["nobody", "somebody", "everybody", "anybody", "whoever"],
        0,
    ),
    ("a number: name the parameter", &["so many", "as many"], 31),
    ("a default: \"Defaults to\"", &["if not said"], 1),
    (
        "completed, ended",
        &["is over", "are over", "was over", "be over"],
        0,
    ),
    ("notified", &["told", "tell", "tells"], 43),
    ("signal", &["rang", "rung"], 0),
    ("slot, entry", &["place", "places"], 93),
    ("capacity, tailroom, buffer", &["room", "rooms"], 0),
    ("is stored, is queued", &["stands", "stand", "stood"], 4),
    ("poll, check", &["look", "looks", "looked"], 6),
    ("a sentence: Returns true if", &[". whether"], 0),
    ("continues", &["goes on", "go on", "went on"], 0),
];

/// If a count is below its number by more than this, the number must be lowered.
const SLACK: usize = 10;

/// Returns the comments of a Rust file, or the prose of a Markdown file: each paragraph as one
/// text. Tables of Markdown are left out, since the glossary is one.
fn paragraphs(name: &str, text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut fenced = false;
    let mut continues = false;
    for line in text.lines() {
        let Some(comment) = words(name, line) else {
            (continues, fenced) = (false, false);
            continue;
        };
        fenced ^= comment.starts_with("```");
        let is_row = name.ends_with(".md") && comment.starts_with('|');
        if fenced || is_row || comment.is_empty() || comment.starts_with("```") {
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
    let words_only = comment.split('`').step_by(2).collect::<Vec<_>>();
    // With a full stop before it, as before each other sentence.
    let prose = format!(". {}", words_only.join("`")).to_lowercase();
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

fn faults(files: &[(String, String)], record: &[(&str, &[&str], usize)]) -> Vec<String> {
    let texts = files
        .iter()
        .filter(|(name, _)| !name.starts_with("docs/adr/"));
    let comments: Vec<String> = texts
        .flat_map(|(name, text)| paragraphs(name, text))
        .collect();
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
    let faults = faults(&prose(), &RECORD);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_planted_habit_is_found() {
    let planted_in = |name: &str, text: &str| {
        let record: &[(&str, &[&str], usize)] = &[("better", &["is over", "nobody"], 0)];
        faults(&[(name.into(), text.into())], record)
    };
    let planted = |text: &str| planted_in("mem/planted.rs", text);
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
    assert_eq!(
        planted_in("docs/planted.md", "```\nnobody\n```\n| nobody |\n"),
        [""; 0]
    );
    assert_eq!(planted_in("docs/adr/0001.md", "Nobody waits.\n"), [""; 0]);
    assert_eq!(
        planted_in("docs/planted.md", "The job is\nover.\n").len(),
        1
    );
}
