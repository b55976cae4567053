//! Fuzzes what a server may write: tickets and replies.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use tokio_doca::soft::fuzzing::Client;

static CLIENT: LazyLock<Client> = LazyLock::new(Client::new);

fuzz_target!(
    init: tokio_doca_fuzz::seeds(&Client::seeds()),
    |input: &[u8]| CLIENT.take(input)
);

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    tokio_doca_fuzz::mutate(data, size, max_size, seed, Client::repair)
});
