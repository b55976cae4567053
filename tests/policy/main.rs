//! Rules for the sources and the documents: layers, import cycles, what has `Deref`, long
//! functions, the ledger of unsafe code, auto traits, the table of what works where, the calls that
//! errors name, and how the log is written.

mod auto_traits;
mod calls;
mod columns;
mod cycles;
mod deref;
mod functions;
mod layering;
mod leased;
mod ledger;
mod logs;
mod what_works;
