//! Checks that imports point downwards only: `ops > reactor > mem > device > {error, sync}`, and
//! that a provider imports only the contract (`device`) and the layers below it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The layers that each layer may import. All other imports are refused, and so is a layer without
/// a row.
const MAY: [(&str, &[&str]); 11] = [
    // The uppermost layer.
    (
        "stream",
        &[
            "channel", "ops", "reactor", "mem", "device", "error", "sync",
        ],
    ),
    // Beside `ops`.
    ("channel", &["device", "error", "process", "sync"]),
    ("ops", &["reactor", "mem", "device", "error", "sync"]),
    ("reactor", &["mem", "device", "error", "sync"]),
    ("mem", &["device", "error", "process", "sync"]),
    ("device", &["error", "sync"]),
    ("provider", &["device", "error", "process", "sync"]),
    ("process", &["error", "sync"]),
    ("sync", &["error"]),
    // Text only.
    ("guide", &[]),
    ("error", &[]),
];

/// The most lines of a file without its tests.
const LINES: usize = 450;

/// The most files in a folder.
const FILES: usize = 15;

pub(super) struct Source {
    /// The path below `src`, as `mem/buf.rs`, or `contract/report.rs` for the contract suite's
    /// crate.
    pub(super) path: String,
    pub(super) text: String,
}

/// Returns the library's files.
pub(super) fn sources() -> Vec<Source> {
    below("src", "")
}

/// Returns the files of all published crates.
pub(super) fn published() -> Vec<Source> {
    let mut all = sources();
    all.extend(below("contract/src", "contract/"));
    all
}

fn below(folder: &str, prefix: &str) -> Vec<Source> {
    fn walk(dir: &Path, files: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, files);
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                files.push(path);
            }
        }
    }
    let root = crate::root().join(folder);
    let mut files = Vec::new();
    walk(&root, &mut files);
    files.sort();
    let source = |file: PathBuf| Source {
        path: format!("{prefix}{}", file.strip_prefix(&root).unwrap().display()),
        text: fs::read_to_string(&file).unwrap(),
    };
    files.into_iter().map(source).collect()
}

/// Returns the module path of a file: `mem::buf` for `mem/buf.rs`, `mem` for `mem/mod.rs`.
pub(super) fn module(path: &str) -> Vec<&str> {
    let path = path.strip_suffix(".rs").unwrap();
    let path = path.strip_suffix("/mod").unwrap_or(path);
    path.split('/').collect()
}

/// Returns the code without comments and with empty strings, so that their words do not count as
/// names.
pub(super) fn code(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        if rest.starts_with("//") {
            let end = rest.find('\n').unwrap_or(rest.len());
            rest = &rest[end..];
        } else if rest.starts_with("r#\"") {
            let end = rest.find("\"#").map_or(rest.len(), |end| end + 2);
            code.push_str("\"\"");
            rest = &rest[end..];
        } else if next == '"' {
            let mut end = 1;
            let bytes = rest.as_bytes();
            while end < bytes.len() && bytes[end] != b'"' {
                end += if bytes[end] == b'\\' { 2 } else { 1 };
            }
            code.push_str("\"\"");
            rest = &rest[(end + 1).min(rest.len())..];
        } else if rest.starts_with("'\"'") || rest.starts_with("'/'") {
            code.push_str("' '");
            rest = &rest[3..];
        } else {
            code.push(next);
            rest = &rest[next.len_utf8()..];
        }
    }
    code
}

/// Returns the code without its test modules: everything before the first `#[cfg(test)]` or similar
/// module.
pub(super) fn without_tests(code: &str) -> &str {
    let test = ["#[cfg(test)]\nmod", "#[cfg(all(test"];
    // A test-only item that is not a module, such as a method for models, does not end the code.
    let is_module = |at: &usize| {
        let mut lines = code[*at..].lines().skip(1);
        let item = lines.find(|line| !line.starts_with("#["));
        item.is_some_and(|item| item.starts_with("mod ") && item.ends_with('{'))
    };
    let cut = test.iter().filter_map(|mark| {
        let mut found = code.match_indices(mark).map(|(at, _)| at);
        found.find(is_module)
    });
    &code[..cut.min().unwrap_or(code.len())]
}

