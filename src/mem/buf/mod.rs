//! Bufs and parts of them: how an application reaches their bytes.
//!
//! `guard` lends slices, `bytes` turns Bufs into `Bytes`, `atomics` serves memory that a peer or
//! another process may write. Of the other modules of `mem`, this one imports `element`, `mmap` and
//! `ranges`.

// First, since the documentation shows the methods of a type in the order of modules.
mod buf;
mod bytes;

mod atomics;
mod bridge;
mod extent;
mod guard;
mod released;
mod span;

pub use buf::{Buf, BufSlice};
pub use bytes::IntoBytesError;
pub(crate) use extent::Extent;
pub use guard::{BufData, BufDataMut};
pub use released::Released;
pub(super) use span::Span;
