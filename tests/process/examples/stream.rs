//! Tests of the echo examples on streams, run as programs.

use support::programs::*;

#[test]
fn the_echo_of_a_stream_answers_its_line() {
    let output = run(example("stream_echo").args(["127.0.0.1:0", "a line"]));
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!((output.status.code(), out, err), (Some(0), "a line\n", ""));
}

/// A runtime accepts the streams; a poll thread or the runtime itself serves them.
#[test]
fn a_poll_thread_serves_what_a_runtime_has_accepted() {
    for (place, who) in [(&[][..], "a poll thread"), (&["runtime"], "the runtime")] {
        let output = run(example("pinned_echo").args(["8", "50"]).args(place));
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!((output.status.code(), err), (Some(0), ""), "{out}");
        let said = format!("8 streams, 400 answers by {who}: half within ");
        assert!(out.starts_with(&said), "{out}");
    }
}
