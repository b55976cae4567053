//! An order of some waiters of a list: they take in the order in which they were enqueued.
//!
//! Notified waiters are polled in whatever order their tasks run. Where that order must not show,
//! the nodes are members of an [`Order`], of a connection for example. A member that was notified
//! takes only if no member in front of it may still be polled in time:
//!
//! - A member in front is Waiting: it has been polled, and found nothing to take. It goes first,
//!   and the node waits again.
//! - A member in front was notified, and has not been polled since: it is given time. The node is
//!   *held*: it wakes itself, and is polled once more. It then *passes* each member that was
//!   notified before the hold and has still not been polled. So a future that is not polled delays
//!   each node behind it by one poll.
//!
//! Members that were passed stay members and keep their positions. Passing changes nothing in the
//! list, so a node that may take, and then finds nothing, has done no harm.
//!
//! An operation that is not in the list asks the order first ([`Order::is_empty`]). A call that
//! cannot wait asks [`Waiters::lets_pass`], where a refusal does what a hold does for a node.
//!
//! The clock is the list's ticket: each enqueued node and each hold advance it. It costs nothing
//! for nodes without an order.
#![expect(
    unsafe_code,
    reason = "an order links pinned nodes, under the lock of their list"
)]

use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use super::atomic::{AtomicUsize, Ordering};
use super::waiters::{Links, List, State, WaitNode, Waiters};
use super::wakers::{WakeBatch, discard};
use super::{UnsafeCell, lock, seq_cst_order};

/// The nodes of one list that take in the order in which they were enqueued.
pub(crate) struct Order {
    /// The number of members. It is written under the lock of the list, and read without it.
    len: AtomicUsize,
    /// The address of the list that uses the order, once one does.
    list: OnceLock<usize>,
    /// The first member, and the last refusal of a call that does not wait. Accessed under the lock
    /// of the list.
    front: UnsafeCell<Front>,
}

#[derive(Default)]
struct Front {
    /// The member that is the first in the list, if there is a member.
    node: Option<NonNull<WaitNode>>,
    /// The time at which a call that does not wait was last refused.
    refused: Option<Time>,
}

// SAFETY: the pointer is to a pinned node, which is Send and Sync, and is followed only under the
// lock of its list.
unsafe impl Send for Order {}
// SAFETY: as above; `front` is reached only under that lock.
unsafe impl Sync for Order {}

/// A reading of a list's clock. Its 56 bits fit beside the state of a node, and do not run out: at
/// one step a nanosecond they last two years. The highest byte comes first, so that later times are
/// greater.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Time([u8; 7]);

/// Counts of a list, by which it detects waiters that were notified and are not polled.
#[derive(Default)]
pub(super) struct Overtaking {
    /// The number of polls that found something of which other nodes had been notified, since a
    /// node last left the list.
    pub(super) passed: u64,
    /// Of the nodes that were notified before `until`, and were overtaken, the number that were not
    /// polled since.
    pub(super) stale: usize,
    until: Time,
}

/// What a waiter shall do when it is polled.
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
            list: OnceLock::new(),
            front: UnsafeCell::new(Front::default()),
        })
    }

    /// Returns true if no member is in line.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        // Relaxed is enough: a caller that must come after an enqueued member has synchronized with
        // that member's task.
        self.len.load(Ordering::Relaxed) == 0
    }

    /// Ties the order to the list that uses it first. Panics if another list uses it.
    pub(super) fn bind(&self, list: &List) {
        let here = std::ptr::from_ref(list).addr();
        let used_by = *self.list.get_or_init(|| here);
        assert_eq!(used_by, here, "an order is used with one list");
    }

    /// Accesses the front. Panics if the list is not the order's.
    fn front<R>(&self, list: &mut List, f: impl FnOnce(&mut Front) -> R) -> R {
        self.bind(list);
        self.front.with_mut(|front| {
            // SAFETY: the order has one list, which `bind` has checked, and `list` is the only
            // reference to it meanwhile; `f` gets the only reference to the front.
            f(unsafe { &mut *front })
        })
    }
}

impl Waiters {
    /// Returns the number of waiters in line.
    pub(crate) fn waiting(&self) -> usize {
        let list = lock(&self.list);
        list.waiting + list.notified
    }

    /// Returns the turn as [`Waiters::turn`] does, also for a node that may not be in line yet:
    /// such a node takes if the line is empty.
    pub(crate) fn turn_of(&self, node: Pin<&WaitNode>) -> Turn {
        match node.is_linked() {
            true => self.turn(node),
            false if self.is_empty() => Turn::Take,
            false => Turn::Wait,
        }
    }

    /// Returns what the owner of a node shall do when it is polled: it takes if it was notified,
    /// and if its order has no member in front that goes first.
    pub(crate) fn turn(&self, node: Pin<&WaitNode>) -> Turn {
        let Some(this) = self.linked(node) else {
            return Turn::Wait;
        };
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
        let turn = list.turn(&order, Some(this), since);
        if turn == Turn::Hold {
            let now = list.now();
            let told = List::links(this, |links| {
                links.state = State::Held;
                std::mem::replace(&mut links.since, now)
            });
            list.overtaking.polled(told);
        }
        turn
    }

