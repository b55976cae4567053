//! The slab: the elements of a pool or an inventory, which outlive the handle of the pool or
//! inventory. An element is *home* while it is in the slab's free list, and unused.
//!
//! A slab has two reference counts: one of its handle, and one of all its elements together. The
//! latter ends when the handle is gone and the last element is home, which `FreeList::close` and
//! `push` find out. So a live element keeps its slab.
#![expect(
    unsafe_code,
    reason = "the thread that returns the last element ends the slab"
)]

use std::ops::Range;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};
use std::task::Waker;

use super::element::Element;
use super::free_list::{FreeList, Pushed};
use crate::device::ImportOrigin;
use crate::mem::mmap::Mmap;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{Line, Order, Process, Turn, WaitNode, Waiters, log, pass_over_soon};

pub(in crate::mem) struct Slab {
    elements: Box<[Element]>,
    free: FreeList,
    /// The tasks that wait for an element, and take one in order.
    waiters: Waiters,
    order: Arc<Order>,
    /// The process whose thread will soon call `pass_over`, or 0. That call notifies further tasks
    /// if the earlier ones take nothing. A child of fork(2) lacks the thread, so it compares this
    /// with its own number.
    notified_in: AtomicU32,
    this: Weak<Slab>,
    base: Base,
}

/// What the elements of a slab depend on. The slab keeps it alive.
pub(in crate::mem) enum Base {
    /// The Mmap and the range that a pool claimed of it.
    Claim(Mmap, Range<usize>),
    /// The import whose key the jobs on the elements use.
    Import(#[expect(dead_code, reason = "it is there to be kept")] Arc<dyn ImportOrigin>),
    /// Each element keeps its own Mmap.
    Own,
}

impl Slab {
    /// Returns a slab of `len` elements, each made with its index and the address of the slab.
    pub(in crate::mem) fn build(
        len: usize,
        base: Base,
        element: impl Fn(u32, NonNull<Slab>) -> Element,
    ) -> SlabHandle {
        let slab = Arc::new_cyclic(|weak: &Weak<Self>| {
            let at = NonNull::new(weak.as_ptr().cast_mut()).expect("the Arc is allocated");
            let elements = (0..len as u32).map(|index| element(index, at)).collect();
            Slab {
                elements,
                free: FreeList::new(len),
                waiters: Waiters::new(),
                order: Order::new(),
                notified_in: AtomicU32::new(0),
                this: Weak::clone(weak),
                base,
            }
        });
        // The count of all elements together, which `bring_home` or the handle's drop takes back.
        std::mem::forget(Arc::clone(&slab));
        SlabHandle(slab)
    }

    pub(in crate::mem) fn len(&self) -> usize {
        self.elements.len()
    }

    pub(in crate::mem) fn mmap(&self) -> Option<&Mmap> {
        match &self.base {
            Base::Claim(mmap, _) => Some(mmap),
            Base::Import(_) | Base::Own => None,
        }
    }

    /// Returns true if no element was free a moment ago.
    pub(in crate::mem) fn is_empty(&self) -> bool {
        self.free.is_empty()
    }

    /// Returns how many elements are free, how many were ever in use at once, and how many callers
    /// wait.
    pub(in crate::mem) fn counts(&self) -> (usize, usize, usize) {
        let count = |is: fn(&Element) -> bool| self.elements.iter().filter(|it| is(it)).count();
        // The list hands out an index for the first time only while all indices used before are in
        // use.
        let used = self.len() - count(Element::is_fresh);
        (count(Element::is_free), used, self.waiters.waiting())
    }

    /// Takes a free element, if there is one.
    #[inline]
    pub(in crate::mem) fn take(&self) -> Option<&Element> {
        Some(&self.elements[self.free.pop()? as usize])
    }

    /// Returns an element that has no holder any more to the slab, and notifies the tasks that
    /// wait.
    ///
    /// # Safety
    ///
    /// `slab` is what `build` gave to the element `index`, which was taken and has no holder any
    /// more.
    #[inline]
    pub(super) unsafe fn bring_home(slab: NonNull<Slab>, index: u32) {
        // SAFETY: until the element is home, the elements hold their count of the slab.
        let pushed = unsafe { slab.as_ref() }.free.push(index, false);
        match pushed {
            Pushed::Home => {}
            // SAFETY: as the caller promises; `Last` hands over the elements' count.
            Pushed::Last => unsafe { Slab::end(slab) },
            // SAFETY: as the caller promises; nothing was done yet.
            Pushed::Waited => unsafe { Slab::bring_home_and_wake(slab, index) },
        }
    }

    #[cold]
    unsafe fn bring_home_and_wake(slab: NonNull<Slab>, index: u32) {
        // SAFETY: until the element is home the slab has a count, so that another one may be made.
        unsafe { Arc::increment_strong_count(slab.as_ptr()) };
        // SAFETY: the count just made is this one's, and `slab` is an Arc's address.
        let this = unsafe { Arc::from_raw(slab.as_ptr()) };
        if this.free.push(index, true) == Pushed::Last {
            // SAFETY: `Last` hands over the elements' count.
            unsafe { Slab::end(slab) };
        }
        this.wake_next(1);
    }

