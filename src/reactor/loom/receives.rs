//! Models of the real table of receives, with operations that sleep, complete, are dropped, and
//! adopt receives.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, Waker};

use arrayvec::ArrayVec;

use super::super::spin::Spin;
use super::{Bed, on_a_workq};
use crate::device::{Arrival, Completion, Segments};
use crate::reactor::endpoint::Posted;
use crate::reactor::entry_table::{Ended, Ends, EntryTable, Wanted};
use crate::reactor::gate::GateLeft;
use crate::reactor::slots::{Leftovers, Notify};
use crate::reactor::tables::{Numbered, Receipt, RecvBuf, RecvTable};
use crate::reactor::waiting::Waited;
use crate::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use crate::sync::loom::{Task, block_on, check, mutant, spawn};
use crate::sync::{WaitNode, wake};

const LEN: usize = 7;

fn buf() -> RecvBuf {
    RecvBuf {
        lease: None,
        segments: Segments::none(),
        len: LEN,
    }
}

fn numbered() -> Numbered {
    Numbered {
        number: 1,
        posted: 0,
        asleep: Arc::new(AtomicUsize::new(0)),
    }
}

/// Fills an entry, if one is free.
fn fill(receives: &RecvTable) -> Option<Receipt> {
    let mut filled = None;
    receives.fill(&mut ArrayVec::from([buf()]), |receipt, _| {
        filled = Some(receipt)
    });
    filled
}

/// Takes the message of a receive, if it has come. Returns its length in bytes.
fn take(receives: &RecvTable, receipt: Receipt) -> Option<usize> {
    receives.is_over(receipt).then(|| match receipt.adopted {
        true => receives.take_adopted(receipt).len(),
        false => receives.finish(receipt).0.expect("a message").len,
    })
}

/// Returns a table with one entry, and the receive that is posted there.
fn posted() -> (Arc<RecvTable>, Receipt) {
    let receives = Arc::new(RecvTable::new(1, numbered()));
    let receipt = fill(&receives).expect("it is empty");
    (receives, receipt)
}

/// Completes a receive with a message, as the reaper does. Returns true if the entry became free.
fn land(receives: &RecvTable, receipt: Receipt) -> bool {
    let token = receives.token(receipt);
    let completion = Completion::received(token, Arrival::Send, LEN);
    let (mut to_notify, mut rest) = (ArrayVec::new(), Leftovers::new());
    let mut ends = Ends {
        to_notify: &mut to_notify,
        rest: &mut rest,
        freed: false,
    };
    receives.complete(&[completion], &mut ends);
    let (freed, lease) = (ends.freed, None);
    let waker = match to_notify.pop() {
        Some(Notify::Waker(waker)) => Some(waker.open(&GateLeft::of_a_test())),
        Some(_) => panic!("it is posted"),
        None => None,
    };
    let ended = Ended {
        waker,
        lease,
        freed,
    };
    tell(receives, ended)
}

fn tell(receives: &RecvTable, ended: Ended) -> bool {
    if let Some(waker) = ended.waker {
        wake(waker);
    }
    if ended.freed {
        receives.line.notify_and_wake(|who| who.waiting.min(1));
    }
    ended.freed
}

/// Waits for a message: checks, registers, checks again, sleeps.
fn await_message(receives: &RecvTable, receipt: Receipt) -> usize {
    let task = Task::new();
    loop {
        if let Some(landed) = take(receives, receipt) {
            return landed;
        }
        receives.register(receipt, &task.waker());
        if let Some(landed) = take(receives, receipt) {
            return landed;
        }
        task.sleep();
    }
}

#[test]
fn an_op_that_registers_and_then_looks_has_its_message() {
    check(4, || {
        let (receives, receipt) = posted();
        let reaper = {
            let receives = Arc::clone(&receives);
            spawn(move || land(&receives, receipt))
        };
        assert_eq!(await_message(&receives, receipt), LEN);
        assert!(!reaper.join().unwrap());
        assert_eq!(receives.available(), 1);
    });
}

#[test]
fn mutant_that_looks_and_then_registers_is_found() {
    mutant("deadlock", || {
        check(4, || {
            let (receives, receipt) = posted();
            let reaper = {
                let receives = Arc::clone(&receives);
                spawn(move || land(&receives, receipt))
            };
            let task = Task::new();
            while take(&receives, receipt).is_none() {
                receives.register(receipt, &task.waker());
                task.sleep();
            }
            reaper.join().unwrap();
        });
    });
}

