//! What a host may write: invitations and answers.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use tokio_doca::soft::fuzzing::Guest;

static GUEST: LazyLock<Guest> = LazyLock::new(Guest::new);

fuzz_target!(
    init: tokio_doca_fuzz::seeds(&Guest::seeds()),
    |input: &[u8]| GUEST.take(input)
);

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    tokio_doca_fuzz::mutate(data, size, max_size, seed, Guest::repair)
});
