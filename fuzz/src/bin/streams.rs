//! Fuzzes what a peer of a stream may send: messages of the exchange that sets a stream up, and
//! frames.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tokio_doca::stream::fuzzing::Exchange;

fuzz_target!(
    init: tokio_doca_fuzz::seeds(&Exchange::seeds()),
    |input: &[u8]| Exchange::take(input)
);
