//! Fuzzes what endpoints and sync events may send as they connect.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tokio_doca::soft::fuzzing::Payloads;

fuzz_target!(
    init: tokio_doca_fuzz::seeds(&Payloads::seeds()),
    |input: &[u8]| Payloads::take(input)
);
