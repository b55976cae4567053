//! A FIFO of waiters that allocates nothing: the node lies in the pinned future that waits.
//!
//! A woken waiter owns nothing. It is *notified*: it keeps its place in the list, takes what it waits for when
//! it is polled, and leaves then. What it was told passes to the next if it is dropped.
//!
//! ```text
//!             enqueue            notify              leave (got it)
//!  Unlinked ----------> Waiting --------> Notified ----------------> Unlinked
//!      ^                   ^------------------|                         ^
//!      |                       enqueue again (somebody was faster:      |
//!      |                       the place in the list is kept)           |
//!      +------------------------- drop: the wake-up is passed on -------+
//! ```
//!
//! How many are notified is the owner's choice ([`Waiters::notify`] gives it the counts), since only the owner
//! knows how much there is to take. Wakers are cloned, dropped and woken outside the lock.
#![expect(
    unsafe_code,
    reason = "the list links pinned nodes that lie in futures"
)]

use std::marker::PhantomPinned;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Waker;

use arrayvec::ArrayVec;

use super::atomic::{AtomicUsize, Ordering};
use super::{Mutex, UnsafeCell, lock, seq_cst_order};

/// How many wakers one turn carries outside the lock.
const BATCH: usize = 32;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Unlinked,
    Waiting,
    Notified,
}

/// The place of one waiter. It must be pinned to be linked, and unlinks itself when it is dropped.
pub(crate) struct WaitNode {
    /// Written when the node is first linked.
    links: UnsafeCell<MaybeUninit<Links>>,
    /// The list it was linked into, null before. Only the owner of the node reads and writes it.
    list: AtomicPtr<Waiters>,
    _pin: PhantomPinned,
}

#[derive(Default)]
struct Links {
    state: State,
    prev: Option<NonNull<WaitNode>>,
    next: Option<NonNull<WaitNode>>,
    waker: Option<Waker>,
}

// SAFETY: `links` is reached only under the lock of the list that the node is linked into, or by the one thread
// that owns the node while it is not linked; a Waker is Send and Sync.
unsafe impl Send for WaitNode {}
// SAFETY: `&WaitNode` gives access to nothing but through the lock of the list.
unsafe impl Sync for WaitNode {}

impl WaitNode {
    #[inline(always)]
    pub(crate) fn new() -> WaitNode {
        WaitNode {
            links: UnsafeCell::new(MaybeUninit::uninit()),
            list: AtomicPtr::default(),
            _pin: PhantomPinned,
        }
    }

    /// Whether it may stand in a list (and so has a place to lose).
    #[inline(always)]
    pub(crate) fn is_linked(&self) -> bool {
        !self.list.load(Relaxed).is_null()
    }
}

/// The list. It must not move while nodes are linked: [`Waiters::enqueue`] is unsafe for that reason.
pub(crate) struct Waiters {
    /// Waiting and Notified together; written under the lock, read without it.
    len: AtomicUsize,
    list: Mutex<List>,
}

struct List {
    head: Option<NonNull<WaitNode>>,
    tail: Option<NonNull<WaitNode>>,
    waiting: usize,
    notified: usize,
}

// SAFETY: the pointers are to pinned nodes, which are Send and Sync, and are followed only under the lock.
unsafe impl Send for List {}

/// How many stand in the list, for the owner to choose how many to wake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Notify {
    /// Nobody told them anything.
    pub(crate) waiting: usize,
    /// Woken, and not polled since.
    pub(crate) notified: usize,
}

/// Wakers to be woken once no lock is held.
#[derive(Default)]
struct WakeBatch {
    wakers: ArrayVec<Waker, BATCH>,
}

impl WakeBatch {
    /// How many it wakes: fewer than were to be notified if they do not fit.
    fn len(&self) -> usize {
        self.wakers.len()
    }

    /// Wakes them all. A waker that panics stops nobody else: the panic ends here, with a log line.
    fn wake(self) {
        self.wakers.into_iter().for_each(wake);
    }
}

