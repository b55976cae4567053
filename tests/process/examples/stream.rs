//! The echo on a stream, as a program.

use support::programs::*;

#[test]
fn the_echo_of_a_stream_answers_its_line() {
    let output = run(example("stream_echo").args(["127.0.0.1:0", "a line"]));
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!((output.status.code(), out, err), (Some(0), "a line\n", ""));
}
