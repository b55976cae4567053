//! The ledger of unsafe code in DESIGN.md names the files that have some, and how much: no more, no fewer.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

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

/// What is built without `cfg(test)`, comments and strings left out: a test module stands at the end of its file.
fn product(text: &str) -> String {
    let mut lines: Vec<&str> = Vec::new();
    let mut source = text.lines().peekable();
    while let Some(line) = source.next() {
        let test = line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test");
        if test
            && source
                .peek()
                .is_some_and(|next| next.starts_with("mod ") && next.ends_with('{'))
        {
            break;
        }
        lines.push(line.split("//").next().unwrap_or_default());
    }
    lines.join("\n")
}

/// Blocks and impls. `unsafe fn` and `unsafe trait` put a duty on others, and do nothing themselves.
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

/// Files below `src` with unsafe code outside their tests.
fn in_source() -> BTreeMap<String, usize> {
    let mut found = Vec::new();
    files(&root().join("src"), &mut found);
    let mut ledger = BTreeMap::new();
    // Loom models, and tests in a file of their own, are tests as a whole.
    let is_test = |file: &&PathBuf| {
        let part =
            |part: &std::ffi::OsStr| part == "loom" || part == "loom.rs" || part == "tests.rs";
        file.iter().any(part)
    };
    for file in found.iter().filter(|file| !is_test(file)) {
        let text = fs::read_to_string(file).unwrap();
        let product = product(&text);
        let count = count(&product);
        let path = file.strip_prefix(root()).unwrap().display().to_string();
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

/// The rows `| `src/path.rs` | number | why |`.
fn in_design(text: &str) -> BTreeMap<String, (usize, String)> {
    text.lines()
        .filter_map(|line| {
            let row = line.strip_prefix("| `src/")?;
            let (path, rest) = row.split_once("` |")?;
            let mut cells = rest.split('|').map(str::trim);
            let count = cells.next()?.parse().ok()?;
            let why = cells.next().unwrap_or_default().to_owned();
            Some((format!("src/{path}"), (count, why)))
        })
        .collect()
}

fn table(right: &BTreeMap<String, usize>, written: &BTreeMap<String, (usize, String)>) -> String {
    let mut table = String::new();
    for (path, count) in right {
        let why = written.get(path).map_or("why?", |(_, why)| why);
        let _ = writeln!(table, "| `{path}` | {count} | {why} |");
    }
    table
}

#[test]
fn the_ledger_is_what_the_source_has() {
    let design = fs::read_to_string(root().join("DESIGN.md")).expect("DESIGN.md has the ledger");
    let (right, written) = (in_source(), in_design(&design));
    let counts: BTreeMap<String, usize> = written
        .iter()
        .map(|(path, (count, _))| (path.clone(), *count))
        .collect();
    let table = table(&right, &written);
    assert!(
        counts == right,
        "the ledger in DESIGN.md should be:\n\n{table}"
    );
    let unsaid: Vec<&String> = written
        .iter()
        .filter(|(_, (_, why))| why.len() < 8)
        .map(|(path, _)| path)
        .collect();
    assert!(unsaid.is_empty(), "no reason is given for {unsaid:?}");
}

#[test]
fn unsafe_code_is_counted_where_it_is() {
    let text = "//! unsafe { in a comment }\nunsafe impl Send for A {}\nunsafe impl<T> Sync for B<T> {}\n\
                fn f() { let x = g(unsafe { h() }); } // unsafe { }\nunsafe fn g() {}\nunsafe trait T {}\n\
                let y = || unsafe {\n h() };\n\
                #[cfg(all(test, not(tokio_doca_loom)))]\nmod tests {\n unsafe { h() }\n}\n";
    assert_eq!(count(&product(text)), 4);
    let rows = "| file | n | why |\n|---|---|---|\n| `src/a/b.rs` | 3 | links nodes |\n| `src/c.rs` | x | y |\n";
    let read = in_design(rows);
    assert_eq!(read.len(), 1);
    assert_eq!(read["src/a/b.rs"], (3, "links nodes".to_owned()));
}
