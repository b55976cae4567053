//! Fuzzes what a client may write: requests.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use tokio_doca::soft::fuzzing::Server;

static SERVER: LazyLock<Server> = LazyLock::new(Server::new);

fuzz_target!(
    init: tokio_doca_fuzz::seeds(&Server::seeds()),
    |input: &[u8]| SERVER.take(input)
);

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    tokio_doca_fuzz::mutate(data, size, max_size, seed, Server::repair)
});
