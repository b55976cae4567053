//! Loom models of the reactor: the Slot, the magazines, the gate, and the whole wait cycle of an Op.
//!
//! Each model has twins that do one thing wrong and must fail. Where the wrong thing is inside one of our types, the
//! twin is a toy of the few lines that matter, with a twin of its own that is right.
#![allow(clippy::unwrap_used, reason = "these are tests")]
#![expect(
    unsafe_code,
    reason = "a device in a few lines, and cells as a Slot has them"
)]

use std::future::Future;
use std::pin::{Pin, pin};
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use ::loom::thread::JoinHandle;

use super::finished::Finished;
use super::gate::Gate;
use super::held::{Held, Outcome};
use super::magazine::Magazines;
use super::mode::{Current, Mode, Policy};
use super::slot::{Completed, Slot};
use super::target::{Target, Told};
use super::{Attachment, Flight, Prepared, Work, WorkQ};
use crate::device::{
    Adapter, Armed, Caps, Completion, DevInfo, Device, Job, Keep, PciAddr, PciFunction, Queue,
    QueueConfig, Region, Registrar, Registration, Segment, Segments, Submitted, Token, Use,
};
use crate::error::Result;
use crate::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
};
use crate::sync::loom::{Task, Watched, block_on, check, mutant, spawn};
use crate::sync::{UnsafeCell, WaitNode, Waiters, seq_cst_order};

mod expected;

fn held() -> Held {
    Held::new(None, None, 0)
}

fn in_flight() -> (Arc<Slot>, u32) {
    let slot = Arc::new(Slot::new());
    let generation = slot.fill(held(), None);
    (slot, generation)
}

/// Does what a completion asks for; true if the Slot became free.
fn tell(completed: Completed) -> bool {
    match completed {
        Completed::Tell(Told::Waker(waker)) => waker.wake(),
        Completed::Nothing => {}
        Completed::Free(None) => return true,
        _ => panic!("a completion of a job in flight, which no run waits for"),
    }
    false
}

/// Look, register, look, sleep: what `Flight` does.
fn await_slot(slot: &Slot) -> Outcome {
    let task = Task::new();
    loop {
        if let Some(outcome) = slot.take() {
            return outcome;
        }
        slot.register(&task.waker());
        if let Some(outcome) = slot.take() {
            return outcome;
        }
        task.sleep();
    }
}

#[test]
fn an_op_that_registers_and_then_looks_is_told() {
    check(4, || {
        let (slot, generation) = in_flight();
        let reaper = {
            let slot = Arc::clone(&slot);
            spawn(move || assert!(!tell(slot.complete(generation, Ok(7)))))
        };
        assert_eq!(await_slot(&slot), Ok(7));
        reaper.join().unwrap();
        assert_eq!(slot.fill(held(), None), generation + 1, "free, and once");
    });
}

#[test]
fn mutant_that_looks_and_then_registers_is_found() {
    mutant("deadlock", || {
        check(4, || {
            let (slot, generation) = in_flight();
            let reaper = {
                let slot = Arc::clone(&slot);
                spawn(move || tell(slot.complete(generation, Ok(7))))
            };
            let task = Task::new();
            while slot.take().is_none() {
                slot.register(&task.waker());
                task.sleep();
            }
            reaper.join().unwrap();
        });
    });
}

#[test]
fn of_two_tasks_the_one_that_polled_last_is_told() {
    check(4, || {
        let (slot, generation) = in_flight();
        let reaper = {
            let slot = Arc::clone(&slot);
            spawn(move || tell(slot.complete(generation, Ok(7))))
        };
        // The first task polls once and hands the Op over.
        if slot.take().is_none() {
            slot.register(Waker::noop());
        }
        assert_eq!(await_slot(&slot), Ok(7));
        assert!(!reaper.join().unwrap());
    });
}

#[test]
fn a_nudged_op_is_told_all_the_same() {
    check(4, || {
        let (slot, generation) = in_flight();
        let reaper = {
            let slot = Arc::clone(&slot);
            spawn(move || {
                if let Some(waker) = slot.nudge() {
                    waker.wake();
                }
                tell(slot.complete(generation, Ok(7)));
            })
        };
        assert_eq!(await_slot(&slot), Ok(7));
        reaper.join().unwrap();
    });
}

/// What the nudge is for: the Op must poll again, though its Job is not over.
#[test]
fn an_op_that_waits_while_it_is_nudged_polls_again() {
    check(4, || {
        let (slot, _) = in_flight();
        let changed = Arc::new(AtomicBool::new(false));
        let reaper = {
            let (slot, changed) = (Arc::clone(&slot), Arc::clone(&changed));
            spawn(move || {
                changed.store(true, SeqCst);
                seq_cst_order();
                if let Some(waker) = slot.nudge() {
                    waker.wake();
                }
            })
        };
        let task = Task::new();
        loop {
            slot.register(&task.waker());
            seq_cst_order();
            if changed.load(SeqCst) {
                break;
            }
            task.sleep();
        }
        reaper.join().unwrap();
    });
}

#[test]
fn exactly_one_of_drop_and_completion_frees_the_slot() {
    check(4, || {
        let (slot, generation) = in_flight();
        let reaper = {
            let slot = Arc::clone(&slot);
            spawn(move || tell(slot.complete(generation, Ok(7))))
        };
        slot.register(Waker::noop());
        let by_drop = slot.abandon();
        let by_completion = reaper.join().unwrap();
        assert!(by_drop ^ by_completion, "freed by exactly one");
        assert_eq!(slot.fill(held(), None), generation + 1);
    });
}

