//! Fuzzes what a peer may write into a channel, and when.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tokio_doca::soft::fuzzing::Scribbler;

static SCRIBBLER: LazyLock<Scribbler> = LazyLock::new(Scribbler::new);

fuzz_target!(
    init: tokio_doca_fuzz::seeds(&Scribbler::seeds()),
    |input: &[u8]| SCRIBBLER.take(input)
);
