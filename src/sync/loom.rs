//! Loom models of the line of waiters, and what the models of other modules are built with.
//!
//! Run them with `RUSTFLAGS="--cfg tokio_doca_loom" cargo test --release --lib loom`. Each model
//! has twins that do one thing wrong and must fail, which shows that the model checks that thing.
#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::future::Future;
use std::pin::{Pin, pin};
use std::process::Command;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use ::loom::model::Builder;
use ::loom::sync::Notify;
use ::loom::thread::{self, JoinHandle};

use super::atomic::{AtomicUsize, Ordering::SeqCst};
use super::{Order, Turn, UnsafeCell, WaitNode, Waiters, seq_cst_order};

/// Explores a model with at most `preemptions` preemptions in each run.
pub(crate) fn check(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    let model = Arc::new(model);
    builder.check(move || {
        let model = Arc::clone(&model);
        spawn(move || model()).join().unwrap();
    });
}

/// Returns `preemptions`, and one more where `TOKIO_DOCA_LOOM_DEEP` is set: `.ci/soak` sets it. The
/// deeper run is for models with which it would take most of a minute of each `.ci/run`. A model
/// that takes that long anyway is `#[ignore = "deep: .ci/soak loom"]`, and so is a mutant that only
/// the deep one finds.
pub(crate) fn deep(preemptions: usize) -> usize {
    preemptions + usize::from(std::env::var_os("TOKIO_DOCA_LOOM_DEEP").is_some())
}

/// Spawns a thread of a model, with a stack of 256 KiB. Loom's default of 32 KiB is too small for
/// whole calls of the crate.
pub(crate) fn spawn<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let words = (256 << 10) / size_of::<usize>();
    let builder = thread::Builder::new().stack_size(words);
    builder.spawn(f).unwrap()
}

/// Expects that `model` fails with `message`. It runs in a process of its own: if a model fails,
/// loom ends the threads amid their work, and the destructors that then run may end the process.
pub(crate) fn mutant<M: FnOnce()>(message: &str, model: M) {
    const CHILD: &str = "TOKIO_DOCA_MUTANT";
    if std::env::var_os(CHILD).is_some() {
        return model();
    }
    let test = std::any::type_name::<M>();
    let test = test
        .trim_start_matches("tokio_doca::")
        .trim_end_matches("::{{closure}}");
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "--include-ignored",
            "--nocapture",
            "--test-threads=1",
            test,
        ])
        .env(CHILD, "1")
        .env("RUST_BACKTRACE", "0")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains(message),
        "the mutant {test} was not found ({}): {said}",
        output.status
    );
}

/// A task of a model: one thread, which sleeps until its waker is woken. If the waker is never
/// woken, loom reports a deadlock.
pub(crate) struct Task(Arc<Alarm>);

struct Alarm(Notify);

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.0.notify();
    }
}

impl Task {
    pub(crate) fn new() -> Task {
        Task(Arc::new(Alarm(Notify::new())))
    }

    pub(crate) fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.0))
    }

    pub(crate) fn sleep(&self) {
        self.0.0.wait();
        // A task that wakes itself shall let the others continue: loom is not fair by itself.
        thread::yield_now();
    }
}

/// Polls a future on the calling thread of the model, which sleeps between polls.
pub(crate) fn block_on<F: Future>(mut future: Pin<&mut F>) -> F::Output {
    let task = Task::new();
    let waker = task.waker();
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        task.sleep();
    }
}

/// A cell that loom watches: if two threads reach it at once, and one writes, the model fails.
pub(crate) struct TrackedCell(UnsafeCell<u32>);

#[expect(unsafe_code, reason = "races are what loom shall find")]
// SAFETY: it is for models alone, where loom ends the run before two threads reach the content at
// once.
unsafe impl Sync for TrackedCell {}

impl TrackedCell {
    pub(crate) fn new() -> TrackedCell {
        TrackedCell(UnsafeCell::new(0))
    }

    pub(crate) fn write(&self) {
        self.0.with_mut(|_| {});
    }

    pub(crate) fn read(&self) {
        self.0.with(|_| {});
    }
}

/// The permits that the waiters of these models wait for.
struct Permits {
    left: AtomicUsize,
    waiters: Waiters,
}

impl Permits {
    fn new() -> Arc<Permits> {
        Arc::new(Permits {
            left: AtomicUsize::new(0),
            waiters: Waiters::new(),
        })
    }

    fn give(&self) {
        self.left.fetch_add(1, SeqCst);
        seq_cst_order();
        if !self.waiters.is_empty() {
            self.waiters.notify_and_wake(|_| 1);
        }
    }

