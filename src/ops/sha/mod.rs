//! Hashes by a device: whole messages, and messages in parts.

mod context;
mod request;
mod session;

pub use context::{Sha, ShaBuilder};
pub use request::ShaOp;
pub(super) use request::ShaRequest;
pub use session::ShaSession;
