//! Rules for the sources and the documents: layers, import cycles, the ledger of unsafe code, auto traits,
//! and the table of what works where.

mod auto_traits;
mod cycles;
mod layering;
mod ledger;
mod what_works;