    fn take(&self) -> bool {
        seq_cst_order();
        self.left
            .fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1))
            .is_ok()
    }

    fn take_and_give_back(&self) {
        if self.take() {
            self.give();
        }
    }

    fn spawn(self: &Arc<Permits>, run: fn(&Permits)) -> JoinHandle<()> {
        let permits = Arc::clone(self);
        spawn(move || run(&permits))
    }

    #[expect(unsafe_code, reason = "is queued")]
    fn enqueue(&self, node: Pin<&WaitNode>, waker: &Waker) {
        // SAFETY: every caller's thread has an Arc of the list that is dropped after its node.
        unsafe { self.waiters.enqueue(node, waker) };
    }

    /// Waits for a permit: enqueues, then checks, then sleeps.
    fn wait(&self) {
        let (node, task) = (pin!(WaitNode::new()), Task::new());
        loop {
            self.enqueue(node.as_ref(), &task.waker());
            if self.take() {
                self.waiters.leave(node.as_ref());
                return;
            }
            task.sleep();
        }
    }
}

#[test]
fn a_waiter_that_enqueues_and_then_looks_is_told() {
    check(3, || {
        let permits = Permits::new();
        let giver = permits.spawn(Permits::give);
        permits.wait();
        giver.join().unwrap();
        assert!(permits.waiters.is_empty());
    });
}

#[test]
fn mutant_that_looks_before_it_enqueues_is_found() {
    mutant("deadlock", || {
        check(3, || {
            let permits = Permits::new();
            let giver = permits.spawn(Permits::give);
            let (node, task) = (pin!(WaitNode::new()), Task::new());
            while !permits.take() {
                permits.enqueue(node.as_ref(), &task.waker());
                task.sleep();
            }
            permits.waiters.leave(node.as_ref());
            giver.join().unwrap();
        });
    });
}

#[test]
fn mutant_that_asks_who_waits_before_it_gives_is_found() {
    mutant("deadlock", || {
        check(3, || {
            let permits = Permits::new();
            let giver = permits.spawn(|permits| {
                let nobody = permits.waiters.is_empty();
                permits.left.fetch_add(1, SeqCst);
                seq_cst_order();
                if !nobody {
                    permits.waiters.notify_and_wake(|_| 1);
                }
            });
            permits.wait();
            giver.join().unwrap();
        });
    });
}

/// One of two waiters in line gives up by `give_up`, while one permit is given.
fn one_gives_up(give_up: impl Fn(&Permits, Pin<&WaitNode>) + Clone + Send + Sync + 'static) {
    check(2, move || {
        let permits = Permits::new();
        let giver = permits.spawn(Permits::give);
        let impatient = {
            let (permits, give_up) = (Arc::clone(&permits), give_up.clone());
            spawn(move || {
                let node = pin!(WaitNode::new());
                permits.enqueue(node.as_ref(), Waker::noop());
                give_up(&permits, node.as_ref());
            })
        };
        permits.wait();
        giver.join().unwrap();
        impatient.join().unwrap();
        assert!(permits.waiters.is_empty());
    });
}

#[test]
fn what_a_dropped_waiter_was_told_passes_to_the_next() {
    one_gives_up(|_, _| {});
}

#[test]
fn mutant_that_leaves_and_passes_nothing_on_is_found() {
    mutant("deadlock", || {
        one_gives_up(|permits, node| permits.waiters.leave(node));
    });
}

#[test]
fn a_waiter_that_was_overtaken_is_told_again() {
    check(2, || {
        let permits = Permits::new();
        let giver = permits.spawn(Permits::give);
        let thief = permits.spawn(Permits::take_and_give_back);
        permits.wait();
        giver.join().unwrap();
        thief.join().unwrap();
        assert!(permits.waiters.is_empty());
    });
}

#[test]
fn mutant_that_sleeps_on_after_it_was_overtaken_is_found() {
    mutant("deadlock", || {
        check(2, || {
            let permits = Permits::new();
            let giver = permits.spawn(Permits::give);
            let thief = permits.spawn(Permits::take_and_give_back);
            let (node, task) = (pin!(WaitNode::new()), Task::new());
            permits.enqueue(node.as_ref(), &task.waker());
            while !permits.take() {
                // This waiter was notified before, and is not notified again unless it enqueues
                // itself anew.
                task.sleep();
            }
            permits.waiters.leave(node.as_ref());
            giver.join().unwrap();
            thief.join().unwrap();
        });
    });
}

impl Permits {
    /// Notifies as many waiters as there are permits, less those notified before.
    fn tell(&self) {
        seq_cst_order();
        if self.waiters.is_empty() {
            return;
        }
        let room = self.left.load(SeqCst);
        let more = |who: super::waiters::Notify| room.saturating_sub(who.notified).min(who.waiting);
        self.waiters.notify_and_wake(more);
    }

