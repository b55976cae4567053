//! Bufs, parts of them and lists of them: how an application reaches their bytes.
//!
//! `guard` lends slices, `bytes` hands them on, `atomics` serves memory that others may write.
//! Of the other rooms of `mem` it imports `element`, `mmap` and `ranges`.

mod atomics;
mod bridge;
mod buf;
mod bytes;
mod chain;
mod extent;
mod guard;

pub use buf::{Buf, BufSlice};
pub use bytes::IntoBytesError;
pub use chain::{BufChain, Link};
pub(super) use chain::{ChainRead, ChainWrite};
pub(crate) use extent::Extent;
pub use guard::{BufData, BufDataMut};
