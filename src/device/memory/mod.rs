//! Memory as a device sees it: access flags, registration and exports, and the one routine that
//! copies memory which other parties may write. This module imports no other module of `device`.

mod access;
mod memory;
mod share;
mod volatile;

pub use access::Access;
pub use memory::{Region, Registrar, Registration, RegistrationUse};
pub use share::{Audience, Backing, ExportRequest, Exported, ImportOrigin, Imported, LeakFlag};
pub(crate) use volatile::volatile_copy;
