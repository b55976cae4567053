//! What a user awaits.

mod accel;
mod context;
mod dma;
mod op;

pub use accel::{Accel, AccelBuilder, AccelCall, AccelOp};
pub use dma::{Dma, DmaBuilder, DmaCopy};
