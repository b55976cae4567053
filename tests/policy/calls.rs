//! Checks that the call that an error names is a public function, as a user writes it:
//! `RemoteMmap::from_export`.
//!
//! A call is given to `Error::new`, `Error::os` and `with_call`: as a literal, as a constant, or
//! by a parameter or field named `op` or `call`. The test follows each of them to its literals.

use std::collections::{BTreeMap, BTreeSet};

use super::layering::{Source, sources, without_tests};

/// The files whose `pub use` make names public.
pub(super) const ROOTS: [&str; 10] = [
    "lib.rs",
    "channel/mod.rs",
    "device/mod.rs",
    "error.rs",
    "mem/mod.rs",
    "ops/crc/mod.rs",
    "ops/graph/mod.rs",
    "provider/soft/mod.rs",
    "provider/verbs/mod.rs",
    "stream/mod.rs",
];

/// Returns the code of a file without tests and comments, but with its strings.
pub(super) fn product(source: &Source) -> String {
    let lines = without_tests(&source.text).lines();
    let code = lines.filter(|line| !line.trim_start().starts_with("//"));
    code.flat_map(|line| [line, "\n"]).collect()
}

pub(super) fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
}

/// Returns the name of the function whose declaration begins on this line.
fn function(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    let known = ["pub", "const", "async", "unsafe"];
    let declares = before.split_whitespace().all(|word| known.contains(&word));
    declares.then(|| words(after).next()).flatten()
}

/// Returns all functions that a user can name: `Type::function`, `function` and `soft::function`.
fn public(files: &[(String, String)]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (path, code) in files
        .iter()
        .filter(|(path, _)| ROOTS.contains(&path.as_str()))
    {
        for (at, _) in code.match_indices("pub use ") {
            let list = &code[at..][..code[at..].find(';').unwrap_or(0)];
            names.extend(words(list).map(|name| (name, path.as_str())));
        }
    }
    let is_public = |name: &str| names.iter().any(|(known, _)| *known == name);
    let mut found = BTreeSet::new();
    for (_, code) in files {
        let mut lines = code.lines();
        while let Some(line) = lines.next() {
            if line.starts_with("pub ")
                && let Some(name) = function(line)
            {
                for (_, path) in names.iter().filter(|(known, _)| *known == name) {
                    let folder = path.rsplit('/').nth(1);
                    let within = folder.map_or_else(String::new, |it| format!("{it}::"));
                    found.insert(format!("{within}{name}"));
                }
            }
            if !line.starts_with("impl") && !line.starts_with("unsafe impl") {
                continue;
            }
            let mut head = line.to_owned();
            while !head.ends_with('{') && !head.ends_with('}') {
                head.push_str(lines.next().expect("an impl has a body"));
            }
            let (is_trait, of) = match head.split_once(" for ") {
                Some((_, of)) => (true, of),
                None => (false, head.split_once(' ').expect("impl has a type").1),
            };
            let Some(name) = words(of).next().filter(|name| is_public(name)) else {
                continue;
            };
            if head.ends_with('}') {
                continue;
            }
            for line in lines.by_ref().take_while(|line| *line != "}") {
                let own = line.strip_prefix("    ").filter(|it| !it.starts_with(' '));
                let own = own.filter(|it| is_trait || it.starts_with("pub "));
                if let Some(function) = own.and_then(function) {
                    found.insert(format!("{name}::{function}"));
                }
            }
        }
    }
    found
}

