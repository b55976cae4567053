//! A FIFO of waiters that allocates nothing: the node lies in the pinned future that waits.
//!
//! A woken waiter is *notified*, and owns nothing: it takes what it waits for when it is polled,
//! and leaves. Until then it keeps its position in the list. If it is dropped, its notification
//! passes to the next waiter.
//!
//! ```text
//!             enqueue            notify              leave (got it)
//!  Unlinked ----------> Waiting --------> Notified ----------------> Unlinked
//!      ^                   ^------------------|                         ^
//!      |                       enqueue again (another took it first:    |
//!      |                       the node keeps its position)             |
//!      +------------------------- drop: the wake-up is passed on -------+
//! ```
//!
//! The owner of the list chooses how many waiters are notified, since only it knows how much there
//! is to take ([`Waiters::notify`]). Wakers are cloned, dropped and woken outside the lock.
//!
//! To notify `n` waiters takes `n` steps, wherever they are in the list: the list knows the first
//! node that may be waiting, and each node's ticket says whether it is the first now. A sweep,
//! which wakes all waiters, keeps its position in the list while it wakes some of them outside the
//! lock.
//!
//! Nodes of one [`Order`] also take in the order in which they were enqueued: see [`super::order`].
#![expect(unsafe_code, reason = "the list links pinned nodes of futures")]

use std::marker::PhantomPinned;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};
use std::task::Waker;

use super::atomic::{AtomicUsize, Ordering};
use super::order::{Order, Overtaking, Time};
use super::wakers::{BATCH, WakeBatch, discard};
use super::{Mutex, UnsafeCell, lock, seq_cst_order};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    #[default]
    Unlinked,
    Waiting,
    Notified,
    /// Notified and polled, but behind another node of its order.
    Held,
}

/// The node of one waiter. It must be pinned before it is linked, and unlinks itself when it is
/// dropped.
pub(crate) struct WaitNode {
    /// Written each time that the node enters a list.
    pub(super) links: UnsafeCell<MaybeUninit<Links>>,
    /// The list; null while the node is in none. Only the owner of the node reads and writes it.
    pub(super) list: AtomicPtr<Waiters>,
    _pin: PhantomPinned,
}

#[derive(Default)]
pub(super) struct Links {
    pub(super) state: State,
    /// The time at which the node was last notified or held.
    pub(super) since: Time,
    /// Higher than the tickets of all nodes in front of it.
    pub(super) ticket: u64,
    pub(super) prev: Option<NonNull<WaitNode>>,
    pub(super) next: Option<NonNull<WaitNode>>,
    pub(super) waker: Option<Waker>,
    /// Its order, if it has one.
    pub(super) order: Option<Arc<Order>>,
}

/// Together with the pointer to its list, a node is one cache line of each future that may wait.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Links>() <= 56);

// SAFETY: `links` is reached only under the lock of the list that the node is linked into, or by
// the one thread that owns the node while it is not linked; a Waker is Send and Sync.
unsafe impl Send for WaitNode {}
// SAFETY: `&WaitNode` gives access only through the lock of the list.
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

    /// Returns true if the node may be in a list, which it then has to leave.
    #[inline(always)]
    pub(crate) fn is_linked(&self) -> bool {
        !self.list.load(Relaxed).is_null()
    }
}

/// The list. It must not move while nodes are linked, so [`Waiters::enqueue`] is unsafe.
pub(crate) struct Waiters {
    /// The number of nodes in the list. It is written under the lock, and read without it.
    pub(super) len: AtomicUsize,
    pub(super) list: Mutex<List>,
}

pub(super) struct List {
    pub(super) head: Option<NonNull<WaitNode>>,
    pub(super) tail: Option<NonNull<WaitNode>>,
    pub(super) waiting: usize,
    pub(super) notified: usize,
    /// The ticket of the next node: the list's clock.
    pub(super) ticket: u64,
    /// The first node that may be Waiting: no node in front of it is. If `None`, no node is
    /// Waiting.
    pub(super) first: Option<NonNull<WaitNode>>,
    /// Where a sweep continues, and the ticket at which it ends.
    sweep: Option<(NonNull<WaitNode>, u64)>,
    pub(super) overtaking: Overtaking,
    /// The number of nodes that were visited to notify some.
    #[cfg(test)]
    steps: usize,
}

