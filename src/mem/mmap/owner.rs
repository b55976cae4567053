//! Memory that an owner, a value of the application, holds. The owner is boxed first, asked once
//! where its bytes are, and not touched again until it is dropped.
#![expect(
    unsafe_code,
    reason = "keeps an owner behind a pointer, so that nothing asserts to be alone with its bytes"
)]

use std::ptr::NonNull;

use bytes::Bytes;

use super::memory::Memory;

/// A boxed owner behind a raw pointer, since moving a `Box` asserts that no other party has its
/// content.
struct Owned<O>(NonNull<O>);

// SAFETY: it is the owner, which may be sent.
unsafe impl<O: Send> Send for Owned<O> {}

impl<O> Drop for Owned<O> {
    fn drop(&mut self) {
        // SAFETY: `lend` took it out of a Box, and this is the only drop.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// Returns the bytes of an owner. The owner is dropped when the memory is given back.
pub(super) fn lend<O: AsMut<[u8]> + Send + 'static>(owner: O) -> Memory {
    let owned = Owned(NonNull::from(Box::leak(Box::new(owner))));
    // SAFETY: it was just leaked, and no other party has it.
    let bytes = NonNull::from(unsafe { &mut *owned.0.as_ptr() }.as_mut());
    let free = Box::new(move |_, _| drop(owned));
    // SAFETY: the owner has lent the bytes as a unique slice, which is valid until the owner is
    // used again: not before `free` is dropped or runs.
    unsafe { Memory::lent(bytes.cast(), bytes.len(), free) }
}

/// Returns the memory of `Bytes`, which other handles of the same `Bytes` may read too.
///
/// # Safety
///
/// No code writes the bytes through the result.
pub(super) unsafe fn lend_bytes(bytes: Bytes) -> Memory {
    let at = NonNull::from(&bytes[..]);
    let free = Box::new(move |_, _| drop(bytes));
    // SAFETY: `free` has a handle of the `Bytes`, so the bytes stay where they are until `free` is
    // dropped or has run. No code writes them, as `Bytes` never change and as the caller promises.
    unsafe { Memory::lent(at.cast(), at.len(), free) }
}
