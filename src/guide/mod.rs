//! The guide: the Markdown files of `docs` as modules.
//!
#![doc = include_str!("links.md")]
#![doc = include_str!("../../docs/guide/README.md")]

/// The chapters are the Markdown files of `docs`, whose links and pictures lead to files.
/// `links.md` and `pictures.md` come before each chapter, and define the same links as items of
/// this crate, and the same pictures as data URLs: of two definitions CommonMark takes the first
/// one.
macro_rules! chapters {
    ($($name:ident: $file:literal,)*) => {$(
        #[doc = include_str!("links.md")]
        #[doc = include_str!("pictures.md")]
        #[doc = include_str!(concat!("../../docs/", $file))]
        pub mod $name {}
    )*};
}

chapters! {
    copies: "guide/copies.md",
    cancellation: "guide/cancellation.md",
    modes: "guide/modes.md",
    rdma: "guide/rdma.md",
    streams: "guide/streams.md",
    service: "guide/service.md",
    testing: "guide/testing.md",
    memory: "guide/memory.md",
    adapters: "guide/adapters.md",
    mistakes: "guide/mistakes.md",
    guarantees: "guide/guarantees.md",
    security: "../SECURITY.md",
    tracing: "guide/tracing.md",
    host_and_dpu: "guide/host_and_dpu.md",
    doca: "guide/doca.md",
    provider: "guide/provider.md",
    what_works: "what-works.md",
    benchmarks: "benchmarks.md",
    wire: "wire.md",
}
