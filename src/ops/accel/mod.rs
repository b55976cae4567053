//! Jobs of a provider's own kinds.

mod context;
mod node;

use context::CallRequest;
pub use context::{Accel, AccelBuilder, AccelCall, AccelOp};
pub use node::{CallData, CallNode};
