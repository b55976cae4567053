//! Models of the gate, and of the wait cycle of an operation around it: register, arm, poll, sleep.

use std::sync::Arc;

use super::super::gate::Gate;
use super::{Bed, end, held, on_a_workq};
use crate::reactor::slots::{OwnRest, Slot};
use crate::reactor::tables::Changed;
use crate::reactor::workq::WorkQ;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use crate::sync::loom::{Task, check, mutant, spawn};
use crate::sync::{UnsafeCell, lock, seq_cst_order};

/// A queue with one job, which `device` completes. Only one thread at a time may reap the queue.
struct Bench {
    gate: Gate,
    done: AtomicBool,
    armed: AtomicBool,
    /// Only the thread in the gate accesses this cell.
    reaped: UnsafeCell<u32>,
    slot: Slot,
    generation: u32,
}

// SAFETY: `reaped` is reached only in the gate.
unsafe impl Sync for Bench {}

impl Bench {
    fn new() -> Arc<Bench> {
        let slot = Slot::new();
        let generation = slot.fill_alone(held(), None);
        Arc::new(Bench {
            gate: Gate::new(),
            done: AtomicBool::new(false),
            armed: AtomicBool::new(false),
            reaped: UnsafeCell::new(0),
            slot,
            generation,
        })
    }

    /// Polls the queue. Returns true if the job has completed.
    fn poll(&self) -> bool {
        // The cell is open during the poll, so that a second reaper is caught.
        self.reaped.with_mut(|reaped| {
            seq_cst_order();
            let over = self.done.load(SeqCst) && self.done.swap(false, SeqCst);
            // SAFETY: only the thread in the gate calls this, except in a mutant, which loom must
            // catch.
            unsafe { *reaped += u32::from(over) };
            over
        })
    }

    fn reap(&self) {
        if self.poll() {
            end(&self.slot, self.generation);
        }
    }

    /// Does as `Shared::turn`: reaps, and once more for each refused thread.
    fn turn(&self) {
        let Some(mut inside) = self.gate.enter() else {
            return;
        };
        loop {
            self.reap();
            match inside.leave() {
                Ok(_) => return,
                Err(again) => inside = again,
            }
        }
    }

    /// Polls as a busy operation does: does nothing while another thread is in the gate, and does
    /// not ask that thread to poll once more.
    fn look(&self) {
        let mut inside = self.gate.try_enter();
        while let Some(now) = inside {
            self.reap();
            inside = now.leave().err();
        }
    }

    /// Polls as a busy operation does that may end its own job. Returns true if it has ended it.
    fn look_for_own(&self) -> bool {
        let Some(inside) = self.gate.try_enter() else {
            return false;
        };
        let mut rest = OwnRest::new();
        let ended = self.poll() && self.slot.end_own(self.generation, Ok(7), &mut rest);
        if inside.leave().is_err() {
            self.turn();
        }
        ended
    }

    fn arm(&self) {
        self.armed.store(true, SeqCst);
        seq_cst_order();
    }

    /// Completes the job, and if the queue is armed, runs the turn for its signal.
    fn device(&self, turn: fn(&Bench)) {
        self.done.store(true, SeqCst);
        seq_cst_order();
        if self.armed.load(SeqCst) && self.armed.swap(false, SeqCst) {
            turn(self);
        }
    }
}

/// An operation waits for the device, while another thread takes a turn at any moment.
fn wait_cycle(poll: fn(&Bench), turn: fn(&Bench)) {
    wait_cycle_beside(poll, turn, turn);
}