// SAFETY: the pointers are to pinned nodes, Send and Sync, and are followed only under the lock.
unsafe impl Send for List {}

/// The counts of nodes in the list, from which the owner decides how many to wake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Notify {
    /// The number of nodes that were not notified.
    pub(crate) waiting: usize,
    /// The number of nodes that were notified, and have neither left nor enqueued themselves again;
    /// without those that another waiter has overtaken.
    pub(crate) notified: usize,
}

impl Waiters {
    pub(crate) fn new() -> Waiters {
        let list = List {
            head: None,
            tail: None,
            waiting: 0,
            notified: 0,
            ticket: 0,
            first: None,
            sweep: None,
            overtaking: Overtaking::default(),
            #[cfg(test)]
            steps: 0,
        };
        Waiters {
            len: AtomicUsize::new(0),
            list: Mutex::new(list),
        }
    }

    /// Returns true if the list is empty. Pairs with the store in `enqueue`: a thread that makes
    /// something available with a SeqCst operation, and then reads `true` here, made it available
    /// before the waiter checks again.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        seq_cst_order();
        self.len.load(Ordering::SeqCst) == 0
    }

    /// Puts the node at the end of the list, or leaves it at its position with a fresh waker; it is
    /// Waiting afterwards. The caller must check once more before it goes to sleep.
    ///
    /// # Safety
    ///
    /// The list is neither moved nor freed before the node is dropped or has left it
    /// ([`Waiters::leave`]). No other thread uses the node meanwhile.
    pub(crate) unsafe fn enqueue(&self, node: Pin<&WaitNode>, waker: &Waker) {
        // SAFETY: as the caller promises; there is no order.
        unsafe { self.enqueue_in(None, node, waker) };
    }

    /// Returns the node if it may be in this list. Panics if it is in another.
    pub(super) fn linked(&self, node: Pin<&WaitNode>) -> Option<NonNull<WaitNode>> {
        if !node.is_linked() {
            return None;
        }
        let list = node.list.load(Relaxed).cast_const();
        assert!(std::ptr::eq(list, self), "a node is in one list");
        Some(NonNull::from(node.get_ref()))
    }

    /// Removes the node from the list. Unlike a drop of the node, this passes no notification on.
    pub(crate) fn leave(&self, node: Pin<&WaitNode>) {
        if self.linked(node).is_some() {
            self.unlink(node.get_ref());
            node.list.store(std::ptr::null_mut(), Relaxed);
        }
    }

    /// Returns true if the node was notified and has not enqueued itself again.
    pub(crate) fn is_notified(&self, node: Pin<&WaitNode>) -> bool {
        self.linked(node).is_some_and(|node| {
            let _list = lock(&self.list);
            List::links(node, |links| links.state == State::Notified)
        })
    }

    /// Returns true if all waiters in line were notified.
    pub(super) fn all_told(&self) -> bool {
        lock(&self.list).waiting == 0
    }

    /// Notifies the caller's own node: the owner wakes itself, and takes what there is when it is
    /// polled again.
    pub(crate) fn notify_self(&self, node: Pin<&WaitNode>) {
        if let Some(node) = self.linked(node) {
            // Its waker stays and is not woken; it is dropped when the node leaves.
            lock(&self.list).notify_one(node, |_| ());
        }
    }

    /// Wakes all waiters, some at a time. A node that enqueues (again) meanwhile need not be woken;
    /// all others are.
    pub(crate) fn wake_all(&self) {
        {
            let mut list = lock(&self.list);
            // If another sweep is in progress both continue from here.
            list.sweep = list.head.map(|head| (head, list.ticket));
        }
        loop {
            let batch = self.sweep();
            if batch.len() == 0 {
                return;
            }
            batch.wake();
        }
    }

    /// Notifies the next nodes of a sweep, and returns their wakers: none once the sweep has ended.
    fn sweep(&self) -> WakeBatch {
        let mut batch = WakeBatch::default();
        let mut list = lock(&self.list);
        while let (Some((node, end)), false) = (list.sweep, batch.is_full()) {
            let (ticket, next) = List::links(node, |links| (links.ticket, links.next));
            if ticket >= end {
                list.sweep = None;
                break;
            }
            list.notify_one(node, |waker| batch.put(waker.take()));
            list.sweep = next.map(|next| (next, end));
        }
        batch
    }

    /// Notifies as many waiters as `choose` returns, and wakes them, some at a time.
    ///
    /// Waiters that enqueue again meanwhile are not counted twice.
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

    /// Notifies as many waiters as `choose` returns, from the front. Returns their wakers.
    fn notify(&self, choose: impl FnOnce(Notify) -> usize) -> WakeBatch {
        let mut batch = WakeBatch::default();
        let mut list = lock(&self.list);
        let mut left = choose(Notify {
            waiting: list.waiting,
            notified: list.notified - list.overtaking.stale,
        });
        left = left.min(list.waiting);
        while let (Some(node), true, false) = (list.first, left > 0, batch.is_full()) {
            left -= usize::from(list.notify_one(node, |waker| batch.put(waker.take())));
            list.first = List::links(node, |links| links.next);
        }
        batch
    }

    /// Removes the node from the list. Returns true if it had been notified.
    fn unlink(&self, node: &WaitNode) -> bool {
        let this = NonNull::from(node);
        let mut list = lock(&self.list);
        let (state, since, prev, next, waker) = List::links(this, |links| {
            let state = std::mem::replace(&mut links.state, State::Unlinked);
            (
                state,
                links.since,
                links.prev.take(),
                links.next.take(),
                links.waker.take(),
            )
        });
        if state == State::Unlinked {
            return false;
        }
        list.part(this, next);
        match prev {
            Some(prev) => List::links(prev, |links| links.next = next),
            None => list.head = next,
        }
        match next {
            Some(next) => List::links(next, |links| links.prev = prev),
            None => list.tail = prev,
        }
        if list.first == Some(this) {
            list.first = next;
        }
        if let Some((at, end)) = list.sweep
            && at == this
        {
            list.sweep = next.map(|next| (next, end));
        }
        list.overtaking.passed = 0;
        match state {
            State::Waiting => list.waiting -= 1,
            _ => list.forget_notified(since),
        }
        self.len
            .store(list.waiting + list.notified, Ordering::SeqCst);
        drop(list);
        discard(waker);
        state != State::Waiting
    }
}