    /// Does as [`Waiters::enqueue`], with the node as a member of `order`. Panics if `order` is
    /// used with another list.
    ///
    /// # Safety
    ///
    /// As for [`Waiters::enqueue`].
    pub(crate) unsafe fn enqueue_in(
        &self,
        order: Option<&Arc<Order>>,
        node: Pin<&WaitNode>,
        waker: &Waker,
    ) {
        // SAFETY: as the caller promises.
        unsafe { self.enqueue_then(order, node, waker, |_, _, _| ()) };
    }

    /// Does as [`Waiters::enqueue_in`]. Calls `then` under the same lock, with the list, the node
    /// and, if the node was held, the time from which on it was.
    ///
    /// # Safety
    ///
    /// As for [`Waiters::enqueue`].
    pub(super) unsafe fn enqueue_then<R>(
        &self,
        order: Option<&Arc<Order>>,
        node: Pin<&WaitNode>,
        waker: &Waker,
        then: impl FnOnce(&mut List, NonNull<WaitNode>, Option<Time>) -> R,
    ) -> R {
        let waker = waker.clone();
        if self.linked(node).is_none() {
            node.links.with_mut(|links| {
                // SAFETY: the node is in no list yet, so that only its owner reaches the links.
                let links = unsafe { &mut *links };
                links.write(Links::default());
            });
            let list = std::ptr::from_ref(self).cast_mut();
            node.list.store(list, Ordering::Relaxed);
        }
        let this = NonNull::from(node.get_ref());
        let mut list = lock(&self.list);
        // Called before anything is changed, since `bind` may panic.
        order.inspect(|order| order.bind(&list));
        let (tail, next) = (list.tail, list.ticket);
        let (was, since, ticket, old) = List::links(this, |links| {
            let was = std::mem::replace(&mut links.state, State::Waiting);
            if was == State::Unlinked {
                (links.prev, links.ticket) = (tail, next);
            }
            (was, links.since, links.ticket, links.waker.replace(waker))
        });
        match was {
            State::Unlinked => {
                match tail {
                    Some(tail) => List::links(tail, |links| links.next = Some(this)),
                    None => list.head = Some(this),
                }
                list.tail = Some(this);
                list.ticket += 1;
                order.inspect(|order| list.join(this, order));
            }
            State::Waiting => list.waiting -= 1,
            State::Notified | State::Held => list.forget_notified(since),
        }
        list.waiting += 1;
        let behind = |first| List::links(first, |links| links.ticket) < ticket;
        if !list.first.is_some_and(behind) {
            list.first = Some(this);
        }
        let held = (was == State::Held).then_some(since);
        let result = then(&mut list, this, held);
        self.len
            .store(list.waiting + list.notified, Ordering::SeqCst);
        drop(list);
        seq_cst_order();
        discard(old);
        result
    }

    /// Returns what the owner of a node shall do when it is polled, and enqueues the node under the
    /// same lock. Unless the node is held, it is Waiting afterwards, so that no notification is
    /// missed in between. The node counts as notified, even if it was Waiting or not in line yet.
    ///
    /// # Safety
    ///
    /// As for [`Waiters::enqueue`].
    pub(crate) unsafe fn enqueue_for_turn(
        &self,
        order: &Arc<Order>,
        node: Pin<&WaitNode>,
        waker: &Waker,
    ) -> Turn {
        let then = |list: &mut List, node: NonNull<WaitNode>, held: Option<Time>| {
            let turn = list.turn(order, Some(node), held);
            if turn == Turn::Hold {
                list.notify_one(node, |_| ());
                let now = list.now();
                List::links(node, |links| {
                    (links.state, links.since) = (State::Held, now)
                });
            }
            turn
        };
        // SAFETY: as the caller promises.
        unsafe { self.enqueue_then(Some(order), node, waker, then) }
    }