/// Returns the arguments of a call. `text` begins just after the opening parenthesis.
fn arguments(text: &str) -> Vec<&str> {
    let (mut depth, mut quoted, mut escaped) = (0, false, false);
    let (mut from, mut found) = (0, Vec::new());
    for (at, c) in text.char_indices() {
        if quoted {
            quoted = c != '"' || escaped;
            escaped = c == '\\' && !escaped;
            continue;
        }
        match c {
            '"' => quoted = true,
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth == 0 => {
                found.push(text[from..at].trim());
                break;
            }
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                found.push(text[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    found
}

/// Returns every call or declaration of `name`: the code before it, and its arguments.
fn uses<'a>(code: &'a str, name: &str) -> Vec<(&'a str, Vec<&'a str>)> {
    let open = format!("{name}(");
    code.match_indices(&open)
        .map(|(at, _)| (&code[..at], arguments(&code[at + open.len()..])))
        .filter(|(before, _)| !before.ends_with(|c: char| c.is_alphanumeric() || c == '_'))
        .collect()
}

/// Returns the functions that have a parameter for the call's name, with the index of that
/// argument.
fn takers(code: &str) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for (at, _) in code.match_indices("fn ") {
        let rest = &code[at + 3..];
        let Some(open) = rest.find('(') else { continue };
        let parameters = arguments(&rest[open + 1..]);
        let names = [
            "op: &'static str",
            "call: &'static str",
            "op: impl Into<Option<",
        ];
        let place = parameters
            .iter()
            .position(|it| names.iter().any(|name| it.starts_with(name)));
        let has_self = parameters
            .first()
            .is_some_and(|it| words(it).last() == Some("self"));
        if let (Some(place), Some(name)) = (place, words(rest).next()) {
            found.insert(name.to_owned(), place - usize::from(has_self));
        }
    }
    found
}

/// Returns a message for each named call that is not a public function, and the number of calls
/// that were found.
fn wrong(files: &[(String, String)]) -> (Vec<String>, usize) {
    let public = public(files);
    let mut constants: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (_, code) in files {
        for line in code.lines().filter(|line| line.contains("const ")) {
            let (_, rest) = line.split_once("const ").expect("it is there");
            if let Some((name, value)) = rest.split_once("str = \"") {
                let value = value.split('"').next().unwrap_or_default();
                let name = words(name).next().unwrap_or_default();
                constants.entry(name).or_default().push(value);
            }
        }
    }
    let (mut wrong, mut count) = (Vec::new(), 0);
    let mut check = |path: &str, given: &str, may_be_handed_on: bool| {
        let shouted = |it: &str| !it.contains(|c: char| c.is_lowercase());
        let last = given.rsplit([':', '.']).next().unwrap_or_default();
        let literals = match given {
            "None" => return,
            _ if given.starts_with('"') => vec![given.trim_matches('"')],
            _ if shouted(last) => constants.get(last).cloned().unwrap_or(vec![given]),
            _ if may_be_handed_on && ["op", "call"].contains(&last) => return,
            _ => vec![given],
        };
        count += 1;
        let unknown = literals.into_iter().filter(|it| !public.contains(*it));
        wrong.extend(unknown.map(|it| format!("{path}: {it}")));
    };
    for (path, code) in files {
        // The crate names the call for a provider, so that a provider must not pass a name on.
        let hands_on = !path.starts_with("provider/");
        for (name, place) in [("Error::new", 1), ("Error::os", 0), (".with_call", 0)] {
            // Remove the dot, which is not part of a word.
            let name = name.trim_start_matches('.');
            for (_, given) in uses(code, name) {
                if !given[place].contains(": ") {
                    check(path, given[place], hands_on);
                }
            }
        }
        if hands_on {
            let folder = path.split('/').next();
            let near = files
                .iter()
                .filter(|(it, _)| it.split('/').next() == folder);
            for (name, place) in takers(code) {
                for (path, code) in near.clone() {
                    for (before, given) in uses(code, &name) {
                        let is_call = !before.ends_with("fn ") && !before.ends_with("Error::");
                        if let Some(given) = given.get(place).filter(|_| is_call)
                            && given.starts_with('"')
                        {
                            check(path, given, true);
                        }
                    }
                }
            }
        }
        for (at, name) in code
            .match_indices(" call: \"")
            .chain(code.match_indices(" op: \""))
        {
            let given = &code[at + name.len() - 1..];
            let end = given[1..].find('"').map_or(given.len(), |end| end + 2);
            check(path, &given[..end], false);
        }
    }
    (wrong, count)
}

fn files() -> Vec<(String, String)> {
    let mut sources = sources();
    // Leave out models, and the file that defines the three functions.
    sources.retain(|source| !source.path.contains("loom") && source.path != "error.rs");
    let product = |source: &Source| (source.path.clone(), product(source));
    sources.iter().map(product).collect()
}

#[test]
fn errors_name_public_calls() {
    let (wrong, count) = wrong(&files());
    assert!(wrong.is_empty(), "no public calls:\n{}", wrong.join("\n"));
    assert!(count > 100, "only {count} calls were found");
}

#[test]
fn a_call_that_nobody_can_write_is_found_wherever_it_is_named() {
    let of = |path: &str, text: &str| {
        let mut files = files();
        files.push((path.to_owned(), text.to_owned()));
        wrong(&files).0
    };
    for text in [
        "Error::new(kind, \"import\", text)",
        "Error::new(\n    kind,\n    \"Device::nothing\",\n    f(1, (2, \",\")),\n)",
        "Error::os(\"verbs\", what, error)",
        "error.with_call(\"Import::new\")",
        "const NOWHERE: &str = \"attach\";\nError::os(NOWHERE, what, error)",
        "fn made(op: &'static str) {}\nmade(\"made\")",
        "fn made(&self, one: u8, call: &'static str) {}\nself.made(1, \"job\")",
        "Kind { call: \"Rdma::connects\" }",
        "Error::new(kind, name, text)",
    ] {
        assert_eq!(
            of("mem/new.rs", text).len(),
            1,
            "{text}: {:?}",
            of("mem/new.rs", text)
        );
    }
    let handed_on = "Error::new(kind, self.op, text)";
    assert_eq!(of("mem/new.rs", handed_on), [""; 0]);
    assert_eq!(
        of("provider/new.rs", handed_on),
        ["provider/new.rs: self.op"]
    );
    for name in [
        "Device::open",
        "soft::set_socket_path",
        "add_provider",
        "Limits::from_str",
    ] {
        assert!(public(&files()).contains(name), "{name}");
    }
}
