//! The guide: the Markdown files of `docs` as modules.
#![doc = include_str!("links.md")]
#![doc = include_str!("../../docs/guide/README.md")]

/// The chapters are the Markdown files of `docs`. There links lead to files; here `links.md` comes
/// first, and of two definitions of a link CommonMark takes the first one.
macro_rules! chapters {
    ($($name:ident: $file:literal,)*) => {$(
        #[doc = include_str!("links.md")]
        #[doc = include_str!(concat!("../../docs/", $file))]
        pub mod $name {}
    )*};
}

chapters! {
    copies: "guide/copies.md",
    rdma: "guide/rdma.md",
    memory: "guide/memory.md",
    streams: "guide/streams.md",
    modes: "guide/modes.md",
    adapters: "guide/adapters.md",
    testing: "guide/testing.md",
    mistakes: "guide/mistakes.md",
    cancellation: "guide/cancellation.md",
    guarantees: "guide/guarantees.md",
    security: "../SECURITY.md",
    tracing: "guide/tracing.md",
    host_and_dpu: "guide/host_and_dpu.md",
    doca: "guide/doca.md",
    what_works: "what-works.md",
    benchmarks: "benchmarks.md",
    wire: "wire.md",
}