#[test]
fn a_nudge_does_not_come_between_drop_and_completion() {
    check(4, || {
        let (slot, generation) = in_flight();
        let reaper = {
            let slot = Arc::clone(&slot);
            spawn(move || {
                drop(slot.nudge());
                tell(slot.complete(generation, Ok(7)))
            })
        };
        slot.register(Waker::noop());
        let by_drop = slot.abandon();
        assert!(by_drop ^ reaper.join().unwrap(), "freed by exactly one");
        assert_eq!(slot.fill(held(), None), generation + 1);
    });
}

#[test]
fn a_completion_that_comes_twice_does_not_touch_the_next_use() {
    check(4, || {
        let (slot, generation) = in_flight();
        let reaper = {
            let slot = Arc::clone(&slot);
            spawn(move || {
                tell(slot.complete(generation, Ok(7)));
                let again = slot.complete(generation, Ok(8));
                assert!(matches!(again, Completed::Stale));
            })
        };
        assert_eq!(await_slot(&slot), Ok(7));
        let next = slot.fill(held(), None);
        slot.register(Waker::noop());
        assert!(slot.take().is_none() && slot.is_in_flight());
        reaper.join().unwrap();
        assert!(matches!(slot.complete(next, Ok(9)), Completed::Tell(_)));
        assert_eq!(slot.take(), Some(Ok(9)));
    });
}

/// The lines of a Slot in which waker, completion and drop meet, and ways to get them wrong.
struct Toy {
    phase: AtomicU64,
    target: UnsafeCell<Option<Waker>>,
    wrong: Wrong,
}

#[derive(Clone, Copy, PartialEq)]
enum Wrong {
    Nothing,
    /// `register` says nothing if the reaper has taken the old waker.
    SilentRegister,
    /// `register` writes the cell without claiming it.
    UnclaimedRegister,
    /// `complete` says that it is over and takes the waker then.
    DoneTooEarly,
    /// `abandon` looks and stores.
    LookAndStore,
    /// `complete` gives up the cell with Relaxed.
    RelaxedDone,
}

const PENDING: u64 = 0;
const REGISTERING: u64 = 1;
const COMPLETING: u64 = 2;
const DONE: u64 = 3;
const ORPHAN: u64 = 4;
const FREE: u64 = 5;

// SAFETY: the cell is reached as the phase says; that it is not, in the wrong ones, is what loom shall find.
unsafe impl Send for Toy {}
// SAFETY: as above.
unsafe impl Sync for Toy {}

impl Toy {
    fn new(wrong: Wrong) -> Arc<Toy> {
        Arc::new(Toy {
            phase: AtomicU64::new(PENDING),
            target: UnsafeCell::new(None),
            wrong,
        })
    }

    fn step(&self, from: u64, to: u64) -> bool {
        let stepped = self.phase.compare_exchange(from, to, AcqRel, Acquire);
        stepped.is_ok()
    }

    fn replace(&self, waker: Option<Waker>) -> Option<Waker> {
        self.target.with_mut(|target| {
            // SAFETY: the phase says that the cell is the caller's.
            unsafe { std::ptr::replace(target, waker) }
        })
    }

    fn take(&self) -> bool {
        let done = self.phase.load(Acquire) == DONE;
        if done {
            drop(self.replace(None));
            self.phase.store(FREE, Release);
        }
        done
    }

    fn register(&self, waker: &Waker) {
        if self.wrong == Wrong::UnclaimedRegister {
            drop(self.replace(Some(waker.clone())));
        } else if self.step(PENDING, REGISTERING) {
            let old = self.replace(Some(waker.clone()));
            self.step(REGISTERING, PENDING);
            drop(old);
        } else if self.wrong != Wrong::SilentRegister && self.phase.load(Acquire) == COMPLETING {
            waker.wake_by_ref();
        }
    }

    fn abandon(&self) -> bool {
        if self.wrong == Wrong::LookAndStore {
            let done = self.phase.load(Acquire) == DONE;
            self.phase.store(if done { FREE } else { ORPHAN }, Release);
            return done;
        }
        if self.step(PENDING, ORPHAN) || self.step(COMPLETING, ORPHAN) {
            return false;
        }
        self.take()
    }

    fn complete(&self) -> bool {
        let mut phase = self.phase.load(Acquire);
        loop {
            let next = match phase {
                PENDING if self.wrong != Wrong::DoneTooEarly => COMPLETING,
                PENDING | REGISTERING => DONE,
                _ => {
                    self.phase.store(FREE, Release);
                    return true;
                }
            };
            match self.phase.compare_exchange(phase, next, AcqRel, Acquire) {
                Ok(REGISTERING) => return false,
                Ok(_) => break,
                Err(seen) => phase = seen,
            }
        }
        let target = self.replace(None);
        let order = match self.wrong {
            Wrong::RelaxedDone => Relaxed,
            _ => Release,
        };
        if self.wrong != Wrong::DoneTooEarly
            && self
                .phase
                .compare_exchange(COMPLETING, DONE, order, Relaxed)
                .is_err()
        {
            self.phase.store(FREE, Release);
            return true;
        }
        if let Some(waker) = target {
            waker.wake();
        }
        false
    }
}

