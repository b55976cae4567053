//! Models of [`FreeBitmap`], the set of free slots, with the line of operations that wait for a
//! slot.

use std::pin::{Pin, pin};
use std::sync::Arc;

use crate::reactor::slots::FreeBitmap;
use crate::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Release, SeqCst},
};
use crate::sync::loom::{Task, TrackedCell, check, mutant, spawn};
use crate::sync::{WaitNode, Waiters, seq_cst_order};

/// Returns a bitmap of `slots` slots, of which all but `left` are taken.
fn bitmap(slots: usize, left: &[u32]) -> FreeBitmap {
    let bitmap = FreeBitmap::new(slots);
    while bitmap.take_from(0).is_some() {}
    for &slot in left {
        bitmap.put(slot);
    }
    bitmap
}

#[test]
fn a_slot_is_taken_once_whichever_word_has_its_bit() {
    // The bitmap has two words: one for the even slots, and one for the odd slots.
    check(3, || {
        let bitmap = Arc::new(bitmap(16, &[2, 5]));
        let cells: Arc<Vec<TrackedCell>> = Arc::new((0..16).map(|_| TrackedCell::new()).collect());
        let work = |number: usize| {
            let (bitmap, cells) = (Arc::clone(&bitmap), Arc::clone(&cells));
            move || {
                for _ in 0..2 {
                    let slot = bitmap.take_from(number).expect("two threads, two Slots");
                    cells[slot as usize].write();
                    bitmap.put(slot);
                }
            }
        };
        let other = spawn(work(1));
        work(0)();
        other.join().unwrap();
        assert_eq!(bitmap.free(), 2);
    });
}

#[test]
fn mutant_bitmap_that_loads_and_stores_is_found() {
    mutant("Causality violation", || {
        check(3, || {
            let (bits, cell) = (Arc::new(AtomicU64::new(1)), Arc::new(TrackedCell::new()));
            let work = || {
                let (bits, cell) = (Arc::clone(&bits), Arc::clone(&cell));
                move || {
                    if bits.load(SeqCst) == 1 {
                        bits.store(0, SeqCst);
                        cell.write();
                        bits.store(1, SeqCst);
                    }
                }
            };
            let other = spawn(work());
            work()();
            other.join().unwrap();
        });
    });
}

/// One operation waits for the only slot, and another thread frees that slot.
fn one_waits(
    wait: impl Fn(&FreeBitmap, &Waiters, Pin<&WaitNode>, &Task) + Clone + Send + Sync + 'static,
    free: impl Fn(&FreeBitmap, &Waiters) + Clone + Send + Sync + 'static,
) {
    check(4, move || {
        let both = Arc::new((bitmap(1, &[]), Waiters::new()));
        let giver = {
            let (both, free) = (Arc::clone(&both), free.clone());
            spawn(move || free(&both.0, &both.1))
        };
        {
            let (node, task) = (pin!(WaitNode::new()), Task::new());
            wait(&both.0, &both.1, node.as_ref(), &task);
        }
        giver.join().unwrap();
        assert!(both.1.is_empty());
        assert_eq!(both.0.free(), 0);
    });
}

/// Frees the slot and notifies, as `Attachment::give_back`, `Shared::after_free` and `notify_line`
/// do.
fn put_then_ask(bitmap: &FreeBitmap, waiters: &Waiters) {
    bitmap.put(0);
    if !waiters.is_empty() {
        let free = bitmap.free();
        waiters.notify_and_wake(|who| free.saturating_sub(who.notified));
    }
}

/// Waits in line and takes the slot, as `Attachment::poll_queued` does.
fn enqueue_then_look(bitmap: &FreeBitmap, waiters: &Waiters, node: Pin<&WaitNode>, task: &Task) {
    loop {
        // SAFETY: the callers' list outlives the node.
        unsafe { waiters.enqueue(node, &task.waker()) };
        if bitmap.free() > 0 && bitmap.take().is_some() {
            return waiters.leave(node);
        }
        task.sleep();
    }
}

#[test]
fn a_freed_slot_and_who_waits_for_it_do_not_miss_each_other() {
    one_waits(enqueue_then_look, put_then_ask);
}

#[test]
fn mutant_that_looks_for_a_slot_and_then_enqueues_is_found() {
    let look_then_enqueue =
        |bitmap: &FreeBitmap, waiters: &Waiters, node: Pin<&WaitNode>, task: &Task| {
            while bitmap.take().is_none() {
                // SAFETY: the caller's list outlives the node.
                unsafe { waiters.enqueue(node, &task.waker()) };
                task.sleep();
            }
            waiters.leave(node);
        };
    mutant("deadlock", || one_waits(look_then_enqueue, put_then_ask));
}

#[test]
fn mutant_that_asks_who_waits_and_then_frees_is_found() {
    let ask_then_put = |bitmap: &FreeBitmap, waiters: &Waiters| {
        let nobody = waiters.is_empty();
        bitmap.put(0);
        if !nobody {
            waiters.notify_and_wake(|_| 1);
        }
    };
    mutant("deadlock", || one_waits(enqueue_then_look, ask_then_put));
}

/// One thread frees a slot and then checks whether an operation waits. Another thread starts to
/// wait and then checks for a free slot. `order` is what each does in between.
fn free_and_wait(order: fn()) {
    check(4, move || {
        let bitmap = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
        let task = Task::new();
        let waiter = task.waker();
        let giver = {
            let bitmap = Arc::clone(&bitmap);
            spawn(move || {
                bitmap.0.store(1, Release);
                order();
                if bitmap.1.load(Acquire) != 0 {
                    waiter.wake();
                }
            })
        };
        bitmap.1.store(1, Release);
        order();
        while bitmap.0.load(Acquire) == 0 {
            task.sleep();
        }
        giver.join().unwrap();
    });
}

#[test]
fn mutant_that_frees_and_waits_with_release_and_acquire_is_found() {
    free_and_wait(seq_cst_order);
    mutant("deadlock", || free_and_wait(|| {}));
}
