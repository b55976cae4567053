//! Checks that only `mem` makes a `Leased`: a job with the leases of all memory that it names. Only
//! a `Leased` can be submitted, so no other part of the crate can pair a job with leases of other
//! memory, or change its length.
//!
//! The type is private to the crate, so a `compile_fail` example cannot name it. These rules check
//! that its fields and its constructor are private; the compiler does the rest.

use super::layering::{Source, sources, without_tests};

const HOME: &str = "mem/operand/leased.rs";

/// Returns the code of a file without tests and comments.
fn code(source: &Source) -> String {
    let lines = without_tests(&source.text).lines();
    lines
        .map(|line| line.split("//").next().unwrap_or_default())
        .flat_map(|line| [line, "\n"])
        .collect()
}

/// Returns the text from `head` to the closing brace of its body.
fn body<'a>(code: &'a str, head: &str) -> &'a str {
    let start = code.find(head).unwrap_or_else(|| panic!("no `{head}`"));
    let rest = &code[start..];
    &rest[..rest.find("\n}").expect("it ends")]
}

#[test]
fn mem_alone_makes_what_may_be_submitted() {
    let mut makers = 0;
    for source in sources() {
        let (path, code) = (&source.path, code(&source));
        // `Leased { ..` is a literal, except in the definition of the type.
        let literals = code
            .split("Leased {")
            .collect::<Vec<_>>()
            .windows(2)
            .filter(|pair| !pair[0].ends_with("struct "))
            .count();
        assert!(path == HOME || literals == 0, "{path} builds a Leased");
        assert!(
            path == HOME || !code.contains("Leased<") || !code.contains("> Leased<L, J> {"),
            "{path} adds methods to Leased"
        );
        if code.contains("Leased::new") {
            assert!(path == HOME, "{path} makes a Leased");
            makers += 1;
        }
    }
    assert!(
        makers > 0,
        "nobody makes a Leased: the rule looks for the wrong name"
    );
}

#[test]
fn a_leased_job_stays_as_it_was_made() {
    let source = sources().into_iter().find(|source| source.path == HOME);
    let code = code(&source.expect("the file is there"));
    let fields = body(&code, "struct Leased<L, J> {");
    assert!(!fields.contains("pub"), "others could reach:\n{fields}");
    let methods = body(&code, "impl<L, J> Leased<L, J> {");
    assert!(
        methods.contains("\n    unsafe fn new"),
        "others could make one"
    );
    // A borrowed job cannot be changed, and a job that was taken out cannot be submitted.
    assert!(!code.contains("&mut"), "others could change one");
}