/// Returns the first name of every path that begins with `crate::` or `super::`, resolved from the
/// crate's root.
fn targets(module: &[&str], code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for start in ["crate::", "super::"] {
        for (at, _) in code.match_indices(start) {
            let before = code[..at].chars().next_back();
            let word = |c: char| c.is_alphanumeric() || c == '_' || c == ':' || c == '$';
            if before.is_some_and(word) {
                continue;
            }
            let mut rest = &code[at..];
            let mut base: Vec<&str> = match start {
                "crate::" => {
                    rest = &rest["crate::".len()..];
                    Vec::new()
                }
                _ => module.to_vec(),
            };
            while let Some(after) = rest.strip_prefix("super::") {
                base.pop();
                rest = after;
            }
            if let Some(&layer) = base.first() {
                found.insert(layer.to_owned());
                continue;
            }
            for name in heads(rest) {
                found.insert(name.to_owned());
            }
        }
    }
    found
}

/// Returns the next name of a path, or the names of a brace list.
fn heads(rest: &str) -> Vec<&str> {
    let name = |text: &'_ str| {
        let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
        end.unwrap_or(text.len())
    };
    let Some(list) = rest.strip_prefix('{') else {
        return vec![&rest[..name(rest)]];
    };
    let (mut depth, mut begins, mut heads) = (0, true, Vec::new());
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => begins = true,
            _ if begins && !c.is_whitespace() => {
                heads.push(&list[at..][..name(&list[at..])]);
                begins = false;
            }
            _ => {}
        }
    }
    heads
}

/// Returns the layer of a name in the crate's root: the module itself, or the module that exports
/// the name. Modules with a body in `lib.rs` gather names of several layers, so they count as
/// `ops`, the uppermost layer but for `stream` and `channel`.
fn layer_of(name: &str, lib: &str) -> String {
    if lib.contains(&format!("pub mod {name} {{")) {
        return "ops".to_owned();
    }
    for line in lib.split(';') {
        let Some((_, exported)) = line.split_once("pub use ") else {
            continue;
        };
        let Some((layer, names)) = exported.trim().split_once("::") else {
            continue;
        };
        let mut names = names.split(|c: char| !c.is_alphanumeric() && c != '_');
        // Skip re-exports inside modules that `lib.rs` writes out: those are not names of the root.
        if layer == "crate" {
            continue;
        }
        if names.any(|exported| exported == name) {
            return layer_of(layer, lib);
        }
    }
    name.to_owned()
}

/// Returns a message for each import of a file that is not allowed.
fn bad_edges(path: &str, text: &str, lib: &str) -> Vec<String> {
    let code = code(text);
    let module = module(path);
    let layer = module[0];
    if layer == "lib" || layer == "bin" {
        return Vec::new();
    }
    let Some((_, may)) = MAY.iter().find(|(name, _)| *name == layer) else {
        return vec![format!("{path}: no layer {layer} is known")];
    };
    targets(&module, without_tests(&code))
        .into_iter()
        .map(|name| layer_of(&name, lib))
        .filter(|target| target != layer && !may.contains(&target.as_str()))
        .map(|target| format!("{path}: {layer} may not use {target}"))
        .collect()
}

fn lib() -> String {
    let path = crate::root().join("src/lib.rs");
    code(&fs::read_to_string(path).unwrap())
}

#[test]
fn imports_point_down_only() {
    let lib = lib();
    let sources = sources();
    assert!(sources.len() > 30, "the sources were found");
    let bad: Vec<String> = sources
        .iter()
        .flat_map(|source| bad_edges(&source.path, &source.text, &lib))
        .collect();
    assert!(bad.is_empty(), "{bad:#?}");
}

