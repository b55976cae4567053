//! Rules for the sources and the documents: layers, import cycles, what has `Deref`, long
//! functions, the ledger of unsafe code, auto traits, the table of what works where, and the calls
//! that errors name.

mod auto_traits;
mod calls;
mod columns;
mod cycles;
mod deref;
mod functions;
mod layering;
mod leased;
mod ledger;
mod what_works;
