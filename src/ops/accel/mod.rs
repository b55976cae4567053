//! Jobs whose kinds a provider defines, by opcode.

mod context;
mod node;

use context::CallRequest;
pub use context::{Accel, AccelBuilder, AccelCall, AccelOp};
pub use node::{CallData, CallNode};