#[test]
fn a_planted_bad_edge_is_found() {
    let lib = lib();
    for (path, text) in [
        ("mem/buf.rs", "use crate::reactor::WorkQ;"),
        ("mem/buf.rs", "use super::super::reactor::WorkQ;"),
        ("mem/buf.rs", "fn f() { crate::ops::f() }"),
        ("mem/buf.rs", "use crate::{device::Device, reactor::WorkQ};"),
        (
            "mem/buf.rs",
            "use crate::{\n    error::Error,\n    WorkQ,\n};",
        ),
        ("device/job.rs", "use crate::mem::Buf;"),
        ("device/job.rs", "use crate::Buf;"),
        ("mem/buf.rs", "use crate::rdma::Mtu;"),
        ("reactor/slot.rs", "use crate::Dma;"),
        ("provider/soft/queue.rs", "use crate::mem::Buf;"),
        (
            "provider/soft/queue.rs",
            "use super::super::super::mem::Buf;",
        ),
        ("error.rs", "use crate::device::Device;"),
        ("error.rs", "use super::device::Device;"),
        ("sync/mod.rs", "use crate::device::Device;"),
        ("reactor/slot.rs", "use crate::provider::soft::Soft;"),
        ("util.rs", ""),
    ] {
        let bad = bad_edges(path, text, &lib);
        assert_eq!(bad.len(), 1, "{path}: {text}: {bad:?}");
    }
    for (path, text) in [
        (
            "mem/buf.rs",
            "use super::element::Handle; use crate::error::Error;",
        ),
        (
            "mem/buf.rs",
            "// use crate::reactor::WorkQ;\n/// [`crate::ops::Dma`]",
        ),
        (
            "mem/buf.rs",
            "const S: &str = \"use crate::reactor::WorkQ;\";",
        ),
        (
            "ops/dma.rs",
            "use crate::reactor::{JobFuture, WorkQ}; use crate::mem;",
        ),
        (
            "provider/soft/queue.rs",
            "use super::super::x; use crate::device::Job;",
        ),
        ("lib.rs", "use crate::ops::Dma;"),
        (
            "mem/buf.rs",
            "#[cfg(test)]\nmod tests {\n use crate::provider::soft;\n}",
        ),
    ] {
        assert_eq!(bad_edges(path, text, &lib), [""; 0], "{path}: {text}");
    }
}

/// Returns true if a whole file is for tests: a loom model, or tests in a file or a folder of their
/// own.
pub(super) fn is_test(path: &str) -> bool {
    path.split('/')
        .any(|part| ["loom", "loom.rs", "tests", "tests.rs"].contains(&part))
}

#[test]
fn no_file_is_long_without_its_tests() {
    for source in published().iter().filter(|source| !is_test(&source.path)) {
        let lines = without_tests(&source.text).lines().count();
        assert!(
            lines <= LINES,
            "{}: {lines} lines without its tests: it has two nouns",
            source.path
        );
    }
}

/// Returns a message for each folder that has too many files, not counting tests.
fn crowded(paths: &[&str]) -> Vec<String> {
    let mut folders: BTreeMap<&str, usize> = BTreeMap::new();
    for path in paths.iter().filter(|path| !is_test(path)) {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        *folders.entry(folder).or_default() += 1;
    }
    let crowded = folders.into_iter().filter(|(_, files)| *files > FILES);
    let crowded = crowded.map(|(folder, files)| {
        format!("{folder}: {files} files, and at most {FILES}: give a part of them a room")
    });
    crowded.collect()
}

#[test]
fn no_folder_has_more_than_fifteen_files() {
    let sources = published();
    let paths: Vec<&str> = sources.iter().map(|source| &*source.path).collect();
    let faults = crowded(&paths);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_folder_that_is_crowded_is_found() {
    let folder = |files: usize| {
        let mut paths: Vec<String> = (0..files).map(|at| format!("m/f{at}.rs")).collect();
        // None of these files counts.
        let others = [
            "m/loom.rs",
            "m/tests.rs",
            "m/loom/a.rs",
            "m/room/b.rs",
            "c.rs",
        ];
        paths.extend(others.map(String::from));
        paths
    };
    for (files, says) in [(15, None), (16, Some("m: 16 files, and at most 15"))] {
        let paths = folder(files);
        let paths: Vec<&str> = paths.iter().map(|path| &**path).collect();
        let faults = crowded(&paths);
        assert_eq!(faults.len(), usize::from(says.is_some()), "{faults:?}");
        let said = faults
            .iter()
            .zip(says)
            .all(|(it, says)| it.starts_with(says));
        assert!(said, "{faults:?}");
    }
}

#[test]
fn every_file_opens_with_what_it_is() {
    for source in published() {
        let first = source.text.lines().next().unwrap_or_default();
        assert!(
            first.starts_with("//! ") && first.len() > 8,
            "{} opens with {first:?}",
            source.path
        );
    }
}

#[test]
fn no_module_is_called_after_nothing() {
    for source in published() {
        for name in module(&source.path) {
            assert!(
                !["util", "utils", "common", "helpers", "types", "misc"].contains(&name),
                "{}: name it after what is in it",
                source.path
            );
        }
    }
}
