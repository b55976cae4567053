//! What a guest may write: knocks.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use tokio_doca::soft::fuzzing::Host;

static HOST: LazyLock<Host> = LazyLock::new(Host::new);

fuzz_target!(
    init: tokio_doca_fuzz::seeds(&Host::seeds()),
    |input: &[u8]| HOST.take(input)
);

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    tokio_doca_fuzz::mutate(data, size, max_size, seed, Host::repair)
});
