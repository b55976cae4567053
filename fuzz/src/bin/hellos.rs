//! What endpoints may say as they meet: cards, questions and answers.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tokio_doca::soft::fuzzing::Hellos;

fuzz_target!(
    init: tokio_doca_fuzz::seeds(&Hellos::seeds()),
    |input: &[u8]| Hellos::take(input)
);
