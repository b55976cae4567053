//! Handles: what an operation can own instead of borrowing.

#![allow(unreachable_pub, reason = "named in the bounds of a public method")]

use super::{Buf, BufChain, BufSlice, RemoteBuf};

/// A handle, or a reference to one: [`Op::owned`](crate::Op::owned) clones it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is lent for the operation alone, and cannot be owned",
    note = "pass a handle, such as a Buf, or a reference to one"
)]
pub trait Handle {
    /// The handle without a reference.
    type Owned: Send + 'static;

    /// Clones the handle.
    fn cloned(&self) -> Self::Owned;
}

impl<T: Handle> Handle for &T {
    type Owned = T::Owned;

    fn cloned(&self) -> T::Owned {
        T::cloned(self)
    }
}

/// Types whose clones are the same thing.
macro_rules! handles {
    ($($type:ty),* $(,)?) => {$(
        impl $crate::mem::Handle for $type {
            type Owned = $type;

            fn cloned(&self) -> $type {
                self.clone()
            }
        }
    )*};
}
pub(crate) use handles;

handles!(Buf, BufSlice, BufChain, RemoteBuf);

/// No operand.
impl Handle for () {
    type Owned = ();

    fn cloned(&self) {}
}
