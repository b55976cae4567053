//! Memory as a device has it: its permissions, its registration, its exports, and the one routine
//! that copies what others may write. It imports no other module of `device`.

mod access;
mod memory;
mod share;
mod volatile;

pub use access::Access;
pub use memory::{Region, Registrar, Registration, RegistrationUse};
pub use share::{Audience, Backing, ExportRequest, Exported, ImportOrigin, Imported, LeakFlag};
pub(crate) use volatile::volatile_copy;
