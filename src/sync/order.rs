//! Who of a list takes before whom.
//!
//! Those that were notified are polled in whatever order their tasks are. Where that must not show,
//! the nodes are members of an [`Order`]: a connection's, say. Of one order, a node that was
//! notified takes only when no other node is in front of it that may still be polled in time:
//!
//! - One in front that is Waiting was polled, and found nothing. It is its turn: the node waits
//!   again.
//! - One in front that was notified, and has not been polled since, is given time: the node is
//!   *held*, wakes itself, and is polled once more. What has not been polled by then is *passed*:
//!   it leaves the order, and keeps its place in the list. So a future that nobody polls holds up
//!   those behind it for one poll of theirs.
//!
//! Who does not stand in line asks the order first ([`Order::is_empty`], and [`Waiters::may_pass`]
//! for a call that cannot wait: what is refused once is like what is held once).
//!
//! The clock of all this is the list's ticket, which each enqueued and each held node moves on.
//! Nodes without an order pay for none of it.
#![expect(
    unsafe_code,
    reason = "an order links pinned nodes, under the lock of their list"
)]

use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;

use super::atomic::{AtomicUsize, Ordering};
use super::waiters::{Links, List, State, WaitNode, Waiters};
use super::wakers::WakeBatch;
use super::{UnsafeCell, lock};

/// Those that take in the order in which they stand in one list.
pub(crate) struct Order {
    /// Its members; written under the lock of the list, read without it.
    len: AtomicUsize,
    /// Reached under the lock of the list.
    front: UnsafeCell<Front>,
}

#[derive(Default)]
struct Front {
    /// The first member in the list.
    node: Option<NonNull<WaitNode>>,
    /// When a call that does not wait was refused last.
    refused: Option<u32>,
}

// SAFETY: the pointer is to a pinned node, which is Send and Sync, and is followed only under the
// lock of its list.
unsafe impl Send for Order {}
// SAFETY: as above; `front` is reached only under that lock.
unsafe impl Sync for Order {}

/// What a waiter that is polled shall do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Take,
    /// Wake itself, and be polled once more.
    Hold,
    Wait,
}

impl Order {
    pub(crate) fn new() -> Arc<Order> {
        Arc::new(Order {
            len: AtomicUsize::new(0),
            front: UnsafeCell::new(Front::default()),
        })
    }

    /// Whether none stands in line that must not be passed.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        // Relaxed: what was enqueued before is known to whoever may rely on the order of both.
        self.len.load(Ordering::Relaxed) == 0
    }

    /// Reaches the front. Callers hold the lock of the list, which is this one.
    fn front<R>(&self, _list: &mut List, f: impl FnOnce(&mut Front) -> R) -> R {
        self.front.with_mut(|front| {
            // SAFETY: an order is used with one list only (`enqueue_in`), whose lock is held; `f`
            // gets the only reference.
            f(unsafe { &mut *front })
        })
    }
}

impl Waiters {
    /// What the owner of a node shall do, which is polled: take if it was notified and nobody is in
    /// front of it in its order.
    pub(crate) fn turn(&self, node: Pin<&WaitNode>) -> Turn {
        if !node.is_linked() {
            return Turn::Wait;
        }
        let this = NonNull::from(node.get_ref());
        let mut list = lock(&self.list);
        let (state, since, order) = List::links(this, |links| {
            (links.state, links.since, links.order.clone())
        });
        let since = match state {
            State::Unlinked | State::Waiting => return Turn::Wait,
            State::Notified => None,
            State::Held => Some(since),
        };
        let Some(order) = order else {
            return Turn::Take;
        };
        let turn = list.pass(&order, Some(this), since);
        if turn == Turn::Hold {
            let now = list.now();
            List::links(this, |links| {
                (links.state, links.since) = (State::Held, now);
            });
        }
        turn
    }

    /// The owner of a node was polled, and found what others had been notified of. Notifies the
    /// node if that has happened `limit` times for each in the list, and nobody has left it
    /// meanwhile: the others are not polled. Returns whether it has. The first of its order is
    /// notified too.
    pub(crate) fn overtake(&self, node: Pin<&WaitNode>, limit: u32) -> bool {
        let mut list = lock(&self.list);
        list.passed += 1;
        if list.passed <= u64::from(limit) * (list.waiting + list.notified) as u64 {
            return false;
        }
        list.passed = 0;
        let this = NonNull::from(node.get_ref());
        list.notify_one(this, |_| ());
        let mut batch = WakeBatch::default();
        if let Some(first) = list.first_of_order(this) {
            list.notify_one(first, |waker| batch.put(waker.take()));
        }
        drop(list);
        batch.wake();
        true
    }

    /// Whether a caller that does not wait may take before the members of `order` in this list:
    /// once all of them have been notified, and were not polled since a call was refused for them.
    pub(crate) fn may_pass(&self, order: &Order) -> bool {
        if order.is_empty() {
            return true;
        }
        let mut list = lock(&self.list);
        let refused = order.front(&mut list, |front| front.refused);
        let turn = list.pass(order, None, refused);
        if turn == Turn::Hold {
            let now = list.now();
            order.front(&mut list, |front| front.refused = Some(now));
        }
        turn == Turn::Take
    }
}

impl List {
    fn now(&mut self) -> u32 {
        self.ticket += 1;
        (self.ticket - 1) as u32
    }

    /// Passes the first members of an order, up to this one, that were notified by `since` and not
    /// polled afterwards.
    fn pass(&mut self, order: &Order, node: Option<NonNull<WaitNode>>, since: Option<u32>) -> Turn {
        loop {
            let first = order.front(self, |front| front.node);
            let Some(other) = first.filter(|_| first != node) else {
                return Turn::Take;
            };
            let (state, told, next) =
                List::links(other, |links| (links.state, links.since, links.next));
            // The clock wraps.
            let late = |since: u32| since.wrapping_sub(told) as i32 >= 0;
            match state {
                State::Unlinked | State::Waiting => return Turn::Wait,
                State::Notified | State::Held if since.is_some_and(late) => self.part(other, next),
                State::Notified | State::Held => return Turn::Hold,
            }
        }
    }

    /// The first of a node's order.
    fn first_of_order(&mut self, node: NonNull<WaitNode>) -> Option<NonNull<WaitNode>> {
        let order = List::links(node, |links| links.order.clone());
        order?.front(self, |front| front.node)
    }

    /// A node that was just enqueued is the last of its order.
    pub(super) fn join(&mut self, node: NonNull<WaitNode>, order: &Arc<Order>) {
        List::links(node, |links| links.order = Some(Arc::clone(order)));
        order.front(self, |front| _ = front.node.get_or_insert(node));
        order.len.fetch_add(1, Ordering::Relaxed);
    }

    /// A node leaves its order, if it has one. `next` is the one behind it in the list.
    ///
    /// In all, the first member is looked for once along the list, since those that come are behind
    /// all others.
    pub(super) fn part(&mut self, node: NonNull<WaitNode>, next: Option<NonNull<WaitNode>>) {
        let Some(order) = List::links(node, |links| links.order.take()) else {
            return;
        };
        let others = order.len.fetch_sub(1, Ordering::Relaxed) > 1;
        let first = order.front(self, |front| front.node == Some(node));
        if !first {
            return;
        }
        let mut first = next.filter(|_| others);
        let is_member = |links: &mut Links| {
            let other = links.order.as_ref();
            other.is_some_and(|other| Arc::ptr_eq(other, &order))
        };
        while let Some(other) = first
            && !List::links(other, is_member)
        {
            first = List::links(other, |links| links.next);
        }
        order.front(self, |front| front.node = first);
    }
}
