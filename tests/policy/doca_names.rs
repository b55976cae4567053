//! Checks docs/guide/doca.md: it has one row for each function of DOCA. The items that a row names
//! exist, each DOCA name in a row with an item is a doc alias, and each doc alias is in a row.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::calls::{ROOTS, product, words};
use super::layering::sources;

/// The functions of DOCA 2.2, one per line, in the order of its headers.
const FUNCTIONS: &str = include_str!("doca_functions.txt");

/// Returns the rows of all tables of a page, each as a list of cells.
fn rows(page: &str) -> Vec<Vec<&str>> {
    let (mut found, mut in_body) = (Vec::new(), false);
    for line in page.lines() {
        let Some(row) = line.strip_prefix('|') else {
            in_body = false;
            continue;
        };
        if row.starts_with("---") {
            in_body = true;
        } else if in_body {
            let row = row.trim_end().trim_end_matches('|');
            found.push(row.split('|').map(str::trim).collect());
        }
    }
    found
}

/// Returns the texts between backticks.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Returns the DOCA names in a cell.
fn names(cell: &str) -> impl Iterator<Item = &str> {
    quoted(cell).filter(|it| it.starts_with("doca_") || it.starts_with("DOCA_"))
}

/// Returns the items of the crate in a cell: `Type` and `Type::member`.
fn items(cell: &str) -> impl Iterator<Item = &str> {
    let is_path = |it: &str| {
        it.starts_with(|c: char| c.is_ascii_uppercase())
            && it
                .split("::")
                .all(|part| words(part).eq([part]) && !part.is_empty())
    };
    quoted(cell).filter(move |it| is_path(it) && !it.starts_with("DOCA_"))
}

/// Returns the names in `#[doc(alias = "..")]` attributes.
fn aliases(files: &[(String, String)]) -> BTreeSet<&str> {
    let lines = files.iter().flat_map(|(_, code)| code.lines());
    lines
        .filter_map(|line| line.trim_start().strip_prefix("#[doc(alias = \""))
        .filter_map(|rest| rest.split('"').next())
        .collect()
}

/// Returns the types that a user can name.
fn types(files: &[(String, String)]) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    for (_, code) in files
        .iter()
        .filter(|(path, _)| ROOTS.contains(&path.as_str()))
    {
        for (at, _) in code.match_indices("pub use ") {
            found.extend(words(&code[at..][..code[at..].find(';').unwrap_or(0)]));
        }
        found.extend(code.lines().filter_map(declared).map(|(name, _)| name));
    }
    found
}

/// Returns the public type that a line declares, and true if its members are public without `pub`.
fn declared(line: &str) -> Option<(&str, bool)> {
    let rest = line.trim_start().strip_prefix("pub ")?;
    let (word, rest) = rest.split_once(' ')?;
    let is_open = match word {
        "struct" => false,
        "enum" | "trait" => true,
        _ => return None,
    };
    Some((words(rest).next()?, is_open))
}

/// Returns the type whose `impl` begins on this line, and true if it is the impl of a trait.
fn implemented(line: &str) -> Option<(&str, bool)> {
    let line = line.trim_start();
    let rest = line.strip_prefix("unsafe ").unwrap_or(line);
    let rest = rest.strip_prefix("impl")?;
    let mut depth = 0;
    let begins = rest.find(|c: char| {
        depth += i32::from(c == '<') - i32::from(c == '>');
        depth == 0 && c == ' '
    })?;
    let rest = &rest[begins..];
    match rest.split_once(" for ") {
        Some((_, of)) => Some((words(of).next()?, true)),
        None => Some((words(rest).next()?, false)),
    }
}

/// Returns the member that a line declares: a function, a constant, a field or a variant.
fn member(line: &str, is_open: bool) -> Option<&str> {
    let indent = line.len() - line.trim_start().len();
    let line = line.trim_start();
    let (is_public, rest) = match line.strip_prefix("pub ") {
        Some(rest) => (true, rest),
        None => (false, line),
    };
    if let Some((before, after)) = rest.split_once("fn ")
        && before
            .split_whitespace()
            .all(|word| ["const", "async", "unsafe"].contains(&word))
    {
        let name = words(after).next()?;
        // In the list of a macro that makes methods, a space follows the name.
        let is_listed = after[name.len()..].starts_with(' ');
        return (is_public || is_open || is_listed).then_some(name);
    }
    if let Some(after) = rest.strip_prefix("const ") {
        // A flag in `bitflags!` has no `pub`.
        let is_flag = indent == 8;
        return words(after)
            .next()
            .filter(|_| is_public || is_open || is_flag);
    }
    let name = words(rest).next().filter(|name| rest.starts_with(name))?;
    let after = &rest[name.len()..];
    let is_field = is_public && after.starts_with(':');
    let is_variant = is_open
        && indent == 4
        && name.starts_with(|c: char| c.is_ascii_uppercase())
        && [",", "(", " {", " ="]
            .iter()
            .any(|it| after.starts_with(it));
    (is_field || is_variant).then_some(name)
}

/// Returns the items that a user can name: `Type` and `Type::member`.
fn public(files: &[(String, String)]) -> BTreeSet<String> {
    let types = types(files);
    let mut found: BTreeSet<String> = types.iter().map(|&name| name.to_owned()).collect();
    for (_, code) in files {
        let (mut of, mut is_open) = ("", false);
        for line in code.lines() {
            if let Some(begun) = declared(line).or_else(|| implemented(line)) {
                (of, is_open) = begun;
            } else if !line.starts_with(' ') && line.ends_with("! {") {
                // This line opens the list of a macro that declares members of the type.
                is_open = true;
            } else if types.contains(of)
                && let Some(name) = member(line, is_open)
            {
                found.insert(format!("{of}::{name}"));
            }
        }
    }
    found
}