    /// Wakes tasks to take the free elements. `freed` is the number of elements that were just
    /// brought home.
    pub(super) fn wake_next(&self, mut freed: usize) {
        loop {
            let any_free = !self.free.is_empty();
            self.notify(|told| match freed {
                0 => usize::from(any_free && told == 0),
                _ => freed,
            });
            if !self.waiters.is_empty() {
                return;
            }
            self.free.set_waited(false);
            if self.waiters.is_empty() {
                return;
            }
            // A task has enqueued between the two checks. An element that was brought home before
            // the mark is set again has woken no task.
            self.free.set_waited(true);
            freed = 0;
        }
    }

    /// Notifies tasks in the line: `choose` gets the number of those notified before, and returns
    /// how many more to notify. A notified task owns nothing, and its future may never be polled:
    /// if an element is free and other tasks are left, some of them are notified soon (ADR 0004).
    fn notify(&self, choose: impl FnOnce(usize) -> usize) {
        let mut left = 0;
        self.waiters.notify_and_wake(|who| {
            let now = choose(who.notified).min(who.waiting);
            left = who.waiting - now;
            now
        });
        if left == 0 || self.free.is_empty() {
            return;
        }
        let here = Process::current().distinct();
        if self.notified_in.swap(here, Ordering::SeqCst) != here {
            let this: Weak<dyn Line> = self.this.clone();
            if !pass_over_soon(this) {
                self.notified_in.store(0, Ordering::SeqCst);
                self.waiters.notify_and_wake(|who| who.waiting);
            }
        }
    }

    /// Takes an element. If this returns `None`, the caller waits in line and will be woken.
    pub(in crate::mem) fn poll_take(
        &self,
        node: Pin<&WaitNode>,
        waker: &Waker,
    ) -> Option<&Element> {
        let waited = node.is_linked();
        let taken = self.take_or_enqueue(node, waker);
        if taken.is_none() && !waited && self.free.is_empty() {
            let elements = self.len();
            log(|| tracing::trace!(target: "tokio_doca::mem", elements, "waits for a Buf"));
        }
        taken
    }

    fn take_or_enqueue(&self, node: Pin<&WaitNode>, waker: &Waker) -> Option<&Element> {
        loop {
            let turn = self.waiters.turn_of(node);
            if turn == Turn::Hold {
                // A task that was notified earlier may be polled meanwhile, and take the element.
                // If it is not, this task overtakes it at its next poll.
                waker.wake_by_ref();
                return None;
            }
            let taken = (turn == Turn::Take).then(|| self.take());
            if let Some(element) = taken.flatten() {
                if node.is_linked() {
                    self.waiters.leave(node);
                    self.wake_next(0);
                }
                return Some(element);
            }
            // SAFETY: the futures that have nodes hold the pool, which holds the slab, in an Arc.
            unsafe { self.waiters.enqueue_in(Some(&self.order), node, waker) };
            self.free.set_waited(true);
            if self.free.is_empty() {
                return None;
            }
            self.wake_next(0);
            if !self.waiters.is_notified(node) {
                // An element is free, but another task was notified of it before. This task is
                // being polled, and may overtake a task that is not, but only at its next poll.
                self.waiters.notify_self(node);
                waker.wake_by_ref();
                return None;
            }
        }
    }

    /// Leaves the line. If the caller was notified of an element, another task is notified.
    pub(in crate::mem) fn leave(&self, node: Pin<&WaitNode>) {
        if node.is_linked() {
            self.waiters.leave(node);
            self.wake_next(0);
        }
    }

    /// Gives back the count that all elements hold together.
    ///
    /// # Safety
    ///
    /// The free list has reported to the caller that all elements are home for good, which it does
    /// once per slab.
    unsafe fn end(slab: NonNull<Slab>) {
        // SAFETY: `build` left this count to the caller to which the free list reports that.
        unsafe { Arc::decrement_strong_count(slab.as_ptr()) };
    }
}

impl Line for Slab {
    /// Doubles the number of notified tasks, so that a long line is notified in a few steps.
    fn pass_over(&self) {
        // By the swap this thread sees each element that was brought home before another thread
        // found `notified_in` set.
        self.notified_in.swap(0, Ordering::SeqCst);
        if !self.free.is_empty() {
            self.notify(|told| told.max(1));
        }
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        if let Base::Claim(mmap, range) = &self.base {
            mmap.0.ranges().unclaim(range);
        }
    }
}

/// Owns a slab; when it is dropped, the slab lives on until every element is home.
pub(in crate::mem) struct SlabHandle(Arc<Slab>);

impl std::ops::Deref for SlabHandle {
    type Target = Slab;

    fn deref(&self) -> &Slab {
        &self.0
    }
}

impl Drop for SlabHandle {
    fn drop(&mut self) {
        // The Arc's own address: the count lies in front of what a reference covers.
        let slab = NonNull::new(Arc::as_ptr(&self.0).cast_mut()).expect("the Arc is allocated");
        if self.0.free.close() {
            // SAFETY: `close` said that all elements are home, and they stay: the list is closed.
            unsafe { Slab::end(slab) };
        }
    }
}