fn toy_is_awaited(wrong: Wrong) {
    check(4, move || {
        let toy = Toy::new(wrong);
        let reaper = {
            let toy = Arc::clone(&toy);
            spawn(move || toy.complete())
        };
        if !toy.take() {
            toy.register(Waker::noop());
            let task = Task::new();
            loop {
                if toy.take() {
                    break;
                }
                toy.register(&task.waker());
                if toy.take() {
                    break;
                }
                task.sleep();
            }
        }
        assert!(!reaper.join().unwrap());
    });
}

fn toy_is_dropped(wrong: Wrong) {
    check(4, move || {
        let toy = Toy::new(wrong);
        let reaper = {
            let toy = Arc::clone(&toy);
            spawn(move || toy.complete())
        };
        let by_drop = toy.abandon();
        assert!(by_drop ^ reaper.join().unwrap(), "freed by exactly one");
    });
}

#[test]
fn the_toy_slot_is_right() {
    toy_is_awaited(Wrong::Nothing);
    toy_is_dropped(Wrong::Nothing);
}

#[test]
fn mutant_that_registers_silently_while_the_old_waker_is_taken_is_found() {
    mutant("deadlock", || toy_is_awaited(Wrong::SilentRegister));
}

#[test]
fn mutant_that_writes_the_waker_unclaimed_is_found() {
    mutant("Causality violation", || {
        toy_is_awaited(Wrong::UnclaimedRegister)
    });
}

#[test]
fn mutant_that_is_done_before_it_takes_the_waker_is_found() {
    mutant("Causality violation", || {
        toy_is_awaited(Wrong::DoneTooEarly)
    });
}

#[test]
fn mutant_that_gives_the_slot_up_relaxed_is_found() {
    mutant("Causality violation", || toy_is_awaited(Wrong::RelaxedDone));
}

#[test]
fn mutant_that_drops_by_look_and_store_is_found() {
    mutant("exactly one", || toy_is_dropped(Wrong::LookAndStore));
}

/// All but `left` of `slots` are taken.
fn magazines(slots: usize, left: &[u32]) -> Magazines {
    let magazines = Magazines::new(slots);
    while magazines.take_from(0).is_some() {}
    for &slot in left {
        magazines.put(slot);
    }
    magazines
}

#[test]
fn a_slot_is_out_once_whichever_magazine_it_lies_in() {
    // Two magazines: even Slots in one, odd ones in the other.
    check(3, || {
        let magazines = Arc::new(magazines(16, &[2, 5]));
        let cells: Arc<Vec<Watched>> = Arc::new((0..16).map(|_| Watched::new()).collect());
        let work = |number: usize| {
            let (magazines, cells) = (Arc::clone(&magazines), Arc::clone(&cells));
            move || {
                for _ in 0..2 {
                    let slot = magazines.take_from(number).expect("two threads, two Slots");
                    cells[slot as usize].write();
                    magazines.put(slot);
                }
            }
        };
        let other = spawn(work(1));
        work(0)();
        other.join().unwrap();
        assert_eq!(magazines.free(), 2);
    });
}

