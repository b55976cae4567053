//! Checks that links have a target: in the package, and in the chapters of the guide, which are
//! Markdown files and modules of the documentation at once.

use std::fs;
use std::path::{Path, PathBuf};

/// The files and folders of the package, as in `include` of its manifest.
const PACKAGE: [&str; 9] = [
    "src",
    "examples",
    "docs",
    "README.md",
    "DESIGN.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "LICENSE-APACHE",
    "LICENSE-MIT",
];

fn markdown(path: &Path, found: &mut Vec<PathBuf>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            markdown(&entry.unwrap().path(), found);
        }
    } else if path.extension().is_some_and(|it| it == "md") {
        found.push(path.to_owned());
    }
}

/// Returns the targets of a text's links and link definitions, each with true if it is a
/// definition.
fn targets(text: &str) -> Vec<(String, bool)> {
    let mut found = Vec::new();
    let mut fenced = false;
    for line in text.lines() {
        fenced ^= line.starts_with("```");
        if fenced {
            continue;
        }
        if let Some((label, target)) = line.split_once("]: ")
            && label.starts_with('[')
        {
            found.push((target.to_owned(), true));
        }
        for part in line.split("](").skip(1) {
            let target = part.split([')', ' ']).next().unwrap_or_default();
            found.push((target.to_owned(), false));
        }
    }
    // A link that is broken over two lines has its target on the second line. Only targets inside
    // the project are checked.
    found.retain(|(target, _)| !target.contains("://") && !target.starts_with('#'));
    found
}

/// Returns the links of a file whose target is not in the package.
fn lost(file: &Path, text: &str) -> Vec<String> {
    let (root, folder) = (crate::root(), file.parent().unwrap());
    let is_there = |target: &str| {
        let path = folder.join(target.split('#').next().unwrap_or_default());
        let Ok(path) = path.canonicalize() else {
            return false;
        };
        // A folder with a manifest is a package of its own.
        let inner = path.ancestors().take_while(|folder| **folder != *root);
        let is_own = !inner
            .into_iter()
            .any(|folder| folder.join("Cargo.toml").exists());
        is_own && PACKAGE.iter().any(|part| path.starts_with(root.join(part)))
    };
    let targets = targets(text).into_iter();
    let lost = targets.filter(|(target, _)| !is_there(target));
    let name = file.strip_prefix(&root).unwrap().display().to_string();
    lost.map(|(target, _)| format!("{name}: {target}"))
        .collect()
}

#[test]
fn every_link_leads_to_a_file_of_the_package() {
    let mut files = Vec::new();
    for part in PACKAGE {
        let path = crate::root().join(part);
        assert!(
            path.exists(),
            "{part} is in the package, and does not exist"
        );
        markdown(&path, &mut files);
    }
    // The links of this file are Rust paths.
    files.retain(|file| !file.ends_with("src/guide/links.md"));
    let manifest = fs::read_to_string(crate::root().join("Cargo.toml")).unwrap();
    let include = manifest.split("\ninclude = ").nth(1).unwrap();
    let include = &include[..include.find(']').unwrap()];
    assert_eq!(
        include.matches('"').count(),
        2 * (PACKAGE.len() - 1),
        "{include}"
    );
    let lost: Vec<String> = files
        .iter()
        .flat_map(|file| lost(file, &fs::read_to_string(file).unwrap()))
        .collect();
    assert!(lost.is_empty(), "{}", lost.join("\n"));
    assert!(files.len() > 40, "only {} files were found", files.len());
}

/// Returns a message for each faulty link of a chapter, given the link definitions that come before
/// the chapter in the documentation.
fn faults(name: &str, text: &str, defined: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for (target, is_definition) in targets(text) {
        let is_known = text
            .lines()
            .filter_map(|line| line.split_once(&format!("]: {target}")))
            .any(|(label, rest)| {
                let leads = |to: &str| defined.contains(&format!("{label}]: {to}"));
                rest.is_empty() && (leads("crate::") || leads("data:"))
            });
        if !is_definition {
            faults.push(format!("{name}: {target}: a chapter links by definitions"));
        } else if !is_known {
            faults.push(format!("{name}: {target} is not in src/guide/links.md"));
        }
    }
    faults
}

#[test]
fn the_links_of_a_chapter_are_defined_for_the_documentation_as_well() {
    let guide = fs::read_to_string(crate::root().join("src/guide/mod.rs")).unwrap();
    let defined = ["links.md", "pictures.md"]
        .map(|name| fs::read_to_string(crate::root().join("src/guide").join(name)).unwrap());
    let chapters: Vec<&str> = guide
        .split('"')
        .filter(|it| it.ends_with(".md") && !["links.md", "pictures.md"].contains(it))
        .collect();
    assert!(chapters.len() > 12, "{chapters:?}");
    let faults: Vec<String> = chapters
        .iter()
        .flat_map(|name| {
            let path = crate::root()
                .join("docs")
                .join(name.trim_start_matches("../../docs/"));
            faults(name, &fs::read_to_string(path).unwrap(), &defined.concat())
        })
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_planted_link_is_found() {
    let file = crate::root().join("docs/planted.md");
    for (text, is_lost) in [
        ("[a](guide/copies.md)", false),
        ("[a](https://docs.rs) [b](#b)", false),
        ("[a](nothing.md)", true),
        ("[a](../CONTRIBUTING.md)", true),
        ("[a](../examples/services)", true),
        ("[a]: ../tests", true),
        ("```\n[a](nothing.md)\n```", false),
    ] {
        assert_eq!(!lost(&file, text).is_empty(), is_lost, "{text}");
    }
    let defined = "[copies]: crate::guide::copies\n";
    for (text, is_fault) in [
        ("[copies]\n\n[copies]: copies.md", false),
        ("[wire]\n\n[wire]: ../wire.md", true),
        ("[a](copies.md)", true),
    ] {
        assert_eq!(
            !faults("planted", text, defined).is_empty(),
            is_fault,
            "{text}"
        );
    }
}