impl List {
    /// Notifies a node if it is Waiting, and passes its waker to `wake`. Returns true if it was
    /// Waiting.
    pub(super) fn notify_one(
        &mut self,
        node: NonNull<WaitNode>,
        wake: impl FnOnce(&mut Option<Waker>),
    ) -> bool {
        #[cfg(test)]
        {
            self.steps += 1;
        }
        let now = Time::at(self.ticket);
        let waiting = List::links(node, |links| {
            let waiting = links.state == State::Waiting;
            if waiting {
                (links.state, links.since) = (State::Notified, now);
                wake(&mut links.waker);
            }
            waiting
        });
        self.waiting -= usize::from(waiting);
        self.notified += usize::from(waiting);
        waiting
    }

    /// Accesses the links of a node. The caller holds the list's lock.
    pub(super) fn links<R>(node: NonNull<WaitNode>, f: impl FnOnce(&mut Links) -> R) -> R {
        // SAFETY: a linked node is pinned and unlinks itself, under this lock, before it is
        // dropped; the caller passes such a node, or its own.
        let node = unsafe { node.as_ref() };
        node.links.with_mut(|links| {
            // SAFETY: the lock is held, and no other reference to the links is alive: `f` gets the
            // only one.
            let links = unsafe { &mut *links };
            // SAFETY: written by `enqueue`, and a node comes here only after that.
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
        // SAFETY: not null, so by `enqueue`'s contract a list that lives until the node leaves it.
        let list = unsafe { &*self.list.load(Relaxed) };
        if list.unlink(self) {
            // The notification of this node passes to the next one.
            list.notify_and_wake(|_| 1);
        }
    }
}

#[cfg(all(test, not(tokio_doca_loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize as Count;
    use std::task::Wake;

    use super::*;

    /// A waker that counts its wakes, and enqueues another node again at each wake.
    struct Returns {
        wakes: Count,
        line: Arc<Line>,
    }

    struct Line {
        // Dropped before the list.
        nodes: Box<[WaitNode]>,
        list: Waiters,
    }

    impl Line {
        fn new(nodes: usize) -> Arc<Line> {
            Arc::new(Line {
                nodes: (0..nodes).map(|_| WaitNode::new()).collect(),
                list: Waiters::new(),
            })
        }

        fn node(&self, at: usize) -> Pin<&WaitNode> {
            // SAFETY: the nodes lie in a box, and are dropped in place.
            unsafe { Pin::new_unchecked(&self.nodes[at]) }
        }

        fn enqueue_in(&self, order: &Arc<Order>, at: usize, waker: &Waker) {
            // SAFETY: as below.
            unsafe { self.list.enqueue_in(Some(order), self.node(at), waker) };
        }

        fn enqueue(&self, at: usize, waker: &Waker) {
            // SAFETY: the list is dropped after the nodes, and stays in its Arc meanwhile.
            unsafe { self.list.enqueue(self.node(at), waker) };
        }

        fn steps(&self) -> usize {
            std::mem::take(&mut lock(&self.list.list).steps)
        }

        fn is_notified(&self, at: usize) -> bool {
            self.list.is_notified(self.node(at))
        }
    }

    impl Wake for Returns {
        fn wake(self: Arc<Self>) {
            let at = self.wakes.fetch_add(1, Relaxed);
            self.line.enqueue(at, Waker::noop());
        }
    }

    const NODES: usize = 1000;

    #[test]
    fn to_wake_everybody_takes_a_step_for_each() {
        let line = Line::new(NODES);
        for round in 1..=2 {
            (0..NODES).for_each(|at| line.enqueue(at, Waker::noop()));
            line.list.wake_all();
            assert!((0..NODES).all(|at| line.is_notified(at)), "round {round}");
            assert!(line.steps() <= NODES);
        }
    }

    #[test]
    fn to_notify_a_few_at_a_time_takes_a_step_for_each() {
        let line = Line::new(NODES);
        (0..NODES).for_each(|at| line.enqueue(at, Waker::noop()));
        for _ in 0..NODES / 2 {
            line.list.notify_and_wake(|_| 2);
        }
        assert!((0..NODES).all(|at| line.is_notified(at)));
        assert!(line.steps() <= NODES);
    }

    #[test]
    fn everybody_is_woken_though_the_first_enqueue_again_meanwhile() {
        let line = Line::new(NODES);
        let returns = Arc::new(Returns {
            wakes: Count::new(0),
            line: Arc::clone(&line),
        });
        let waker = Waker::from(Arc::clone(&returns));
        (0..NODES).for_each(|at| line.enqueue(at, &waker));
        line.list.wake_all();
        assert_eq!(returns.wakes.load(Relaxed), NODES, "each once");
    }

    #[test]
    fn a_node_that_enqueues_again_is_the_first_to_be_notified() {
        let line = Line::new(4);
        (0..4).for_each(|at| line.enqueue(at, Waker::noop()));
        line.list.notify_and_wake(|_| 3);
        line.enqueue(2, Waker::noop());
        line.enqueue(1, Waker::noop());
        line.list.notify_and_wake(|_| 1);
        let notified = [0, 1, 2, 3].map(|at| line.is_notified(at));
        assert_eq!(notified, [true, true, false, false]);
        line.list.notify_and_wake(|_| 1);
        assert!(line.is_notified(2) && !line.is_notified(3));
    }

    #[test]
    fn nodes_that_leave_take_no_place_with_them() {
        let line = Line::new(4);
        (0..4).for_each(|at| line.enqueue(at, Waker::noop()));
        line.list.leave(line.node(0));
        line.list.notify_and_wake(|_| 1);
        assert!(line.is_notified(1));
        line.list.leave(line.node(2));
        line.list.leave(line.node(1));
        line.list.notify_and_wake(|who| who.waiting);
        assert!(line.is_notified(3));
        line.list.leave(line.node(3));
        assert!(line.list.is_empty());
        line.enqueue(2, Waker::noop());
        line.list.wake_all();
        assert!(line.is_notified(2));
    }

    #[test]
    fn a_waiter_that_is_polled_overtakes_those_that_are_not() {
        let line = Line::new(3);
        (0..3).for_each(|at| line.enqueue(at, Waker::noop()));
        line.list.notify_and_wake(|_| 1);
        let polls = (1..).find(|_| line.list.overtake(line.node(2), 5));
        assert_eq!(polls, Some(16), "five for each of three, and one");
        assert!(line.is_notified(2) && !line.is_notified(1));
        assert!(!line.list.overtake(line.node(1), 5));
        line.list.leave(line.node(2));
        let polls = (1..).find(|_| line.list.overtake(line.node(1), 5));
        assert_eq!(polls, Some(6), "they begin anew when one has left");
    }

    /// Uses the list as `in_line` does in busy mode, with two free slots.
    #[test]
    fn nodes_that_nobody_polls_are_overtaken_once() {
        const IDLE: usize = 15;
        const LIMIT: u32 = 256;
        let line = Line::new(IDLE + 1);
        let mut polls = 0;
        let mut pass = || {
            line.enqueue(IDLE, Waker::noop());
            loop {
                let room = |who: Notify| 2usize.saturating_sub(who.notified).min(who.waiting);
                line.list.notify_and_wake(room);
                let node = line.node(IDLE);
                if line.is_notified(IDLE) || line.list.overtake(node, LIMIT) {
                    return line.list.leave(node);
                }
                polls += 1;
            }
        };
        (0..IDLE).for_each(|at| line.enqueue(at, Waker::noop()));
        (0..1000).for_each(|_| pass());
        // One of them is polled, and waits again: it counts again.
        line.enqueue(0, Waker::noop());
        (0..1000).for_each(|_| pass());
        (0..IDLE).for_each(|at| line.list.leave(line.node(at)));
        pass();
        assert!(polls < LIMIT as usize * IDLE * IDLE, "{polls} polls");
    }

    #[test]
    fn a_member_that_overtakes_has_all_in_front_of_it_notified() {
        const NODES: usize = 3 * BATCH;
        let line = Line::new(NODES);
        let returns = Arc::new(Returns {
            wakes: Count::new(0),
            line: Arc::clone(&line),
        });
        let waker = Waker::from(Arc::clone(&returns));
        let orders = [Order::new(), Order::new()];
        (0..NODES).for_each(|at| line.enqueue_in(&orders[at % 2], at, &waker));
        let last = line.node(NODES - 1);
        assert!((0..=NODES).any(|_| line.list.overtake(last, 1)));
        let members = NODES / 2 - 1;
        assert_eq!(
            returns.wakes.load(Relaxed),
            members,
            "each once, but itself"
        );
        assert!((0..NODES).step_by(2).all(|at| !line.is_notified(at)));
    }

    #[test]
    #[should_panic = "an order is used with one list"]
    fn an_order_is_not_used_with_two_lists() {
        let (order, lines) = (Order::new(), [Line::new(1), Line::new(1)]);
        lines
            .iter()
            .for_each(|line| line.enqueue_in(&order, 0, Waker::noop()));
    }

    #[test]
    #[should_panic = "a node is in one list"]
    fn a_list_refuses_the_node_of_another() {
        let lines = [Line::new(1), Line::new(1)];
        lines[0].enqueue(0, Waker::noop());
        lines[1].list.leave(lines[0].node(0));
    }
}