    /// Counts a poll of a node's owner that found something of which other nodes had been notified.
    /// Once that has happened `limit` times for each node in the list, and none has left it
    /// meanwhile, the others are not being polled: this notifies the node and all members in front
    /// of it in its order, and returns true. Waiters that were overtaken delay no others until they
    /// are polled.
    pub(crate) fn overtake(&self, node: Pin<&WaitNode>, limit: u32) -> bool {
        let Some(this) = self.linked(node) else {
            return false;
        };
        let mut list = lock(&self.list);
        list.overtaking.passed += 1;
        let others = list.waiting + list.notified - list.overtaking.stale;
        if list.overtaking.passed <= u64::from(limit) * others as u64 {
            return false;
        }
        list.overtaking = Overtaking {
            passed: 0,
            stale: list.notified,
            until: list.now(),
        };
        list.notify_one(this, |_| ());
        let Some(order) = List::links(this, |links| links.order.clone()) else {
            return true;
        };
        // Notifies some at a time. A waker may enqueue its node again: the nodes in front of the
        // ticket `done` were notified already.
        let mut done = 0;
        loop {
            let mut batch = WakeBatch::default();
            let mut next = order.front(&mut list, |front| front.node);
            while let Some(other) = next.filter(|&other| other != this && !batch.is_full()) {
                let (ticket, behind) = List::links(other, |links| (links.ticket, links.next));
                if ticket >= done {
                    list.notify_one(other, |waker| batch.put(waker.take()));
                    done = ticket + 1;
                }
                next = List::member_from(&order, behind);
            }
            let more = batch.is_full();
            drop(list);
            batch.wake();
            if !more {
                return true;
            }
            list = lock(&self.list);
        }
    }

    /// Returns true if a caller that does not wait may take: if the list is empty, or if all nodes
    /// in it were notified and the caller may pass those of its order. `is_free` returns true if
    /// there is something to take; a refusal counts only then.
    #[inline]
    pub(crate) fn lets_pass(&self, order: Option<&Order>, is_free: impl FnOnce() -> bool) -> bool {
        self.is_empty()
            || self.all_told() && is_free() && order.is_none_or(|order| self.may_pass(order))
    }

    /// Returns true if a caller that does not wait may overtake the members of `order`: if all of
    /// them were notified before a call was last refused, and have still not been polled.
    ///
    /// The caller asks only if there is something to take.
    pub(super) fn may_pass(&self, order: &Order) -> bool {
        if order.is_empty() {
            return true;
        }
        let mut list = lock(&self.list);
        let refused = order.front(&mut list, |front| front.refused);
        let turn = list.turn(order, None, refused);
        if turn == Turn::Hold {
            let now = list.now();
            order.front(&mut list, |front| front.refused = Some(now));
        }
        turn == Turn::Take
    }
}

impl Time {
    pub(super) fn at(ticket: u64) -> Time {
        let [_, time @ ..] = ticket.to_be_bytes();
        Time(time)
    }
}

impl Overtaking {
    /// Notes that a node, which was notified at `since`, was polled or has left.
    fn polled(&mut self, since: Time) {
        self.stale -= usize::from(since <= self.until);
    }
}

impl List {
    /// Updates the counts for a node that was notified at `since`, and no longer is.
    pub(super) fn forget_notified(&mut self, since: Time) {
        self.notified -= 1;
        self.overtaking.polled(since);
    }

    fn now(&mut self) -> Time {
        self.ticket += 1;
        Time::at(self.ticket - 1)
    }

    /// Returns the turn of a member that was held at `since`, or of a caller behind all members.
    fn turn(
        &mut self,
        order: &Order,
        node: Option<NonNull<WaitNode>>,
        since: Option<Time>,
    ) -> Turn {
        let mut next = order.front(self, |front| front.node);
        while let Some(other) = next.filter(|_| next != node) {
            let (state, told, behind) =
                List::links(other, |links| (links.state, links.since, links.next));
            match state {
                State::Unlinked | State::Waiting => return Turn::Wait,
                State::Notified | State::Held if since.is_some_and(|since| told <= since) => {}
                State::Notified | State::Held => return Turn::Hold,
            }
            next = List::member_from(order, behind);
        }
        Turn::Take
    }

    /// Returns the first member at this node or behind it.
    ///
    /// This steps over the nodes in between, under the lock: with `k` orders in one list, about `k`
    /// nodes for each member. A list of members would cost each node two more pointers.
    fn member_from(
        order: &Order,
        mut node: Option<NonNull<WaitNode>>,
    ) -> Option<NonNull<WaitNode>> {
        while let Some(at) = node {
            let (member, behind) = List::links(at, |links| {
                let of = links.order.as_deref();
                (of.is_some_and(|of| std::ptr::eq(of, order)), links.next)
            });
            if member {
                break;
            }
            node = behind;
        }
        node
    }

    /// Makes a node that was just enqueued the last member of an order.
    pub(super) fn join(&mut self, node: NonNull<WaitNode>, order: &Arc<Order>) {
        List::links(node, |links| links.order = Some(Arc::clone(order)));
        order.front(self, |front| _ = front.node.get_or_insert(node));
        order.len.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a node that leaves the list from its order, if it has one. `next` is the node behind
    /// it in the list.
    pub(super) fn part(&mut self, node: NonNull<WaitNode>, next: Option<NonNull<WaitNode>>) {
        let Some(order) = List::links(node, |links| links.order.take()) else {
            return;
        };
        let others = order.len.fetch_sub(1, Ordering::Relaxed) > 1;
        if order.front(self, |front| front.node == Some(node)) {
            let first = List::member_from(&order, next.filter(|_| others));
            order.front(self, |front| front.node = first);
        }
    }
}
