//! Checks rules for the sources and the documents: layers, import cycles, types with `Deref`, long
//! functions, the ledger of unsafe code, auto traits, the table of supported operations, the calls
//! that errors name, the names of DOCA, how the log is written, the targets of links, examples of
//! the types that a user holds, and the amount of product code.

mod auto_traits;
mod calls;
mod columns;
mod cycles;
mod deref;
mod doca_names;
mod examples;
mod functions;
mod guide;
mod layering;
mod leased;
mod ledger;
mod links;
mod logs;
mod weight;
mod what_works;
mod words;

/// Returns the project's folder.
fn root() -> std::path::PathBuf {
    let root = support::programs::root();
    root.canonicalize().expect("it is there")
}