/// Returns a message for each violation of a rule by the page.
fn faults(functions: &[&str], page: &str, files: &[(String, String)]) -> Vec<String> {
    let mut faults = Vec::new();
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    let (public, aliases) = (public(files), aliases(files));
    let is_ours = |name: &&&str| name.starts_with("doca_") || name.starts_with("DOCA_");
    let mut unnamed: BTreeSet<&str> = aliases.iter().filter(is_ours).copied().collect();
    for row in rows(page) {
        let &[then, later, here] = &row[..] else {
            faults.push(format!("{row:?}: not three cells"));
            continue;
        };
        if row.iter().any(|cell| cell.is_empty()) || here == "-" {
            faults.push(format!("{row:?}: an empty cell"));
        }
        names(then).for_each(|name| *places.entry(name).or_default() += 1);
        for cell in [then, later, here] {
            names(cell).for_each(|name| _ = unnamed.remove(name));
        }
        let unknown = items(here).filter(|&it| !public.contains(it));
        faults.extend(unknown.map(|it| format!("{then}: there is no {it}")));
        if here.starts_with("none:") {
            continue;
        }
        if items(here).next().is_none() {
            faults.push(format!("{then}: no item, and no \"none:\" with a reason"));
        }
        let both = names(then).chain(names(later));
        let unfound = both.filter(|name| !aliases.contains(name));
        faults.extend(unfound.map(|name| format!("{name}: no item has this doc alias")));
    }
    let unnamed = unnamed.iter();
    faults.extend(unnamed.map(|name| format!("{name} is a doc alias, and has no row")));
    let mut known = BTreeSet::new();
    for function in functions {
        if !known.insert(function) {
            faults.push(format!("{function} is listed twice"));
        }
        match places.get(function) {
            Some(1) => {}
            None => faults.push(format!("{function} has no row")),
            Some(count) => faults.push(format!("{function} has {count} rows")),
        }
    }
    faults
}

#[test]
fn each_function_of_doca_has_a_row() {
    let path = crate::root().join("docs/guide/doca.md");
    let page = fs::read_to_string(path).unwrap();
    let sources = sources();
    let files: Vec<_> = sources
        .iter()
        .map(|it| (it.path.clone(), product(it)))
        .collect();
    let functions: Vec<&str> = FUNCTIONS.lines().collect();
    assert!(functions.len() > 200, "all are listed: {}", functions.len());
    let faults = faults(&functions, &page, &files);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_name_without_a_row_an_item_or_an_alias_is_found() {
    let root = "pub use mem::{Buf, Mode, Access};\n";
    let code = "pub struct Buf(u8);\nimpl Clone for Buf {\n    fn clone(&self) -> Buf {\n    }\n}\n\
                impl<T: Into<u8>> Buf {\n    #[doc(alias = \"doca_a\")]\n    pub const fn len(&self) {\n\
                \x20       hidden: 1,\n    }\n    fn private(&self) {}\n    operations! {\n        fn copy [S] -> u8 {}\n    }\n}\n\
                pub enum Mode {\n    Busy,\n}\nbitflags! {\n    pub struct Access: u32 {\n        const READ = 1;\n    }\n}\n\
                pub struct Secret {\n    pub field: u8,\n}\n";
    let files = [("lib.rs", root), ("mem/a.rs", code)].map(|(a, b)| (a.to_owned(), b.to_owned()));
    let public = public(&files);
    for item in [
        "Buf",
        "Buf::clone",
        "Buf::len",
        "Buf::copy",
        "Mode::Busy",
        "Access::READ",
    ] {
        assert!(public.contains(item), "{item}: {public:?}");
    }
    for item in ["Buf::private", "Buf::hidden", "Secret", "Secret::field"] {
        assert!(!public.contains(item), "{item}: {public:?}");
    }
    let found = |rows: &str| {
        let page = format!("Words.\n\n| DOCA 2.2 | later | here |\n|---|---|---|\n{rows}\n");
        faults(&["doca_a"], &page, &files)
    };
    let good = "| `doca_a` | the same | `Buf::len`, in bytes |";
    assert_eq!(found(good), [""; 0]);
    assert_eq!(
        found(&format!("{good}\n| `doca_b` | - | none: a reason |")),
        [""; 0]
    );
    for (rows, fault) in [
        ("", "doca_a has no row"),
        ("", "doca_a is a doc alias"),
        (&*format!("{good}\n{good}"), "doca_a has 2 rows"),
        ("| `doca_a` | `Buf::len` |", "not three cells"),
        ("| `doca_a` | the same | |", "an empty cell"),
        ("| `doca_a` | the same | somewhere |", "no item"),
        (
            "| `doca_a` | the same | `Buf::gone` |",
            "there is no Buf::gone",
        ),
        (
            "| `doca_a` | - | none: see `Secret` |",
            "there is no Secret",
        ),
        ("| `doca_a` | `doca_c` | `Buf::len` |", "doca_c: no item"),
    ] {
        let found = found(rows);
        assert!(
            found.iter().any(|it| it.contains(fault)),
            "{rows}: {found:?}"
        );
    }
    let twice = faults(&["doca_a", "doca_a"], &format!("|---|\n{good}\n"), &files);
    assert_eq!(twice, ["doca_a is listed twice"]);
}