#[test]
fn the_message_of_a_dropped_one_comes_to_the_adopter_once() {
    check(4, || {
        let (receives, receipt) = posted();
        let reaper = {
            let receives = Arc::clone(&receives);
            spawn(move || assert!(!land(&receives, receipt)))
        };
        receives.register(receipt, Waker::noop());
        tell(&receives, receives.abandon(receipt));
        let adopted = receives.adopt().expect("there is an orphan");
        assert!(receives.adopt().is_none());
        assert_eq!(await_message(&receives, adopted), LEN);
        receives.settle(adopted);
        reaper.join().unwrap();
        assert!(receives.adopt().is_none(), "once");
        assert_eq!(receives.available(), 1);
    });
}

#[test]
fn a_reset_and_a_completion_free_an_orphan_once() {
    check(4, || {
        let (receives, receipt) = posted();
        tell(&receives, receives.abandon(receipt));
        let reaper = {
            let receives = Arc::clone(&receives);
            spawn(move || land(&receives, receipt))
        };
        let resetting = receives.reset();
        reaper.join().unwrap();
        drop(resetting);
        assert!(receives.adopt().is_none());
        assert_eq!(receives.available(), 1);
        assert!(fill(&receives).is_some() && fill(&receives).is_none());
    });
}

/// Waits in line for the only entry, and adopts its receive. If `looks`, checks once more after
/// joining the line.
fn await_entry(receives: &RecvTable, looks: bool) -> Receipt {
    let task = Task::new();
    let node = pin!(WaitNode::new());
    let node = node.as_ref();
    loop {
        let first = !node.is_linked() || receives.line.is_notified(node);
        if first && let Some(receipt) = receives.adopt() {
            receives.line.leave(node);
            return receipt;
        }
        // SAFETY: the table outlives the node, which is used with this list only.
        unsafe { receives.line.enqueue(node, &task.waker()) };
        if looks && receives.available() > 0 {
            receives.line.notify_self(node);
            continue;
        }
        task.sleep();
    }
}

fn who_waits_for_a_place_adopts(looks: bool) {
    check(3, move || {
        let (receives, receipt) = posted();
        let dropped = {
            let receives = Arc::clone(&receives);
            spawn(move || {
                let ended = receives.abandon(receipt);
                tell(&receives, ended)
            })
        };
        let adopted = await_entry(&receives, looks);
        assert!(dropped.join().unwrap());
        assert!(!land(&receives, adopted));
        assert_eq!(await_message(&receives, adopted), LEN);
    });
}

#[test]
fn one_in_line_adopts_who_is_dropped() {
    who_waits_for_a_place_adopts(true);
}

#[test]
fn mutant_that_does_not_look_once_more_in_line_is_found() {
    mutant("deadlock", || who_waits_for_a_place_adopts(false));
}

/// Awaits a message by the real wait cycle.
fn recv_on(bed: &Bed, receives: &RecvTable, receipt: Receipt) -> usize {
    let message = poll_fn(|cx| {
        let posted = Posted(receives, receipt);
        let policy = bed.workq.0.mode.load();
        match bed
            .attachment
            .poll_end(&posted, false, policy, &mut Spin::default(), cx)
        {
            Poll::Ready(Waited::Done(())) => {
                Poll::Ready(take(receives, receipt).expect("it is over"))
            }
            Poll::Ready(Waited::Lost(_)) => panic!("there is a runtime"),
            Poll::Pending => Poll::Pending,
        }
    });
    block_on(pin!(message))
}

/// Posts a receive on the device of the bed, as if it were a job. The device completes it with a
/// message of `LEN` bytes.
fn post_on(bed: &Bed, receives: &RecvTable) -> Receipt {
    let receipt = fill(receives).expect("there is space");
    let token = receives.token(receipt).as_raw();
    bed.queue.submitted[0].swap(token + 1, SeqCst);
    bed.queue.engine.waker().wake();
    receipt
}

#[test]
fn a_receive_is_told_by_the_real_wait_cycle_beside_an_op() {
    on_a_workq(1, |_| {
        let bed = Arc::new(Bed::on(2, false));
        let registry = &bed.workq.0.core.registry;
        let table = registry.add(None, |numbered| RecvTable::new(1, numbered));
        let receives = table.unwrap();
        let receive = {
            let (bed, receives) = (Arc::clone(&bed), Arc::clone(&receives));
            spawn(move || {
                let receipt = post_on(&bed, &receives);
                assert_eq!(recv_on(&bed, &receives, receipt), LEN);
            })
        };
        let workq = bed.workq.clone();
        let looker = spawn(move || workq.0.turn());
        bed.run([receive, looker]);
        assert!(!registry.any_asleep());
        registry.forget(&*receives);
    });
}
