//! Checks that at most three files import each other in a circle: the files of a cycle can only be
//! read and changed together.

use std::collections::{BTreeMap, BTreeSet};

use super::layering::{Source, code, module, sources, without_tests};

/// The most files that a cycle may have.
const MOST: usize = 3;

/// A path as it is written, by its segments: `super`, `core`, `Core`.
type Path<'a> = Vec<&'a str>;

/// The paths of other files that a file uses.
struct File<'a> {
    /// True for a `mod.rs` or `lib.rs`, which names and re-exports the contents of its folder. It
    /// is in no cycle itself: a path through it leads to the file that has the item.
    is_folder: bool,
    /// Every path that the file imports or writes in full.
    paths: BTreeSet<Path<'a>>,
    /// The file's re-exports: each name, and the path that the name stands for.
    exports: BTreeMap<&'a str, Path<'a>>,
}

/// The files by their module paths. The module path of `lib.rs` is empty.
type Files<'a> = BTreeMap<Path<'a>, File<'a>>;

fn file<'a>(path: &str, code: &'a str) -> File<'a> {
    let mut file = File {
        is_folder: path == "lib.rs" || path.ends_with("mod.rs"),
        paths: written_out(code),
        exports: BTreeMap::new(),
    };
    for (at, _) in code.match_indices("use ") {
        let before = code[..at].trim_end();
        if before.len() == at && at > 0 {
            // `use` is the end of a longer word.
            continue;
        }
        let tree = &code[at + "use ".len()..];
        let tree = &tree[..tree.find(';').unwrap_or(0)];
        for (path, name) in leaves(tree) {
            if before.ends_with("pub") || before.ends_with(')') {
                file.exports.insert(name, path.clone());
            }
            file.paths.insert(path);
        }
    }
    file
}

/// Returns the segments of a path.
fn segments(path: &str) -> impl Iterator<Item = &str> {
    path.split("::").map(str::trim).filter(|it| !it.is_empty())
}

/// Returns the paths of a use tree, each with the name that it gets. `a::{self, b as c}` has `a` as
/// `a`, and `a::b` as `c`.
fn leaves(tree: &str) -> Vec<(Path<'_>, &str)> {
    let mut depth = 0;
    let parts = tree.split(|c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    });
    let mut found = Vec::new();
    for part in parts.map(str::trim).filter(|part| !part.is_empty()) {
        if let Some((before, list)) = part.split_once('{') {
            let list = &list[..list.rfind('}').unwrap_or(list.len())];
            for (mut path, mut name) in leaves(list) {
                path.splice(0..0, segments(before));
                if path.last() == Some(&"self") {
                    path.pop();
                    name = path.last().copied().unwrap_or(name);
                }
                found.push((path, name));
            }
        } else {
            let (path, name) = part.split_once(" as ").unwrap_or((part, ""));
            let path: Path = segments(path).collect();
            let last = path.last().copied().unwrap_or_default();
            found.push((path, if name.is_empty() { last } else { name.trim() }));
        }
    }
    found
}

/// Returns the paths that begin with `crate`, `super` or `self`, imported or not.
fn written_out(code: &str) -> BTreeSet<Path<'_>> {
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    code.split(|c| !is_path(c))
        .filter(|word| {
            ["crate::", "super::", "self::"]
                .iter()
                .any(|it| word.starts_with(it))
        })
        .map(|word| segments(word).collect())
        .collect()
}

/// Returns the file that defines the item that `path` names in the module `from`. Returns `None` if
/// that is a folder or in another crate. Follows at most `hops` re-exports.
fn target<'a>(
    files: &Files<'a>,
    from: &[&'a str],
    path: &[&'a str],
    hops: usize,
) -> Option<Path<'a>> {
    let mut base = from.to_vec();
    let mut rest = path;
    match *rest.first()? {
        "crate" => (base, rest) = (Vec::new(), &rest[1..]),
        "self" => rest = &rest[1..],
        "super" => {}
        child => {
            base.push(child);
            let is_ours = files.contains_key(&base);
            base.pop();
            if !is_ours {
                return None;
            }
        }
    }
    while let Some(("super", after)) = rest.split_first().map(|(first, after)| (*first, after)) {
        base.pop();
        rest = after;
    }
    while let Some((name, after)) = rest.split_first() {
        base.push(name);
        if !files.contains_key(&base) {
            base.pop();
            break;
        }
        rest = after;
    }
    let file = files.get(&base)?;
    if let Some((name, after)) = rest.split_first()
        && let Some(export) = file.exports.get(name)
        && hops > 0
    {
        let path: Path = export.iter().chain(after).copied().collect();
        return target(files, &base, &path, hops - 1);
    }
    (!file.is_folder).then_some(base)
}

/// Returns the files that each file imports.
fn imports(sources: &[(String, String)]) -> BTreeMap<String, BTreeSet<String>> {
    let files: Files = sources
        .iter()
        .map(|(path, code)| match path.as_str() {
            "lib.rs" => (Vec::new(), file(path, code)),
            _ => (module(path), file(path, code)),
        })
        .collect();
    let of = |(from, file): (&Path, &File)| {
        let targets = file
            .paths
            .iter()
            .filter_map(|path| target(&files, from, path, 8));
        let targets = targets.filter(|to| to != from).map(|to| to.join("/"));
        (from.join("/"), targets.collect())
    };
    files
        .iter()
        .filter(|(_, file)| !file.is_folder)
        .map(of)
        .collect()
}

/// Returns the files that a file imports, directly or through other files.
fn reached<'a>(
    imports: &'a BTreeMap<String, BTreeSet<String>>,
    from: &'a str,
) -> BTreeSet<&'a str> {
    let (mut reached, mut left) = (BTreeSet::new(), vec![from]);
    while let Some(next) = left.pop() {
        let new = imports[next].iter().map(String::as_str);
        left.extend(new.filter(|it| reached.insert(*it)));
    }
    reached
}

