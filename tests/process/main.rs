//! Tests that need several processes or their own process: peers that live, are hostile, stop or
//! are killed, forks, and the examples.
//!
//! A test starts this program again in another role (`support::peer`), or an example that `cargo
//! test` has built.

/// The store of `examples/block_store`, and its client.
mod block_store {
    #[allow(dead_code, reason = "the program says the rest")]
    #[path = "../../../examples/block_store/client.rs"]
    mod client;
    #[allow(dead_code, reason = "the primary needs the rest")]
    #[path = "../../../examples/block_store/layout.rs"]
    mod layout;

    mod beside;
    mod chaos;
    mod commands;

    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Result<T, E = Error> = std::result::Result<T, E>;
}

mod channel;
mod environment;
mod exports;
mod forged;
mod fork;
mod host_dpu;
mod idle;
mod rdma;
mod rdma_ask;
mod refused;
mod resources;
mod rping;
mod runtime;
mod stale_blob;
mod stream;
mod streams;
mod sync_event;
mod tracing;

mod examples {
    mod copies;
    mod faults;
    mod file_to_rdma;
    mod host_dpu;
    mod kv_store;
    mod nbd_server;
    mod rc_pingpong;
    mod rdma;
    mod stream;
    mod sync_event;
    mod tiny_store;
}

mod hostile {
    mod beside_processes;
    mod beside_streams;
    pub(crate) mod bystander;
    mod channel;
    mod descriptors;
    mod dying_hosts;
    mod ends;
    mod exporter;
    pub(crate) mod handshakes;
    mod importer;
    mod meets;
    pub(crate) mod messengers;
    mod rdma;
    mod streams;
    mod texts;
}

mod neighbours {
    mod bombs;
    mod means;
    mod shares;
}

mod kills {
    mod chaos;
    mod exports;
    mod rdma;
}

/// The store of `examples/kv_store`, and its client.
mod kv_store {
    #[allow(dead_code, reason = "nothing is deleted")]
    #[path = "../../../examples/kv_store/client.rs"]
    mod client;
    #[path = "../../../examples/kv_store/memory.rs"]
    mod memory;
    #[path = "../../../examples/kv_store/store.rs"]
    mod store;
    #[allow(dead_code, reason = "the server says the rest")]
    #[path = "../../../examples/kv_store/wire.rs"]
    mod wire;

    mod beside;
    mod chaos;
    mod log;
    mod reads;
    pub(crate) mod service;

    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Result<T, E = Error> = std::result::Result<T, E>;
}
