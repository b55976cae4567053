//! Checks that the guide shows the files of `examples/tiny_store`, and that its pictures are
//! embedded, since docs.rs serves no files. `TOKIO_DOCA_WRITE_GUIDE=1 cargo test --test policy
//! guide` rewrites both.

use std::fs;

/// The names of the documentation's pictures in `docs`.
const PICTURES: [&str; 4] = ["credits", "job", "leases", "model"];

/// Checks that a file has the text `right`. With `TOKIO_DOCA_WRITE_GUIDE`, writes that text first.
fn is_up_to_date(path: &str, right: &str) {
    let file = crate::root().join(path);
    if std::env::var_os("TOKIO_DOCA_WRITE_GUIDE").is_some() {
        fs::write(&file, right).unwrap();
    }
    let text = fs::read_to_string(&file).unwrap();
    let other = text
        .lines()
        .zip(right.lines())
        .find(|(is, must)| is != must);
    assert!(
        text == right,
        "{path} is out of date (TOKIO_DOCA_WRITE_GUIDE=1 writes it): {other:?}"
    );
}

/// Returns the lines of a file of the example store, without its header.
fn shown(name: &str) -> Vec<String> {
    let path = crate::root().join(format!("examples/tiny_store/{name}"));
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines().map(str::to_owned);
    let is_header = |line: &String| line.starts_with("//!") || line.is_empty();
    lines.skip_while(is_header).collect()
}

/// Returns a chapter with each block under the name of a file replaced by the lines of that file,
/// and the number of such blocks. Hidden lines stay at the start of a block, and one is put before
/// each `mod`.
fn chapter(text: &str) -> (String, usize) {
    let (mut out, mut files) = (Vec::new(), 0);
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        out.push(line.to_owned());
        let name = line
            .strip_prefix("`src/")
            .and_then(|line| line.strip_suffix('`'));
        let Some(name) = name else { continue };
        files += 1;
        out.extend(lines.by_ref().take(2).map(str::to_owned)); // empty, and the fence
        let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        let hidden = block
            .iter()
            .take_while(|line| line.starts_with("# ") && !line.ends_with(']'));
        out.extend(hidden.map(|line| (*line).to_owned()));
        for line in shown(name) {
            if let Some(module) = line.strip_prefix("mod ") {
                let file = module.trim_end_matches(';');
                out.push(format!(
                    "# #[path = \"../../examples/tiny_store/{file}.rs\"]"
                ));
            }
            out.push(line);
        }
        out.push("```".to_owned());
    }
    out.push(String::new());
    (out.join("\n"), files)
}

#[test]
fn the_guide_shows_each_file_of_the_store() {
    let mut files = 0;
    for name in ["copies", "rdma", "streams", "service"] {
        let path = format!("docs/guide/{name}.md");
        let text = fs::read_to_string(crate::root().join(&path)).unwrap();
        let (right, shown) = chapter(&text);
        is_up_to_date(&path, &right);
        files += shown;
    }
    let folder = fs::read_dir(crate::root().join("examples/tiny_store")).unwrap();
    assert_eq!(files, folder.count());
}

#[test]
fn the_documentation_has_its_pictures() {
    let mut right = String::new();
    for name in PICTURES {
        let path = crate::root().join(format!("docs/{name}.svg"));
        let svg = fs::read_to_string(path).unwrap();
        let lines = svg.lines().map(str::trim);
        let encoded: String = (lines.flat_map(|line| line.chars().chain([' '])))
            .map(|c| match c {
                'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '.' | '/' | ':' | '=' | ',' | ';' => {
                    c.to_string()
                }
                c => c
                    .to_string()
                    .bytes()
                    .map(|byte| format!("%{byte:02X}"))
                    .collect(),
            })
            .collect();
        right += &format!("[{name}_svg]: data:image/svg+xml,{encoded}\n");
    }
    right.push('\n');
    is_up_to_date("src/guide/pictures.md", &right);
}