/// Returns the cycles of more than one file.
fn cycles(imports: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<BTreeSet<&str>> {
    let names = imports.keys().map(String::as_str);
    let reached: BTreeMap<&str, _> = names.map(|it| (it, reached(imports, it))).collect();
    let mut cycles = BTreeSet::new();
    for (from, to) in &reached {
        let back = to.iter().copied().filter(|it| reached[it].contains(from));
        cycles.insert(back.collect());
    }
    cycles.retain(|cycle: &BTreeSet<&str>| cycle.len() > 1);
    cycles
}

/// Returns the innermost folder that has all files of a cycle.
fn folder(cycle: &BTreeSet<&str>) -> String {
    let mut files = cycle.iter().map(|it| it.split('/').collect::<Vec<_>>());
    let first = files.next().unwrap_or_default();
    let mut same = first.len() - 1;
    for other in files {
        same = same.min(first.iter().zip(&other).take_while(|(a, b)| a == b).count());
    }
    first[..same].join("/")
}

/// Returns a message for each cycle that is too large.
fn faults(imports: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let large = cycles(imports).into_iter().filter(|it| it.len() > MOST);
    let large = large.map(|cycle| {
        let edges = cycle.iter().map(|from| {
            let to = imports[*from].iter();
            let to = to.filter(|to| cycle.contains(to.as_str())).cloned();
            format!("\n  {from} -> {}", to.collect::<Vec<_>>().join(", "))
        });
        format!(
            "{}: {} files import each other in a circle; cut one of these imports:{}",
            folder(&cycle),
            cycle.len(),
            edges.collect::<String>()
        )
    });
    large.collect()
}

/// Returns the path of a source, and its code without comments, strings and tests.
fn product(source: &Source) -> (String, String) {
    let code = code(&source.text);
    (source.path.clone(), without_tests(&code).to_owned())
}

#[test]
fn no_more_files_than_three_import_each_other_in_a_circle() {
    let sources: Vec<_> = sources().iter().map(product).collect();
    let imports = imports(&sources);
    let edges: usize = imports.values().map(BTreeSet::len).sum();
    assert!(
        imports.len() > 200 && edges > 500,
        "{edges} imports were found"
    );
    let faults = faults(&imports);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Returns the imports of files given by path and text.
fn planted(files: &[(&str, &str)]) -> BTreeMap<String, BTreeSet<String>> {
    let source = |(path, text): &(&str, &str)| {
        let (path, text) = ((*path).to_owned(), (*text).to_owned());
        product(&Source { path, text })
    };
    imports(&files.iter().map(source).collect::<Vec<_>>())
}

#[test]
fn a_path_is_followed_however_it_is_written() {
    for text in [
        "use super::b::B;",
        "use super::{c::C, b::{self, B as Other}};",
        "use crate::m::b::*;",
        "fn f() -> super::b::B {}",
        "fn f() { crate::m::b::f(super::c::C) }",
        // Re-exported once, under another name, and twice.
        "use super::B;",
        "use crate::m::Renamed;",
        "use crate::B;",
        "fn f() { crate::B::new() }",
        "use super::Twice;",
    ] {
        let imports = planted(&[
            ("lib.rs", "mod m;\npub use m::{B, c::C};"),
            (
                "m/mod.rs",
                "mod a;\nmod b;\nmod c;\npub(crate) use b::{B, B as Renamed};\npub use c::Twice;",
            ),
            ("m/a.rs", text),
            ("m/b.rs", "use std::sync::Arc;"),
            ("m/c.rs", "pub use super::b::Twice;"),
        ]);
        assert!(imports["m/a"].contains("m/b"), "{text}: {imports:?}");
        assert!(imports["m/b"].is_empty(), "{imports:?}");
    }
    for text in [
        "// use super::b::B;",
        "const S: &str = \"super::b\";",
        "use b::B;",
        "use super::a::A;",
        "#[cfg(test)]\nmod tests {\n    use super::super::b::B;\n}",
    ] {
        let imports = planted(&[
            ("m/mod.rs", "mod a;\nmod b;"),
            ("m/a.rs", text),
            ("m/b.rs", ""),
        ]);
        assert!(imports["m/a"].is_empty(), "{text}: {imports:?}");
    }
    // A file that has a folder of the same name refers to the files in it.
    let imports = planted(&[
        ("m/mod.rs", ""),
        ("m/a.rs", "mod d;\nuse d::D;"),
        ("m/a/d.rs", "use super::A;"),
    ]);
    assert_eq!(cycles(&imports).len(), 1, "{imports:?}");
}

#[test]
fn a_cycle_that_is_too_large_is_found() {
    let ring = |files: usize| {
        let names = ["a", "b", "c", "d", "e"];
        let file = |at: usize| {
            let path = format!("m/{}.rs", names[at]);
            (path, format!("use super::{}::X;", names[(at + 1) % files]))
        };
        let files: Vec<_> = (0..files).map(file).collect();
        let files: Vec<_> = files
            .iter()
            .map(|(path, text)| (&**path, &**text))
            .collect();
        planted(
            &[
                &[("m/mod.rs", ""), ("m/z.rs", "use super::a::X;")],
                &files[..],
            ]
            .concat(),
        )
    };
    assert_eq!(faults(&ring(3)), [""; 0]);
    for (files, says) in [(4, "m: 4 files"), (5, "m: 5 files")] {
        let faults = faults(&ring(files));
        assert!(faults.len() == 1 && faults[0].contains(says), "{faults:?}");
        assert!(!faults[0].contains("m/z"), "{faults:?}");
    }
}
