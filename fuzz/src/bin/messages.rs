//! Fuzzes what a peer of a Channel may send: frames in pieces of any size, and greetings.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tokio_doca::channel::fuzzing::Messages;

fuzz_target!(
    init: tokio_doca_fuzz::seeds(&Messages::seeds()),
    |input: &[u8]| Messages::take(input)
);
