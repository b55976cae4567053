//! Checks that lines of comments and of Markdown have at most 100 columns.

use std::fs;
use std::path::{Path, PathBuf};

const COLUMNS: usize = 100;

/// Collects the Rust and Markdown files below a path, except those of build folders.
fn files(path: &Path, found: &mut Vec<PathBuf>) {
    if path.is_file() {
        if path.extension().is_some_and(|it| it == "rs" || it == "md") {
            found.push(path.to_owned());
        }
        return;
    }
    if path.ends_with("target") {
        return;
    }
    for entry in fs::read_dir(path).unwrap() {
        files(&entry.unwrap().path(), found);
    }
}

/// Returns the prose of a line: the line of a Markdown file, or the comment that is alone on a line
/// of Rust.
pub(super) fn words<'a>(name: &str, line: &'a str) -> Option<&'a str> {
    let line = line.trim();
    if name.ends_with(".md") {
        return Some(line);
    }
    let comment = line.starts_with("//");
    comment.then(|| line.trim_start_matches(['/', '!']).trim_start())
}

/// Returns the numbers of the lines that are too long. Rows of tables and links cannot be wrapped,
/// and code is left to rustfmt.
fn long_lines(name: &str, text: &str) -> Vec<usize> {
    let mut fenced = false;
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let Some(words) = words(name, line) else {
            continue;
        };
        if words.starts_with("```") {
            fenced = !fenced;
        }
        let is_link = words.starts_with('[') || !words.trim_start_matches("- ").contains(' ');
        let is_fixed = fenced || words.starts_with('|') || is_link;
        if line.chars().count() > COLUMNS && !is_fixed {
            found.push(at + 1);
        }
    }
    found
}

/// Returns the names and texts of all files with comments or prose of this project.
pub(super) fn prose() -> Vec<(String, String)> {
    let root = &crate::root();
    let mut all = Vec::new();
    for path in [
        "src",
        "tests",
        "examples",
        "benches",
        "contract",
        "docs",
        "fuzz",
        "http",
        "cli",
        "README.md",
        "DESIGN.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
    ] {
        files(&root.join(path), &mut all);
    }
    assert!(all.len() > 500, "the files were found: {}", all.len());
    let named = all.into_iter().map(|path| {
        let name = path.strip_prefix(root).unwrap().display().to_string();
        (name, fs::read_to_string(&path).unwrap())
    });
    named.collect()
}

#[test]
fn lines_of_prose_fit_into_100_columns() {
    let mut bad = Vec::new();
    for (name, text) in prose() {
        let long = long_lines(&name, &text);
        bad.extend(long.iter().map(|line| format!("{name}:{line}")));
    }
    assert!(bad.is_empty(), "more than {COLUMNS} columns: {bad:#?}");
}

#[test]
fn a_long_line_is_found() {
    let words = "word ".repeat(20);
    assert_eq!(long_lines("a.rs", &format!("/// {words}")), [1]);
    assert_eq!(
        long_lines("a.rs", &format!("fn f() {{}}\n    // {words}")),
        [2]
    );
    assert_eq!(long_lines("a.md", &format!("\n- {words}")), [2]);
    assert_eq!(
        long_lines("a.md", &format!("| {words} |\n```\n{words}\n```")),
        [0; 0]
    );
    assert_eq!(long_lines("a.rs", &format!("let a = \"{words}\";")), [0; 0]);
}
