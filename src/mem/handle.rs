//! The trait of operands that an operation can own instead of borrowing them.

#![allow(unreachable_pub, reason = "named in the bounds of a public method")]

use super::{Buf, BufChain, BufSlice, RemoteBuf};

/// An operand that [`Op::owned`](crate::Op::owned) can clone: a handle such as a [`Buf`], or a
/// reference to one.
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

/// Implements [`Handle`] for types whose clones refer to the same object.
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

/// `()` is an absent operand.
impl Handle for () {
    type Owned = ();

    fn cloned(&self) {}
}
