//! What a user awaits.

mod dma;

pub use dma::{Dma, DmaBuilder, DmaCopy};
