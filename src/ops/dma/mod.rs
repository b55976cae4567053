//! Memory copies by a device.

mod context;
mod node;

use context::CopyRequest;
pub use context::{Dma, DmaBuilder, DmaCopy};
pub use node::CopyNode;