#[test]
fn mutant_magazine_that_looks_and_stores_is_found() {
    mutant("Causality violation", || {
        check(3, || {
            let (bits, cell) = (Arc::new(AtomicU64::new(1)), Arc::new(Watched::new()));
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

/// One waits for a Slot, one frees the only one.
fn one_waits(
    wait: impl Fn(&Magazines, &Waiters, Pin<&WaitNode>, &Task) + Clone + Send + Sync + 'static,
    free: impl Fn(&Magazines, &Waiters) + Clone + Send + Sync + 'static,
) {
    check(4, move || {
        let both = Arc::new((magazines(1, &[]), Waiters::new()));
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

/// As `Attachment::give_back`, `Shared::after_free` and `pass_on`.
fn put_then_ask(magazines: &Magazines, waiters: &Waiters) {
    magazines.put(0);
    if !waiters.is_empty() {
        let free = magazines.free();
        waiters.notify_and_wake(|who| free.saturating_sub(who.notified));
    }
}

/// As `Attachment::poll_queued`.
fn enqueue_then_look(magazines: &Magazines, waiters: &Waiters, node: Pin<&WaitNode>, task: &Task) {
    loop {
        // SAFETY: the callers' list outlives the node.
        unsafe { waiters.enqueue(node, &task.waker()) };
        if magazines.free() > 0 && magazines.take().is_some() {
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
        |magazines: &Magazines, waiters: &Waiters, node: Pin<&WaitNode>, task: &Task| {
            while magazines.take().is_none() {
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
    let ask_then_put = |magazines: &Magazines, waiters: &Waiters| {
        let nobody = waiters.is_empty();
        magazines.put(0);
        if !nobody {
            waiters.notify_and_wake(|_| 1);
        }
    };
    mutant("deadlock", || one_waits(enqueue_then_look, ask_then_put));
}

/// The pairing without its total order: "I free, then ask who waits" and "I wait, then look for a free one".
fn free_and_wait(order: fn()) {
    check(4, move || {
        let words = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
        let task = Task::new();
        let waiter = task.waker();
        let giver = {
            let words = Arc::clone(&words);
            spawn(move || {
                words.0.store(1, Release);
                order();
                if words.1.load(Acquire) != 0 {
                    waiter.wake();
                }
            })
        };
        words.1.store(1, Release);
        order();
        while words.0.load(Acquire) == 0 {
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

/// A queue whose reaper must be alone, with one Job: it is over when `device` has run.
struct Bench {
    gate: Gate,
    done: AtomicBool,
    armed: AtomicBool,
    /// Only who is in the gate reaches it.
    reaped: UnsafeCell<u32>,
    slot: Slot,
    generation: u32,
}

// SAFETY: `reaped` is reached in the gate alone.
unsafe impl Sync for Bench {}

impl Bench {
    fn new() -> Arc<Bench> {
        let slot = Slot::new();
        let generation = slot.fill(held(), None);
        Arc::new(Bench {
            gate: Gate::new(),
            done: AtomicBool::new(false),
            armed: AtomicBool::new(false),
            reaped: UnsafeCell::new(0),
            slot,
            generation,
        })
    }

    fn reap(&self) {
        // The cell is open during the look, so that a second reaper is caught in the act.
        let over = self.reaped.with_mut(|reaped| {
            seq_cst_order();
            let over = self.done.load(SeqCst) && self.done.swap(false, SeqCst);
            // SAFETY: in the gate.
            unsafe { *reaped += u32::from(over) };
            over
        });
        if over {
            tell(self.slot.complete(self.generation, Ok(7)));
        }
    }

    /// As `Shared::turn`.
    fn turn(&self) {
        if !self.gate.enter() {
            return;
        }
        loop {
            self.reap();
            if self.gate.leave() {
                return;
            }
        }
    }

    fn arm(&self) {
        self.armed.store(true, SeqCst);
        seq_cst_order();
    }

    /// Finishes the Job, rings if armed, and does what the ring leads to.
    fn device(&self, turn: fn(&Bench)) {
        self.done.store(true, SeqCst);
        seq_cst_order();
        if self.armed.load(SeqCst) && self.armed.swap(false, SeqCst) {
            turn(self);
        }
    }
}

/// An Op, the device, and somebody who looks at just the wrong moment.
fn wait_cycle(poll: fn(&Bench), turn: fn(&Bench)) {
    check(3, move || {
        let bench = Bench::new();
        let device = {
            let bench = Arc::clone(&bench);
            spawn(move || bench.device(turn))
        };
        let looker = {
            let bench = Arc::clone(&bench);
            spawn(move || turn(&bench))
        };
        let task = Task::new();
        loop {
            if bench.slot.take().is_some() {
                break;
            }
            bench.slot.register(&task.waker());
            poll(&bench);
            if bench.slot.take().is_some() {
                break;
            }
            task.sleep();
        }
        device.join().unwrap();
        looker.join().unwrap();
    });
}

fn arm_then_look(bench: &Bench) {
    bench.arm();
    bench.turn();
}

#[test]
fn an_op_that_arms_and_then_looks_is_told_though_another_one_looks() {
    wait_cycle(arm_then_look, Bench::turn);
}

#[test]
fn mutant_that_looks_and_then_arms_is_found() {
    mutant("deadlock", || {
        let look_then_arm = |bench: &Bench| {
            bench.turn();
            bench.arm();
        };
        wait_cycle(look_then_arm, Bench::turn);
    });
}

/// A gate that takes a refused look for a look.
fn turn_without_mark(bench: &Bench) {
    if bench.gate.enter() {
        bench.reap();
        // Left without a look at the mark.
        while !bench.gate.leave() {}
    }
}

#[test]
fn mutant_that_leaves_the_gate_without_the_look_it_owes_is_found() {
    mutant("deadlock", || {
        let poll = |bench: &Bench| {
            bench.arm();
            turn_without_mark(bench);
        };
        wait_cycle(poll, turn_without_mark);
    });
}

#[test]
fn mutant_that_looks_outside_the_gate_is_found() {
    mutant("Causality violation", || {
        let poll = |bench: &Bench| {
            bench.arm();
            bench.reap();
        };
        wait_cycle(poll, Bench::turn);
    });
}

/// An Op that goes to sleep, and somebody who sets another mode: it must poll again.
fn mode_is_set(
    sleep: impl Fn(&Current, &Slot, Policy, &Task) + Clone + Send + Sync + 'static,
    set: impl Fn(&Current, &Slot, Policy) + Clone + Send + Sync + 'static,
) {
    check(4, move || {
        let policy = |mode| Policy::of(mode, "model").unwrap();
        let (event, busy) = (policy(Mode::EventDriven), policy(Mode::BusyPoll));
        let (slot, _) = in_flight();
        let shared = Arc::new((Current::new(event), slot));
        let setter = {
            let (shared, set) = (Arc::clone(&shared), set.clone());
            spawn(move || set(&shared.0, &shared.1, busy))
        };
        let task = Task::new();
        loop {
            let seen = shared.0.load();
            if seen.is_busy() {
                break;
            }
            sleep(&shared.0, &shared.1, seen, &task);
        }
        setter.join().unwrap();
    });
}

/// As `Attachment::poll_event`.
fn register_then_ask(mode: &Current, slot: &Slot, seen: Policy, task: &Task) {
    slot.register(&task.waker());
    if mode.is_still(seen) {
        task.sleep();
    }
}

/// As `WorkQ::set_mode`.
fn set_then_nudge(mode: &Current, slot: &Slot, policy: Policy) {
    mode.set(policy);
    if let Some(waker) = slot.nudge() {
        waker.wake();
    }
}

#[test]
fn an_op_that_goes_to_sleep_hears_of_another_mode() {
    mode_is_set(register_then_ask, set_then_nudge);
}

#[test]
fn mutant_that_sleeps_without_asking_for_the_mode_is_found() {
    mutant("deadlock", || {
        let just_sleep = |_: &Current, slot: &Slot, _: Policy, task: &Task| {
            slot.register(&task.waker());
            task.sleep();
        };
        mode_is_set(just_sleep, set_then_nudge);
    });
}

#[test]
fn mutant_that_asks_for_the_mode_and_then_registers_is_found() {
    mutant("deadlock", || {
        let ask_then_register = |mode: &Current, slot: &Slot, seen: Policy, task: &Task| {
            let still = mode.is_still(seen);
            slot.register(&task.waker());
            if still {
                task.sleep();
            }
        };
        mode_is_set(ask_then_register, set_then_nudge);
    });
}

#[test]
fn mutant_that_nudges_and_then_sets_the_mode_is_found() {
    mutant("deadlock", || {
        let nudge_then_set = |mode: &Current, slot: &Slot, policy: Policy| {
            if let Some(waker) = slot.nudge() {
                waker.wake();
            }
            mode.set(policy);
        };
        mode_is_set(register_then_ask, nudge_then_set);
    });
}

#[test]
fn what_ended_comes_out_of_the_ring_once_and_whole() {
    check(3, || {
        // Two Slots, one of which is used twice: its place in the ring is another one then.
        let both = Arc::new((Finished::new(2), [Watched::new(), Watched::new()]));
        let finisher = |slot: u32| {
            let both = Arc::clone(&both);
            spawn(move || {
                both.1[slot as usize].write();
                both.0.push(slot);
            })
        };
        let other = finisher(1);
        both.1[0].write();
        both.0.push(0);
        let taker = {
            let both = Arc::clone(&both);
            spawn(move || {
                let slot = both.0.pop();
                if let Some(slot) = slot {
                    both.1[slot as usize].write();
                }
                slot
            })
        };
        let mut seen: Vec<u32> = both.0.pop().into_iter().collect();
        seen.iter().for_each(|&slot| both.1[slot as usize].write());
        seen.extend(taker.join().unwrap());
        if seen.contains(&0) {
            both.1[0].write();
            both.0.push(0);
            seen.retain(|&slot| slot != 0);
        }
        other.join().unwrap();
        seen.extend(std::iter::from_fn(|| both.0.pop()));
        seen.sort_unstable();
        assert_eq!(seen, [0, 1]);
        assert!(both.0.is_empty());
    });
}

#[test]
fn mutant_that_puts_a_slot_in_and_then_writes_it_is_found() {
    mutant("Causality violation", || {
        check(3, || {
            let both = Arc::new((Finished::new(1), Watched::new()));
            let finisher = {
                let both = Arc::clone(&both);
                spawn(move || {
                    both.0.push(0);
                    both.1.write();
                })
            };
            if both.0.pop().is_some() {
                both.1.write();
            }
            finisher.join().unwrap();
        });
    });
}

/// A loop of the caller's own with one Job, and somebody else who collects its completion: no device rings.
struct OwnLoop {
    slot: Slot,
    generation: u32,
    finished: Finished,
    armed: AtomicBool,
    /// The event handle, and who sleeps on it.
    task: Task,
}

// SAFETY: a Task is a waker and a place to sleep, for one thread.
unsafe impl Sync for OwnLoop {}

impl OwnLoop {
    /// As `Shared::fire`.
    fn fire(&self) {
        if self.armed.load(SeqCst) && self.armed.swap(false, SeqCst) {
            self.task.waker().wake();
        }
    }

    /// As `Shared::mark`.
    fn mark(&self) {
        self.armed.store(true, SeqCst);
        seq_cst_order();
    }

    /// As `Table::complete` and `TellBatch::tell`.
    fn collect(&self) {
        let completed = self.slot.complete(self.generation, Ok(7));
        assert!(matches!(completed, Completed::Deliver));
        self.finished.push(0);
        self.fire();
    }

    fn take(&self) -> Option<(u64, Outcome)> {
        self.finished
            .pop()
            .map(|_| self.slot.take_posted().unwrap())
    }

    /// As `WorkQ::arm`.
    fn arm(&self) {
        self.mark();
        if !self.finished.is_empty() {
            self.fire();
        }
    }

    /// As `WorkQ::progress`.
    fn progress(&self) -> Option<(u64, Outcome)> {
        loop {
            let armed = self.armed.swap(false, SeqCst);
            let taken = self.take();
            if taken.is_some() || !armed {
                return taken;
            }
            self.mark();
            if self.finished.is_empty() {
                return None;
            }
        }
    }
}

fn own_loop(wait: fn(&OwnLoop) -> Option<(u64, Outcome)>, collect: fn(&OwnLoop)) {
    check(4, move || {
        let slot = Slot::new();
        let generation = slot.fill(held(), Some(Target::Caller(u64::MAX)));
        let own = Arc::new(OwnLoop {
            slot,
            generation,
            finished: Finished::new(1),
            armed: AtomicBool::new(false),
            task: Task::new(),
        });
        let collector = {
            let own = Arc::clone(&own);
            spawn(move || collect(&own))
        };
        let taken = loop {
            if let Some(taken) = wait(&own) {
                break taken;
            }
            own.task.sleep();
        };
        assert_eq!(taken, (u64::MAX, Ok(7)));
        collector.join().unwrap();
        assert!(own.finished.is_empty());
    });
}

fn arm_then_wait(own: &OwnLoop) -> Option<(u64, Outcome)> {
    let taken = own.progress();
    if taken.is_none() {
        own.arm();
    }
    taken
}

fn arm_then_progress(own: &OwnLoop) -> Option<(u64, Outcome)> {
    own.arm();
    own.progress()
}

#[test]
fn a_loop_that_armed_hears_of_what_somebody_else_collected() {
    own_loop(arm_then_wait, OwnLoop::collect);
    own_loop(arm_then_progress, OwnLoop::collect);
}

#[test]
fn mutant_loop_that_arms_without_a_look_is_found() {
    mutant("deadlock", || {
        let wait = |own: &OwnLoop| {
            let taken = own.progress();
            if taken.is_none() {
                own.mark();
            }
            taken
        };
        own_loop(wait, OwnLoop::collect);
    });
}

#[test]
fn mutant_progress_that_ends_the_arm_without_a_look_is_found() {
    mutant("deadlock", || {
        let wait = |own: &OwnLoop| {
            own.arm();
            let armed = own.armed.swap(false, SeqCst);
            let taken = own.take();
            if taken.is_none() && armed {
                own.mark();
            }
            taken
        };
        own_loop(wait, OwnLoop::collect);
    });
}

#[test]
fn mutant_that_fires_and_then_delivers_is_found() {
    mutant("deadlock", || {
        let collect = |own: &OwnLoop| {
            let completed = own.slot.complete(own.generation, Ok(7));
            assert!(matches!(completed, Completed::Deliver));
            own.fire();
            own.finished.push(0);
        };
        own_loop(arm_then_wait, collect);
    });
}

/// A device with an event of its own, which must be read. What a ring leads to runs on the device's thread, if nobody has
/// read the event by then: the driver is quick.
struct Fake {
    /// By Slot, the Job's Token and one; 0 for none.
    submitted: Box<[AtomicU64]>,
    done: Box<[AtomicU64]>,
    armed: AtomicBool,
    event: AtomicBool,
    engine: Task,
    stopped: AtomicBool,
    /// It sets the WorkQ busy-polling before it does a Job, and never rings.
    deaf: bool,
    /// A shutdown of the WorkQ has ended. (No atomic of the model: it is looked at, and orders nothing.)
    shut: std::sync::atomic::AtomicBool,
}

// SAFETY: the duties of `device`, but for memory, which it does not touch: each Job completes once.
unsafe impl Queue for Fake {
    unsafe fn submit(&self, jobs: &[(Token, Job)]) -> Submitted {
        assert!(!self.shut.load(SeqCst), "a Job after the shutdown");
        let token = jobs[0].0;
        let before = self.submitted[token.index() as usize].swap(token.as_raw() + 1, SeqCst);
        assert_eq!(before, 0, "one Job a Slot");
        self.engine.waker().wake();
        Submitted {
            accepted: 1,
            refused: None,
        }
    }

    fn ready(&self) -> bool {
        seq_cst_order();
        self.done.iter().any(|done| done.load(SeqCst) != 0)
    }

    unsafe fn reap(&self, out: &mut [Completion]) -> usize {
        seq_cst_order();
        let mut reaped = 0;
        for done in &self.done {
            let token = done.load(SeqCst);
            if token != 0 {
                done.store(0, SeqCst);
                out[reaped] = Completion {
                    token: Token::from_raw(token - 1),
                    result: Ok(7),
                };
                reaped += 1;
            }
        }
        reaped
    }

    fn clear(&self) {
        if self.event.load(SeqCst) {
            self.event.swap(false, SeqCst);
        }
    }

    fn arm(&self) -> Armed {
        self.armed.store(true, SeqCst);
        match self.ready() {
            true => Armed::Ready,
            false => Armed::Armed,
        }
    }

    unsafe fn retire(&self, keep: Keep, outstanding: usize) {
        assert_eq!(outstanding, 0, "every model waits for its Jobs");
        drop(keep);
    }
}

impl Fake {
    /// Does Jobs, and what its rings lead to, until it is stopped and has none.
    fn run(&self, workq: &WorkQ) {
        loop {
            // Asked first: no Job comes after it was stopped.
            let stopped = self.stopped.load(SeqCst);
            let mut found = false;
            for (submitted, done) in self.submitted.iter().zip(&self.done) {
                let token = submitted.swap(0, SeqCst);
                if token != 0 {
                    found = true;
                    self.finish(workq, done, token);
                }
            }
            if !found {
                if stopped {
                    return;
                }
                self.engine.sleep();
            }
        }
    }

    fn finish(&self, workq: &WorkQ, done: &AtomicU64, token: u64) {
        if self.deaf {
            workq.set_mode(Mode::BusyPoll).unwrap();
        }
        assert_eq!(done.swap(token, SeqCst), 0);
        seq_cst_order();
        if !self.deaf && self.armed.load(SeqCst) && self.armed.swap(false, SeqCst) {
            self.event.store(true, SeqCst);
        }
        if self.event.load(SeqCst) {
            workq.0.event_turn();
        }
    }
}

struct FakeAdapter {
    info: DevInfo,
    queue: Arc<Fake>,
}

// SAFETY: each Bed has one device, with one queue, for one WorkQ.
unsafe impl Adapter for FakeAdapter {
    fn info(&self) -> &DevInfo {
        &self.info
    }

    fn registrar(&self) -> &dyn Registrar {
        self
    }

    fn open_queue(&self, _: QueueConfig) -> Result<Arc<dyn Queue>> {
        let queue = Arc::clone(&self.queue);
        Ok(queue)
    }
}

impl Registrar for FakeAdapter {
    fn register(&self, _: &Region, _: Use) -> Result<Registration> {
        Ok(Registration::new(0, None))
    }
}

/// An event-driven WorkQ on such a device.
struct Bed {
    workq: WorkQ,
    attachment: Arc<Attachment>,
    queue: Arc<Fake>,
}

impl Bed {
    fn new() -> Bed {
        Bed::on(1, false)
    }

    fn on(depth: u32, deaf: bool) -> Bed {
        let places = || (0..depth).map(|_| AtomicU64::new(0)).collect();
        let queue = Arc::new(Fake {
            submitted: places(),
            done: places(),
            armed: AtomicBool::new(false),
            event: AtomicBool::new(false),
            engine: Task::new(),
            stopped: AtomicBool::new(false),
            deaf,
            shut: false.into(),
        });
        let (addr, caps) = (PciAddr::new(0, 0, 0), Caps::for_dma(1, 1, depth));
        let adapter = FakeAdapter {
            info: DevInfo::new("fake", "fake", addr, PciFunction::Pf, caps),
            queue: Arc::clone(&queue),
        };
        let workq = WorkQ::builder().depth(depth).build().unwrap();
        let device = Device::from_adapter(Arc::new(adapter));
        let attachment = Arc::new(workq.attach(&device, true).unwrap());
        Bed {
            workq,
            attachment,
            queue,
        }
    }

    /// Runs the threads beside an engine, until all is over.
    fn run<const N: usize>(&self, threads: [JoinHandle<()>; N]) {
        let (workq, queue) = (self.workq.clone(), Arc::clone(&self.queue));
        let engine = spawn(move || queue.run(&workq));
        for thread in threads {
            thread.join().unwrap();
        }
        self.queue.stopped.store(true, SeqCst);
        self.queue.engine.waker().wake();
        engine.join().unwrap();
        assert_eq!(self.workq.in_flight(), 0);
    }

    fn spawn_op(&self) -> JoinHandle<()> {
        let attachment = Arc::clone(&self.attachment);
        spawn(move || {
            let op = pin!(Op(Flight::new(attachment)));
            assert_eq!(block_on(op), Ok(7));
        })
    }

    /// An Op that is polled once, and dropped.
    fn spawn_dropped_op(&self) -> JoinHandle<()> {
        let attachment = Arc::clone(&self.attachment);
        spawn(move || {
            if attachment.check_open().is_err() {
                return;
            }
            let op = pin!(Op(Flight::new(attachment)));
            let _ = op.poll(&mut Context::from_waker(Waker::noop()));
        })
    }
}

struct Op(Flight<Arc<Attachment>>);

fn prepared() -> Prepared {
    let segments = Segments::one(Segment {
        addr: NonNull::dangling(),
        len: 1,
        key: 0,
    });
    let job = Job::Copy {
        src: segments,
        dst: segments,
        len: 1,
    };
    Prepared {
        job: Work::Job(job),
        held: held(),
    }
}

impl Future for Op {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        // SAFETY: the Flight is pinned with its Op.
        let mut flight = unsafe { self.map_unchecked_mut(|op| &mut op.0) };
        match flight.is_idle() {
            true => flight.as_mut().start(cx, prepared(), |_| Ok(prepared())),
            false => flight.as_mut().go_on(cx, |_| Ok(prepared())),
        }
    }
}

/// The real WorkQ, on a runtime that registers its event handle.
fn on_a_workq(preemptions: usize, model: impl Fn(&Bed) + Send + Sync + 'static) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .unwrap();
    let _entered = runtime.enter();
    check(preemptions, move || {
        model(&Bed::new());
    });
}

#[test]
fn an_op_is_told_by_the_real_wait_cycle_though_another_one_looks() {
    on_a_workq(2, |bed| {
        let workq = bed.workq.clone();
        let looker = spawn(move || workq.0.turn());
        bed.run([bed.spawn_op(), looker]);
    });
}

#[test]
fn of_two_ops_on_one_slot_both_are_told() {
    on_a_workq(1, |bed| bed.run([bed.spawn_op(), bed.spawn_op()]));
}

#[test]
fn of_two_ops_in_flight_both_are_told_though_only_one_of_them_armed() {
    on_a_workq(1, |_| {
        let bed = Bed::on(2, false);
        bed.run([bed.spawn_op(), bed.spawn_op()]);
    });
}

#[test]
fn an_orphan_is_heard_of_though_it_was_another_op_that_armed() {
    on_a_workq(1, |_| {
        let bed = Bed::on(2, false);
        bed.run([bed.spawn_dropped_op(), bed.spawn_op()]);
    });
}

#[test]
fn an_op_in_line_is_told_though_the_one_before_it_is_dropped() {
    on_a_workq(1, |bed| bed.run([bed.spawn_dropped_op(), bed.spawn_op()]));
}

#[test]
fn nothing_is_submitted_after_a_shutdown_has_ended() {
    on_a_workq(2, |bed| {
        let (workq, queue) = (bed.workq.clone(), Arc::clone(&bed.queue));
        let shutdown = spawn(move || {
            let shutdown = pin!(workq.shutdown());
            assert!(block_on(shutdown).is_ok());
            queue.shut.store(true, SeqCst);
        });
        bed.run([bed.spawn_dropped_op(), shutdown]);
    });
}

#[test]
fn an_op_that_sleeps_goes_on_as_the_new_mode_says() {
    on_a_workq(1, |_| {
        let bed = Bed::on(1, true);
        bed.run([bed.spawn_op()]);
    });
}

#[test]
fn ops_and_jobs_of_the_callers_loop_share_a_workq() {
    on_a_workq(1, |bed| {
        let (attachment, workq) = (Arc::clone(&bed.attachment), bed.workq.clone());
        let own = spawn(move || {
            // The Op may have the only Slot.
            let Ok(index) = attachment.try_reserve() else {
                return;
            };
            attachment.post(index, prepared(), 9).unwrap();
            let mut seen = None;
            while seen.is_none() {
                workq.progress(|user_data, outcome| seen = Some((user_data, outcome)));
                ::loom::thread::yield_now();
            }
            assert_eq!(seen, Some((9, Ok(7))));
        });
        bed.run([bed.spawn_op(), own]);
    });
}

/// What a run of a graph has for ends: a word and a waker, as `ops/graph/board.rs` has them.
#[derive(Default)]
struct Ends {
    told: crate::sync::Mutex<(u32, Option<Waker>)>,
}

impl super::Run for Ends {
    fn completed(&self, _node: u32, outcome: Outcome) {
        assert_eq!(outcome, Ok(7));
        let mut told = crate::sync::lock(&self.told);
        told.0 += 1;
        let waker = told.1.take();
        drop(told);
        waker.into_iter().for_each(Waker::wake);
    }

    fn nudge(&self) {
        let waker = crate::sync::lock(&self.told).1.take();
        waker.into_iter().for_each(Waker::wake);
    }
}

impl super::Ends for Ends {
    fn any(&self) -> bool {
        crate::sync::lock(&self.told).0 > 0
    }

    fn register(&self, waker: &Waker) {
        let waker = waker.clone();
        let old = crate::sync::lock(&self.told).1.replace(waker);
        drop(old);
    }
}

impl Bed {
    /// A run of one node: it is launched, or stands in line, and its end is awaited; or it is dropped after one poll.
    fn spawn_run(&self, dropped: bool) -> JoinHandle<()> {
        let (attachment, workq) = (Arc::clone(&self.attachment), self.workq.clone());
        spawn(move || {
            let ends = Arc::new(Ends::default());
            let told = Arc::clone(&ends) as Arc<dyn super::Run>;
            let mut line = pin!(super::Line::new(&workq));
            let (task, mut launched) = (Task::new(), false);
            let waker = task.waker();
            let mut cx = Context::from_waker(&waker);
            loop {
                line.as_mut().polled();
                if !launched {
                    let now = line
                        .as_mut()
                        .launch(&attachment, prepared(), Arc::clone(&told), 0);
                    launched = now.unwrap();
                }
                if !launched {
                    let prepare = || Ok(prepared());
                    let line = line.as_mut();
                    match line.poll_launch(&mut cx, &attachment, &told, 0, &prepare) {
                        Poll::Ready(submitted) => {
                            submitted.unwrap();
                            launched = true;
                        }
                        Poll::Pending => {}
                    }
                }
                if launched {
                    let over = line.as_mut().poll_ends(&mut cx, &*ends);
                    if over.is_ready() {
                        return;
                    }
                }
                if dropped {
                    if launched {
                        line.as_mut().abandon();
                    }
                    return;
                }
                task.sleep();
            }
        })
    }
}

#[test]
fn a_run_is_told_by_the_real_wait_cycle_though_another_one_looks() {
    on_a_workq(2, |bed| {
        let workq = bed.workq.clone();
        let looker = spawn(move || workq.0.turn());
        bed.run([bed.spawn_run(false), looker]);
    });
}

#[test]
fn a_run_and_an_op_on_one_slot_are_both_told() {
    on_a_workq(1, |bed| bed.run([bed.spawn_run(false), bed.spawn_op()]));
}

#[test]
fn a_run_in_line_is_told_though_the_one_before_it_is_dropped() {
    on_a_workq(1, |bed| {
        bed.run([bed.spawn_run(true), bed.spawn_run(false)])
    });
}

#[test]
fn a_run_that_sleeps_goes_on_as_the_new_mode_says() {
    on_a_workq(1, |_| {
        let bed = Bed::on(1, true);
        bed.run([bed.spawn_run(false)]);
    });
}

#[test]
fn a_run_is_told_once_though_it_is_nudged_meanwhile() {
    check(3, || {
        let ends = Arc::new(Ends::default());
        let slot = Arc::new(Slot::new());
        let target = Target::Run(Arc::clone(&ends) as Arc<dyn super::Run>, 3);
        let generation = slot.fill(held(), Some(target));
        let reaper = {
            let slot = Arc::clone(&slot);
            spawn(move || {
                if let Some(nudged) = slot.nudge() {
                    nudged.wake();
                }
                match slot.complete(generation, Ok(7)) {
                    Completed::Free(Some(Told::Run(run, 3, outcome))) => run.completed(3, outcome),
                    _ => panic!("the run is told"),
                }
            })
        };
        let task = Task::new();
        loop {
            super::Ends::register(&*ends, &task.waker());
            if super::Ends::any(&*ends) {
                break;
            }
            task.sleep();
        }
        reaper.join().unwrap();
        assert_eq!(slot.fill(held(), None), generation + 1, "free, and once");
    });
}
