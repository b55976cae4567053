//! Checks that events and spans of `tracing` are written within `sync::log` or `sync::log_later`.
//! These contain panics of the subscriber, which is code of the application.

use super::layering::{code, is_test, sources, without_tests};

const MACROS: [&str; 7] = [
    "error!(", "warn!(", "info!(", "debug!(", "trace!(", "span!(", "event!(",
];

/// Returns the contents of parentheses. `text` begins just after the opening one.
fn within(text: &str) -> &str {
    let mut depth = 1;
    let end = text.find(|c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        depth == 0
    });
    &text[..end.unwrap_or(text.len())]
}

/// Returns the number of events and spans that the code writes, and how many of them are within a
/// `log` call.
fn written(text: &str) -> (usize, usize) {
    let code = code(text);
    let code = without_tests(&code);
    let count = |code: &str| MACROS.iter().map(|it| code.matches(it).count()).sum();
    let logged = ["log(|| ", "log_later(move || "].iter().flat_map(|call| {
        let calls = code.match_indices(call);
        let calls = calls.filter(|(at, _)| !code[..*at].ends_with(|c: char| c.is_alphanumeric()));
        calls.map(|(at, _)| count(within(&code[at + call.find('(').expect("it calls") + 1..])))
    });
    (count(code), logged.sum())
}

#[test]
fn the_log_is_written_within_what_contains_a_panic() {
    let mut all = 0;
    for source in sources().iter().filter(|source| !is_test(&source.path)) {
        let (written, logged) = written(&source.text);
        assert_eq!(written, logged, "{}: use `log(|| ..)`", source.path);
        all += written;
    }
    assert!(all > 40, "only {all} were found: the rule looks for others");
}

#[test]
fn a_bare_event_or_span_is_found() {
    for text in [
        "tracing::error!(%errno, \"log(|| \");",
        "debug!(\"one\")",
        "log(|| debug!(one(1), \")\")); tracing::warn!(two);",
        "dialog(|| info!(one));",
        "let span = tracing::trace_span!(\"job\");",
        "log(|| ignored(token)); fn ignored(token: Token) { event!(token) }",
    ] {
        let (written, logged) = written(text);
        assert_eq!(written, logged + 1, "{text}");
    }
    for text in [
        "log(|| tracing::error!(%errno, \"text\"));",
        "log_later(move || tracing::error!(%errno, \"text\"));",
        "log(|| match one {\n    Ok(_) => debug!(\"a\"),\n    Err(_) => warn!(\"b\"),\n});",
        "// tracing::error!()",
        "#[cfg(test)]\nmod tests {\n    debug!(one);\n}",
    ] {
        let (written, logged) = written(text);
        assert_eq!(written, logged, "{text}");
    }
}
