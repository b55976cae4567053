//! A list that many threads push to and one takes whole: intrusive, so that it allocates nothing and is never full.
//!
//! A push is one exchange. `take` gets all there is and turns it round, so that it comes in order. There is no ABA: a
//! push that finds the same head as before may link to it whatever happened meanwhile.
#![expect(unsafe_code, reason = "links nodes that lie elsewhere")]

use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use crate::sync::atomic::{AtomicPtr, Ordering};
use crate::sync::seq_cst_order;

/// What can be linked.
///
/// # Safety
///
/// `next` is always the same field of the same node.
pub(super) unsafe trait Linked: Sized {
    fn next(&self) -> &AtomicPtr<Self>;
}

pub(super) struct Inbox<T> {
    head: AtomicPtr<T>,
}

impl<T: Linked> Inbox<T> {
    pub(super) fn new() -> Inbox<T> {
        Inbox {
            head: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// SeqCst, like `push`: of "announce that you sleep, then look" and "push, then see who sleeps" one sees the other.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        seq_cst_order();
        self.head.load(Ordering::SeqCst).is_null()
    }

    /// # Safety
    ///
    /// The node is in no list, is valid until it was taken out, and is not accessed by the caller until then.
    #[inline]
    pub(super) unsafe fn push(&self, node: NonNull<T>) {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            // SAFETY: the node is valid, and nobody else's, until it is in.
            unsafe { node.as_ref() }
                .next()
                .store(head, Ordering::Relaxed);
            match self.head.compare_exchange_weak(
                head,
                node.as_ptr(),
                Ordering::SeqCst,
                Ordering::Relaxed,
            ) {
                Ok(_) => break,
                Err(seen) => head = seen,
            }
        }
        seq_cst_order();
    }

    /// All that were pushed, oldest first.
    pub(super) fn take(&self) -> List<T> {
        let mut node = self.head.swap(ptr::null_mut(), Ordering::Acquire);
        let mut first = ptr::null_mut();
        // SAFETY: what is in the list is valid and was given to the list; the swap made it this caller's.
        while let Some(this) = unsafe { node.as_ref() } {
            let next = this.next().load(Ordering::Relaxed);
            this.next().store(first, Ordering::Relaxed);
            first = node;
            node = next;
        }
        List {
            first,
            _nodes: PhantomData,
        }
    }
}

/// Nodes that were taken, in order.
pub(super) struct List<T> {
    first: *mut T,
    _nodes: PhantomData<NonNull<T>>,
}

// SAFETY: it is a chain of nodes that belong to whoever has the list.
unsafe impl<T: Send> Send for List<T> {}

impl<T: Linked> List<T> {
    pub(super) fn new() -> List<T> {
        List {
            first: ptr::null_mut(),
            _nodes: PhantomData,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first.is_null()
    }

    /// The next node, which is the caller's now.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<NonNull<T>> {
        let node = NonNull::new(self.first)?;
        // SAFETY: nodes of the list are valid and this list's.
        self.first = unsafe { node.as_ref() }.next().load(Ordering::Relaxed);
        Some(node)
    }
}