    #[expect(unsafe_code, reason = "is queued")]
    fn enqueue_in(&self, order: Option<&Arc<Order>>, node: Pin<&WaitNode>, waker: &Waker) {
        // SAFETY: as in `enqueue`; each order of these models is used with one list.
        unsafe { self.waiters.enqueue_in(order, node, waker) };
    }

    /// Takes a permit as a member of an order. Returns true if the waiter was held before that.
    fn wait_in(&self, order: Option<&Arc<Order>>, node: Pin<&WaitNode>, task: &Task) -> bool {
        self.wait_and_hold(order, node, task, WAKES_ITSELF)
    }

    /// Takes a permit as `wait_in` does, and calls `hold` each time that the waiter is held.
    fn wait_and_hold(
        &self,
        order: Option<&Arc<Order>>,
        node: Pin<&WaitNode>,
        task: &Task,
        hold: fn(&Task),
    ) -> bool {
        let mut held = false;
        loop {
            match self.waiters.turn(node) {
                Turn::Hold => {
                    held = true;
                    hold(task);
                    continue;
                }
                Turn::Take if self.take() => {
                    self.waiters.leave(node);
                    self.tell();
                    return held;
                }
                Turn::Take | Turn::Wait => {}
            }
            self.enqueue_in(order, node, &task.waker());
            self.tell();
            if !self.waiters.is_notified(node) {
                task.sleep();
            }
        }
    }
}

/// What a held waiter does: it yields, and is polled once more.
const WAKES_ITSELF: fn(&Task) = |_| thread::yield_now();

/// Two waiters are in line, and two permits are given. The first waiter calls `first`; the second
/// one calls `hold` when it is held. The second waiter gets a permit, and overtakes the first one
/// only after it was held.
fn two_in_order(
    second_has_order: bool,
    hold: fn(&Task),
    first: fn(&Permits, Pin<&WaitNode>, &Task, &Arc<Order>),
) {
    check(2, move || {
        let (permits, order) = (Permits::new(), Order::new());
        let (node, task) = (pin!(WaitNode::new()), Task::new());
        permits.enqueue_in(Some(&order), node.as_ref(), &task.waker());
        let taken = Arc::new(AtomicUsize::new(0));
        let giver = permits.spawn(|permits| {
            permits.left.fetch_add(2, SeqCst);
            permits.tell();
        });
        let second = {
            let (permits, order, taken) =
                (Arc::clone(&permits), Arc::clone(&order), Arc::clone(&taken));
            let (node, task) = (Box::pin(WaitNode::new()), Task::new());
            let order = second_has_order.then_some(order);
            permits.enqueue_in(order.as_ref(), node.as_ref(), &task.waker());
            spawn(move || {
                let held = permits.wait_and_hold(order.as_ref(), node.as_ref(), &task, hold);
                let in_front = permits.left.load(SeqCst);
                taken.store(1 + in_front, SeqCst);
                held
            })
        };
        first(&permits, node.as_ref(), &task, &order);
        giver.join().unwrap();
        let held = second.join().unwrap();
        // If a permit is left the first one has taken none before.
        assert!(taken.load(SeqCst) < 2 || held, "it was passed at once");
    });
}

#[test]
fn a_member_of_an_order_is_not_passed_at_once() {
    two_in_order(true, WAKES_ITSELF, |permits, node, task, order| {
        permits.wait_in(Some(order), node, task);
    });
}

#[test]
fn a_member_that_nobody_polls_is_passed() {
    two_in_order(true, WAKES_ITSELF, |_, _, _, _| {});
}

#[test]
fn mutant_that_sleeps_when_it_is_held_is_found() {
    mutant("deadlock", || {
        two_in_order(true, Task::sleep, |_, _, _, _| {})
    });
}

#[test]
fn mutant_without_an_order_is_found() {
    mutant("it was passed at once", || {
        two_in_order(false, WAKES_ITSELF, |permits, node, task, order| {
            permits.wait_in(Some(order), node, task);
        });
    });
}

/// Three waiters are in line, the first two in an order, and two permits are given. The first one
/// is not polled. The second one gives up by `give_up` if it is held. The third one is served.
fn a_held_one_gives_up(give_up: fn(&Permits, Pin<&WaitNode>)) {
    check(2, move || {
        let (permits, order, task) = (Permits::new(), Order::new(), Task::new());
        let (first, third) = (pin!(WaitNode::new()), pin!(WaitNode::new()));
        let second = Box::pin(WaitNode::new());
        permits.enqueue_in(Some(&order), first.as_ref(), Waker::noop());
        permits.enqueue_in(Some(&order), second.as_ref(), Waker::noop());
        permits.enqueue_in(None, third.as_ref(), &task.waker());
        let giver = permits.spawn(|permits| {
            permits.left.fetch_add(2, SeqCst);
            permits.tell();
        });
        let impatient = {
            let permits = Arc::clone(&permits);
            spawn(move || {
                let second = second;
                if permits.waiters.turn(second.as_ref()) == Turn::Hold {
                    give_up(&permits, second.as_ref());
                }
            })
        };
        permits.wait_in(None, third.as_ref(), &task);
        giver.join().unwrap();
        impatient.join().unwrap();
    });
}