/// Wakes; a panic of the user's waker ends here.
pub(crate) fn wake(waker: Waker) {
    contain(|| waker.wake());
}

/// Does what wakes wakers of the user's; a panic of theirs ends here.
pub(crate) fn contain(wakes: impl FnOnce()) {
    let woken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(wakes));
    if let Err(payload) = woken {
        tracing::error!("a waker panicked; the panic was contained");
        // It is user code as well, and may panic when it is dropped.
        std::mem::forget(payload);
    }
}

/// Drops what may hold a waker of the user's; a panic of that ends here.
pub(crate) fn discard<T>(waker: T) {
    let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(waker)));
    if let Err(payload) = dropped {
        tracing::error!("a waker panicked when it was dropped; the panic was contained");
        std::mem::forget(payload);
    }
}

impl Waiters {
    pub(crate) fn new() -> Waiters {
        let list = List {
            head: None,
            tail: None,
            waiting: 0,
            notified: 0,
        };
        Waiters {
            len: AtomicUsize::new(0),
            list: Mutex::new(list),
        }
    }

    /// Whether nobody stands in the list. Pairs with the store in `enqueue`: who makes something available
    /// with a SeqCst operation and then reads `true` here was seen by the waiter that looks again.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        seq_cst_order();
        self.len.load(Ordering::SeqCst) == 0
    }

    /// Puts the node at the end, or leaves it in its place with a fresh waker; it is Waiting afterwards.
    /// The caller must look once more before it goes to sleep.
    ///
    /// # Safety
    ///
    /// The list must not move, and must live until the node is dropped; a node is used with one list only.
    pub(crate) unsafe fn enqueue(&self, node: Pin<&WaitNode>, waker: &Waker) {
        let waker = waker.clone();
        if !node.is_linked() {
            node.links.with_mut(|links| {
                // SAFETY: the node is in no list yet, so that only its owner reaches the links.
                let links = unsafe { &mut *links };
                links.write(Links::default());
            });
            let list = std::ptr::from_ref(self).cast_mut();
            node.list.store(list, Relaxed);
        }
        let this = NonNull::from(node.get_ref());
        let mut list = lock(&self.list);
        let tail = list.tail;
        let (was, old) = List::links(this, |links| {
            let was = std::mem::replace(&mut links.state, State::Waiting);
            if was == State::Unlinked {
                links.prev = tail;
            }
            (was, links.waker.replace(waker))
        });
        match was {
            State::Unlinked => {
                match tail {
                    Some(tail) => List::links(tail, |links| links.next = Some(this)),
                    None => list.head = Some(this),
                }
                list.tail = Some(this);
            }
            State::Waiting => list.waiting -= 1,
            State::Notified => list.notified -= 1,
        }
        list.waiting += 1;
        self.len
            .store(list.waiting + list.notified, Ordering::SeqCst);
        drop(list);
        seq_cst_order();
        discard(old);
    }

    /// Takes the node out of the list, because its owner has got what it waited for.
    pub(crate) fn leave(&self, node: Pin<&WaitNode>) {
        if node.is_linked() {
            self.unlink(node.get_ref());
        }
    }

    /// Whether the node was notified and has not enqueued itself again.
    pub(crate) fn is_notified(&self, node: Pin<&WaitNode>) -> bool {
        if !node.is_linked() {
            return false;
        }
        let _list = lock(&self.list);
        List::links(NonNull::from(node.get_ref()), |links| {
            links.state == State::Notified
        })
    }

    /// Whether all in line were notified.
    pub(crate) fn all_told(&self) -> bool {
        lock(&self.list).waiting == 0
    }

    /// Notifies a node of its own: its owner wakes itself, and takes what there is when it is polled again.
    pub(crate) fn notify_self(&self, node: Pin<&WaitNode>) {
        let mut list = lock(&self.list);
        let told = List::links(NonNull::from(node.get_ref()), |links| {
            let waiting = links.state == State::Waiting;
            if waiting {
                links.state = State::Notified;
            }
            waiting
        });
        if told {
            list.waiting -= 1;
            list.notified += 1;
        }
    }

    /// Notifies as many as `choose` says at first, and wakes them, some at a time.
    ///
    /// Those that enqueue again meanwhile are not counted twice.
    pub(crate) fn notify_and_wake(&self, choose: impl FnOnce(Notify) -> usize) {
        let mut left = 0;
        let mut batch = self.notify(|who| {
            left = choose(who);
            left
        });
        loop {
            let woken = batch.len();
            batch.wake();
            left = left.saturating_sub(woken);
            if left == 0 || woken < BATCH {
                return;
            }
            batch = self.notify(|_| left);
        }
    }

    /// Notifies as many as `choose` says, from the front, and gives their wakers.
    fn notify(&self, choose: impl FnOnce(Notify) -> usize) -> WakeBatch {
        let mut batch = WakeBatch::default();
        let mut list = lock(&self.list);
        let mut left = choose(Notify {
            waiting: list.waiting,
            notified: list.notified,
        });
        left = left.min(list.waiting);
        let mut at = list.head;
        while let (Some(node), true) = (at, left > 0) {
            if batch.wakers.is_full() {
                break;
            }
            let waker = List::links(node, |links| {
                at = links.next;
                (links.state == State::Waiting).then(|| {
                    links.state = State::Notified;
                    links.waker.take()
                })
            });
            if let Some(waker) = waker {
                list.waiting -= 1;
                list.notified += 1;
                left -= 1;
                batch.wakers.extend(waker);
            }
        }
        batch
    }

    /// Removes the node from the list; says whether it had been notified.
    fn unlink(&self, node: &WaitNode) -> bool {
        let this = NonNull::from(node);
        let mut list = lock(&self.list);
        let (state, prev, next, waker) = List::links(this, |links| {
            let state = std::mem::replace(&mut links.state, State::Unlinked);
            (
                state,
                links.prev.take(),
                links.next.take(),
                links.waker.take(),
            )
        });
        if state == State::Unlinked {
            return false;
        }
        match prev {
            Some(prev) => List::links(prev, |links| links.next = next),
            None => list.head = next,
        }
        match next {
            Some(next) => List::links(next, |links| links.prev = prev),
            None => list.tail = prev,
        }
        match state {
            State::Waiting => list.waiting -= 1,
            _ => list.notified -= 1,
        }
        self.len
            .store(list.waiting + list.notified, Ordering::SeqCst);
        drop(list);
        discard(waker);
        state == State::Notified
    }
}

impl List {
    /// Reaches the links of a node. Callers hold the list's lock.
    fn links<R>(node: NonNull<WaitNode>, f: impl FnOnce(&mut Links) -> R) -> R {
        // SAFETY: a linked node is pinned and unlinks itself, under this lock, before it goes; the caller
        // passes such a node, or its own.
        let node = unsafe { node.as_ref() };
        node.links.with_mut(|links| {
            // SAFETY: the lock is held, and no other reference to the links is alive: `f` gets the only one.
            let links = unsafe { &mut *links };
            // SAFETY: written by `enqueue`, without which no node comes here.
            f(unsafe { links.assume_init_mut() })
        })
    }
}

impl Drop for WaitNode {
    #[inline(always)]
    fn drop(&mut self) {
        if self.is_linked() {
            self.leave_for_good();
        }
    }
}

impl WaitNode {
    #[cold]
    fn leave_for_good(&self) {
        // SAFETY: not null, so by `enqueue`'s contract a list that lives until the node is dropped.
        let list = unsafe { &*self.list.load(Relaxed) };
        if list.unlink(self) {
            // What it had been told is the next one's.
            list.notify_and_wake(|_| 1);
        }
    }
}
