//! Checks that no function is longer than a screen: a long function has parts, and the parts should
//! have names.
//!
//! The count is of the body's lines with code: the lines between its braces, without comments and
//! blank lines, and with a string over several lines as one. So a wrapped signature, a comment and
//! a blank line between steps cost nothing.

use super::layering::{code, is_test, published, without_tests};

/// The most lines of a body.
const LINES: usize = 60;

/// Returns the name of the function whose declaration begins on this line.
fn named(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    let known = |word: &str| {
        ["const", "async", "unsafe", "extern", "\"\"", "default"].contains(&word)
            || word.starts_with("pub")
            || ["super)", "crate)", "self)"].contains(&word)
            || word.starts_with("crate::")
            || word.starts_with("super::")
    };
    let name = after.split(|c: char| !c.is_alphanumeric() && c != '_');
    before
        .split_whitespace()
        .all(known)
        .then(|| name.into_iter().next())
        .flatten()
        .filter(|name| !name.is_empty())
}

/// Returns every function of a file, nested ones included, with the number of lines of its body.
///
/// Since the sources are formatted, a function ends with the brace at the indentation of its first
/// line. A body on the same line as its head is short, and is ignored.
fn functions(text: &str) -> Vec<(String, usize)> {
    let code = code(text);
    let lines: Vec<&str> = without_tests(&code).lines().collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(name) = named(line) else { continue };
        let rest = &lines[at..];
        let Some(head) = rest.iter().position(|it| it.ends_with(['{', ';', '}'])) else {
            continue;
        };
        if !rest[head].ends_with('{') {
            // A declaration without a body, or a body on the line of its head.
            continue;
        }
        let body = &rest[head + 1..];
        let is_end = |it: &&str| indent(it) == indent(line) && it.trim_start().starts_with('}');
        let end = body.iter().position(is_end).unwrap_or(body.len());
        let counted = body[..end].iter().filter(|it| !it.trim().is_empty());
        found.push((name.to_owned(), counted.count()));
    }
    found
}

/// Returns a message for each function that is too long.
fn faults(found: &[(String, String, usize)]) -> Vec<String> {
    let long = found.iter().filter(|(_, _, lines)| *lines > LINES);
    let long = long.map(|(path, name, lines)| {
        format!("{path}: {name} has {lines} lines: give a part of them a name")
    });
    long.collect()
}

#[test]
fn no_function_is_longer_than_sixty_lines() {
    let sources = published();
    // Code for fuzzers is not product code.
    let product = sources
        .iter()
        .filter(|source| !is_test(&source.path) && !source.path.contains("fuzzing"));
    let found: Vec<_> = product
        .flat_map(|source| {
            let functions = functions(&source.text).into_iter();
            functions.map(|(name, lines)| (source.path.clone(), name, lines))
        })
        .collect();
    assert!(found.len() > 2500, "{} functions were found", found.len());
    let faults = faults(&found);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_function_that_is_long_is_found() {
    let of = |lines: usize| {
        let body = "        step();\n        // Why.\n\n".repeat(lines);
        let text = format!(
            "impl A {{\n    pub(in crate::a) unsafe fn long(\n        &self,\n    ) -> u8\n    where\n        A: B,\n    {{\n{body}    }}\n\n    fn short() {{}}\n}}\n"
        );
        let found = functions(&text).into_iter();
        let found: Vec<_> = found
            .map(|(name, lines)| ("a.rs".to_owned(), name, lines))
            .collect();
        assert_eq!(found, [("a.rs".to_owned(), "long".to_owned(), lines)]);
        found
    };
    assert_eq!(faults(&of(60)), [""; 0]);
    let faults = faults(&of(61));
    assert_eq!(faults.len(), 1);
    assert!(faults[0].contains("long has 61 lines: give"), "{faults:?}");
    // Nested functions and those of traits are found; words in strings are not.
    let text = "fn a() {\n    async fn b() {\n        c();\n    }\n    \"fn d() {\";\n    b();\n}\ntrait T {\n    fn e();\n    fn f() {\n        e();\n    }\n}\n";
    let names = [("a", 5), ("b", 1), ("f", 1)];
    assert_eq!(
        functions(text),
        names.map(|(name, lines)| (name.to_owned(), lines))
    );
}
