//! What an exporter may write: blobs and answers.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use tokio_doca::soft::fuzzing::Importer;

static IMPORTER: LazyLock<Importer> = LazyLock::new(Importer::new);

fuzz_target!(
    init: tokio_doca_fuzz::seeds(&Importer::seeds()),
    |input: &[u8]| IMPORTER.take(input)
);

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    tokio_doca_fuzz::mutate(data, size, max_size, seed, Importer::repair)
});
