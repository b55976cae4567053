//! Checks that the ledger in docs/unsafe.md lists exactly the files with unsafe code, and the
//! amount in each.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            found.push(path);
        }
    }
}

/// Returns the code that is built without `cfg(test)`, without comments. A test module is at the
/// end of its file.
fn product(text: &str) -> String {
    let mut lines: Vec<&str> = Vec::new();
    let mut source = text.lines().peekable();
    while let Some(line) = source.next() {
        let test = line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test");
        match source.peek() {
            Some(next) if test && next.starts_with("mod ") && next.ends_with('{') => break,
            // An `impl` for tests only: skip it, since code follows it.
            Some(next) if test && next.starts_with("impl ") => {
                source.find(|line| *line == "}");
                continue;
            }
            _ => {}
        }
        lines.push(line.split("//").next().unwrap_or_default());
    }
    lines.join("\n")
}

/// Counts unsafe blocks and impls. `unsafe fn` and `unsafe trait` put a duty on others, and do
/// nothing themselves.
fn count(text: &str) -> usize {
    let words: Vec<&str> = text
        .split(|c: char| {
            c.is_whitespace() || c == '(' || c == ';' || c == ',' || c == '|' || c == '='
        })
        .filter(|word| !word.is_empty())
        .collect();
    words
        .windows(2)
        .filter(|pair| {
            pair[0] == "unsafe" && (pair[1].starts_with('{') || pair[1].starts_with("impl"))
        })
        .count()
}

/// The source folders of the crates that may have unsafe code.
const FOLDERS: [&str; 3] = ["src", "contract/src", "cli/src"];

/// Returns the files with unsafe code outside tests, each with its count.
fn in_source() -> BTreeMap<String, usize> {
    let mut found = Vec::new();
    for folder in FOLDERS {
        files(&crate::root().join(folder), &mut found);
    }
    let mut ledger = BTreeMap::new();
    // Leave out loom models, and tests in a file or a folder of their own.
    let is_test = |file: &&PathBuf| {
        let part = |part: &std::ffi::OsStr| {
            ["loom", "loom.rs", "tests", "tests.rs"]
                .iter()
                .any(|it| part == *it)
        };
        file.iter().any(part)
    };
    for file in found.iter().filter(|file| !is_test(file)) {
        let text = fs::read_to_string(file).unwrap();
        let product = product(&text);
        let count = count(&product);
        let path = file
            .strip_prefix(crate::root())
            .unwrap()
            .display()
            .to_string();
        let expects =
            product.contains("expect(unsafe_code") || product.contains("expect(\n    unsafe_code");
        if count > 0 || expects {
            assert!(
                expects,
                "{path} has unsafe code, and does not say so at its top"
            );
            ledger.insert(path, count);
        }
    }
    ledger
}

fn ledger() -> String {
    fs::read_to_string(crate::root().join("docs/unsafe.md")).expect("docs has the ledger")
}

/// Returns the entries of the ledger: the path of a file in [`FOLDERS`], its count, and the
/// boundary under which the file is listed.
fn in_ledger(text: &str) -> Vec<(String, usize, String)> {
    let (mut boundary, mut found) = (String::new(), Vec::new());
    for part in text.split("\n## ").skip(1) {
        boundary.clear();
        boundary.push_str(part.lines().next().unwrap_or_default());
        // A path, followed by its count, which may be on the next line.
        let words: Vec<&str> = part.split('`').collect();
        let is_file = |it: &str| FOLDERS.iter().any(|folder| it.starts_with(folder));
        for pair in words.windows(2).filter(|pair| is_file(pair[0])) {
            let rest = pair[1].trim_start();
            let digits = rest.find(|c: char| !c.is_ascii_digit());
            if let Ok(count) = rest[..digits.unwrap_or(rest.len())].parse() {
                found.push((pair[0].to_owned(), count, boundary.clone()));
            }
        }
    }
    found
}

#[test]
fn the_ledger_is_what_the_source_has() {
    let (right, written) = (in_source(), in_ledger(&ledger()));
    let mut wrong = String::new();
    for (path, count) in &right {
        let said: Vec<_> = written.iter().filter(|(file, ..)| file == path).collect();
        match said[..] {
            [(_, said, _)] if said == count => {}
            [] => drop(writeln!(wrong, "`{path}` {count}: inside no boundary")),
            [(_, said, at)] => drop(writeln!(wrong, "`{path}` {count}: {at:?} says {said}")),
            _ => drop(writeln!(
                wrong,
                "`{path}` {count}: inside several boundaries"
            )),
        }
    }
    for (path, _, boundary) in &written {
        if !right.contains_key(path) {
            let _ = writeln!(
                wrong,
                "`{path}`: {boundary:?} has it, and it has no unsafe code"
            );
        }
    }
    assert!(wrong.is_empty(), "docs/unsafe.md is wrong:\n{wrong}");
}

#[test]
fn each_boundary_says_what_it_keeps_and_what_would_fail() {
    for boundary in ledger().split("\n## ").skip(1) {
        for said in ["- Kept: ", "- Inside: ", "- Would fail: "] {
            assert!(boundary.contains(said), "no {said:?} in:\n{boundary}");
        }
    }
}

#[test]
fn unsafe_code_is_counted_where_it_is() {
    let text = "//! unsafe { in a comment }\nunsafe impl Send for A {}\nunsafe impl<T> Sync for B<T> {}\n\
                fn f() { let x = g(unsafe { h() }); } // unsafe { }\nunsafe fn g() {}\nunsafe trait T {}\n\
                let y = || unsafe {\n h() };\n\
                #[cfg(test)]\nimpl A {\n unsafe { h() }\n}\n\
                #[cfg(all(test, not(tokio_doca_loom)))]\nmod tests {\n unsafe { h() }\n}\n";
    assert_eq!(count(&product(text)), 4);
    let text = "`src/no.rs` 1\n## A\n- Inside: `src/a/b.rs` 3,\n  `src/c.rs`\n  \
                14. Safe: `src/d.rs`.\n";
    let read: Vec<_> = in_ledger(text)
        .into_iter()
        .map(|(path, n, at)| format!("{at} {path} {n}"))
        .collect();
    assert_eq!(read, ["A src/a/b.rs 3", "A src/c.rs 14"]);
}
