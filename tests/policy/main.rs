//! Rules for the sources and the documents: layers, the ledger of unsafe code, auto traits, and the table of what works
//! where.

mod auto_traits;
mod layering;
mod ledger;
mod what_works;