#[test]
fn what_a_dropped_one_that_was_held_was_told_passes_to_the_next() {
    a_held_one_gives_up(|_, _| {});
}

#[test]
fn mutant_that_is_held_and_leaves_and_passes_nothing_on_is_found() {
    mutant("deadlock", || {
        a_held_one_gives_up(|permits, node| permits.waiters.leave(node));
    });
}

/// One waiter is in line, in an order, and notified; there are two permits. A caller that does not
/// wait tries until it may take one. It goes before the waiter in line only once it was refused.
fn one_tries(asks_the_order: bool) {
    check(2, move || {
        let (permits, order) = (Permits::new(), Order::new());
        let (node, task) = (pin!(WaitNode::new()), Task::new());
        permits.enqueue_in(Some(&order), node.as_ref(), &task.waker());
        permits.left.fetch_add(2, SeqCst);
        permits.tell();
        let caller = {
            let permits = Arc::clone(&permits);
            let asked = if asks_the_order {
                Arc::clone(&order)
            } else {
                Order::new()
            };
            spawn(move || {
                let mut refused = false;
                while !permits.waiters.may_pass(&asked) {
                    refused = true;
                    thread::yield_now();
                }
                assert!(permits.take());
                // If a permit is left the waiter in line has taken none before.
                refused || permits.left.load(SeqCst) == 0
            })
        };
        permits.wait_in(Some(&order), node.as_ref(), &task);
        assert!(caller.join().unwrap(), "it was passed at once");
    });
}

#[test]
fn a_member_of_an_order_is_not_passed_by_a_first_try() {
    one_tries(true);
}

#[test]
fn mutant_that_tries_and_does_not_ask_the_order_is_found() {
    mutant("it was passed at once", || one_tries(false));
}

pub(super) fn take_one(left: &mut u32) -> Poll<()> {
    match left.checked_sub(1) {
        Some(less) => {
            *left = less;
            Poll::Ready(())
        }
        None => Poll::Pending,
    }
}

type PollTurn = fn(&Waiters, &Arc<Order>, Pin<&WaitNode>, &Waker) -> Turn;

/// Models two tasks in one line, each of which takes one of two items when `turn` lets it.
fn two_turns(turn: PollTurn) {
    check(deep(2), move || {
        let line = Arc::new((Waiters::new(), Order::new(), super::Mutex::new(0)));
        let takers = [(); 2].map(|()| {
            let line = Arc::clone(&line);
            spawn(move || {
                let (waiters, order, left) = &*line;
                let (node, task) = (pin!(WaitNode::new()), Task::new());
                let node = node.as_ref();
                loop {
                    match turn(waiters, order, node, &task.waker()) {
                        Turn::Hold => thread::yield_now(),
                        Turn::Take if take_one(&mut super::lock(left)).is_ready() => break,
                        Turn::Take | Turn::Wait => task.sleep(),
                    }
                }
                waiters.leave(node);
                waiters.notify_and_wake(|who| who.waiting);
            })
        });
        *super::lock(&line.2) += 2;
        line.0.notify_and_wake(|who| who.waiting);
        takers.into_iter().for_each(|taker| taker.join().unwrap());
    });
}

#[expect(unsafe_code, reason = "the line outlives the nodes")]
fn turns_at_once(
    waiters: &Waiters,
    order: &Arc<Order>,
    node: Pin<&WaitNode>,
    waker: &Waker,
) -> Turn {
    // SAFETY: the line lies in an Arc of the thread, which is dropped after the node.
    unsafe { waiters.enqueue_for_turn(order, node, waker) }
}

#[expect(unsafe_code, reason = "as above")]
fn turns_and_enqueues(
    waiters: &Waiters,
    order: &Arc<Order>,
    node: Pin<&WaitNode>,
    waker: &Waker,
) -> Turn {
    // SAFETY: as above.
    let enqueue = || unsafe { waiters.enqueue_in(Some(order), node, waker) };
    if !node.is_linked() {
        enqueue();
        waiters.notify_self(node);
    }
    let turn = waiters.turn(node);
    if turn != Turn::Hold {
        enqueue();
    }
    turn
}

#[test]
fn a_turn_and_the_place_in_line_are_one_step() {
    two_turns(turns_at_once);
}

#[test]
fn mutant_that_enqueues_after_its_turn_is_found() {
    mutant("deadlock", || two_turns(turns_and_enqueues));
}