/// Does as `wait_cycle`, but the other thread polls by `look`.
fn wait_cycle_beside(poll: fn(&Bench), turn: fn(&Bench), look: fn(&Bench)) {
    check(3, move || {
        let bench = Bench::new();
        let device = {
            let bench = Arc::clone(&bench);
            spawn(move || bench.device(turn))
        };
        let looker = {
            let bench = Arc::clone(&bench);
            spawn(move || look(&bench))
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
fn an_op_that_arms_and_then_looks_is_told_though_a_busy_one_looks() {
    wait_cycle_beside(arm_then_look, Bench::turn, Bench::look);
}

#[test]
fn mutant_of_a_busy_look_that_does_not_look_for_others_is_found() {
    mutant("deadlock", || {
        let look = |bench: &Bench| {
            if let Some(inside) = bench.gate.try_enter() {
                bench.reap();
                inside.leave_now();
            }
        };
        wait_cycle_beside(arm_then_look, Bench::turn, look);
    });
}

#[test]
fn mutant_that_arms_and_sleeps_after_a_look_that_nobody_owes_it_is_found() {
    mutant("deadlock", || {
        let poll = |bench: &Bench| {
            bench.arm();
            bench.look();
        };
        wait_cycle_beside(poll, Bench::turn, Bench::look);
    });
}

#[test]
fn an_op_ends_its_own_job_or_a_turn_does() {
    check(3, || {
        let bench = Bench::new();
        bench.done.store(true, SeqCst);
        let turn = {
            let bench = Arc::clone(&bench);
            spawn(move || bench.turn())
        };
        let ended = bench.look_for_own();
        turn.join().unwrap();
        assert_eq!(bench.slot.take(), Some(Ok(7)), "ended by one: {ended}");
        let next = bench.slot.fill_alone(held(), None);
        assert_eq!(next, bench.generation + 1, "free, and once");
    });
}

/// Another thread polls by `look` beside a real operation that sleeps. If `in_reap`, the queue
/// polls in `reap`, otherwise before.
fn an_op_sleeps_beside_a_look(in_reap: bool, look: fn(&Bed)) {
    on_a_workq(1, move |_| {
        let bed = Arc::new(Bed::with(1, |queue| queue.polls_in_reap = in_reap));
        let looker = {
            let bed = Arc::clone(&bed);
            spawn(move || look(&bed))
        };
        bed.run([bed.spawn_op(), looker]);
    });
}

#[test]
fn an_op_that_sleeps_is_told_though_a_busy_one_looks() {
    for in_reap in [false, true] {
        an_op_sleeps_beside_a_look(in_reap, |bed| {
            bed.workq.0.poll_queue(&bed.attachment.queue, 1);
        });
    }
}

#[test]
fn mutant_of_the_real_look_that_does_not_look_for_others_is_found() {
    mutant("deadlock", || {
        an_op_sleeps_beside_a_look(true, |bed| {
            let inside = bed.workq.0.gate.try_enter();
            inside.into_iter().for_each(|inside| _ = inside.leave_now());
        });
    });
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

/// A change of a state is reported, perhaps while another thread polls. The watcher must be
/// notified once.
fn says_a_change(say: fn(&WorkQ, Changed)) {
    on_a_workq(3, move |bed| {
        let looker = {
            let workq = bed.workq.clone();
            spawn(move || workq.0.turn())
        };
        let told = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&told);
        let tell: Changed = Arc::new(move || _ = counted.fetch_add(1, SeqCst));
        say(&bed.workq, tell);
        looker.join().unwrap();
        assert_eq!(told.load(SeqCst), 1, "told once");
    });
}

#[test]
fn a_change_that_is_said_amid_a_look_is_told_once() {
    says_a_change(|workq, change| workq.0.changed(change));
}

#[test]
fn mutant_that_says_a_change_after_the_look_is_found() {
    mutant("told once", || {
        says_a_change(|workq, change| {
            workq.0.turn();
            lock(&workq.0.changes).push(change);
        });
    });
}

/// Takes a turn that leaves the gate without polling once more for refused threads.
fn turn_without_mark(bench: &Bench) {
    if let Some(inside) = bench.gate.enter() {
        bench.reap();
        inside.leave_now();
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
