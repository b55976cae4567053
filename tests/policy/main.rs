//! Rules for the sources and the documents: layers, import cycles, what has `Deref`, long
//! functions, the ledger of unsafe code, auto traits, the table of what works where, the calls that
//! errors name, the names of DOCA, how the log is written, where links lead, the examples of types
//! that a user holds, and how much product code there is.

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

/// The project's folder.
fn root() -> std::path::PathBuf {
    let root = support::programs::root();
    root.canonicalize().expect("it is there")
}
