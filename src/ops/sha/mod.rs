//! Hashes by a device: whole messages, and messages in parts.

mod context;
mod node;
mod request;
mod session;

pub use context::{Sha, ShaBuilder};
pub use node::HashNode;
pub use request::ShaOp;
use request::ShaRequest;
pub use session::ShaSession;
