//! What a user awaits.

mod dma;

pub use dma::{Copy, Dma, DmaBuilder};
