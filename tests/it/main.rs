//! Behavior of the public API, by subject; all tests run in one process, at the same time.
//!
//! `cargo test --test it rdma::` runs a subject. Tests that need their own process are in
//! `tests/process`.

mod accel;
mod channel;
mod channel_flush;
mod contract;
mod empty;
mod error;
mod misuse;
mod sha;
mod sync_event;
mod sync_event_line;
mod sync_event_naps;

mod crc {
    mod graph;
    mod jobs;
    mod values;

    use support::Bench;
    use tokio_doca::crc::{Crc, CrcOptions};

    fn attach(bench: &Bench) -> Crc {
        Crc::builder(&bench.device).attach(&bench.workq).unwrap()
    }

    fn seeded(seed: u32) -> CrcOptions {
        CrcOptions::new().seed(seed)
    }
}

mod dma {
    mod engine_cpus;
    mod fault_behind;
    mod faults;
    mod large;
    mod limits;
    mod operands;
}

mod graph {
    mod graphs;
    mod rdma;
    mod remote;
    mod sha;
    mod sync_event;
}

mod mem {
    mod array;
    mod bufs;
    mod bytes;
    mod chains;
    mod export;
    mod import;
    mod imported_lists;
    mod inventory;
    mod leases;
    mod mmap;
    mod pool;
    mod shared;
}

mod rdma {
    mod close;
    mod cm;
    mod connect;
    mod crowd;
    mod errors;
    mod forgotten;
    mod one_sided;
    mod recv;
    mod recv_pool;
    mod recv_races;
    mod send_sink;
    mod stats;
    mod unposted;
    mod watch;
}

mod stream {
    mod addresses;
    mod begun;
    mod drain;
    mod ends;
    mod exchange;
    mod halves;
    mod laws;
    mod liars;
    mod limits;
    mod messages;
    mod slots;
    mod stats;
    mod storm;
    mod tcp;
}

mod topology {
    mod cards;
    mod devices;
}

mod workq {
    mod backpressure;
    mod block_on;
    mod cancel;
    mod contexts;
    mod gate;
    mod hybrid;
    mod modes;
    mod order;
    mod own_loop;
    mod poll_thread;
    mod posted;
    mod refusals;
    mod released;
    mod runtimes;
    mod shutdown;
    mod together;
    mod wakers;
}
