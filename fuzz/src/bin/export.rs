//! What an importer may write: requests.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use tokio_doca::soft::fuzzing::Exporter;

static EXPORTER: LazyLock<Exporter> = LazyLock::new(Exporter::new);

fuzz_target!(
    init: tokio_doca_fuzz::seeds(&Exporter::seeds()),
    |input: &[u8]| EXPORTER.take(input)
);

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    tokio_doca_fuzz::mutate(data, size, max_size, seed, Exporter::repair)
});
