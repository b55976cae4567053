//! Loom models of the board: another thread adds completions while the run is polled, sleeps, or is
//! dropped.
//!
//! `reactor/loom/run.rs` models the whole wait, on a WorkQ.
#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::sync::Arc;
use std::task::Waker;

use super::board::{Board, End};
use crate::reactor::Run;
use crate::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Release};
use crate::sync::loom::{Task, TrackedCell, check, mutant, spawn};
use crate::sync::{Mutex, lock};

/// Waits for `count` completions as a run does: takes, registers, checks once more, sleeps.
fn await_ends(board: &Board, count: usize, sleep: fn(&Board, &Task)) -> Vec<u32> {
    let (task, mut ends, mut seen) = (Task::new(), Vec::new(), Vec::new());
    loop {
        if board.any() {
            board.take(&mut ends);
            seen.extend(ends.drain(..).map(|(node, _): End| node));
        }
        if seen.len() == count {
            seen.sort_unstable();
            return seen;
        }
        sleep(board, &task);
    }
}

fn register_then_look(board: &Board, task: &Task) {
    board.register(&task.waker());
    if !board.any() {
        task.sleep();
    }
}

fn run_is_told(sleep: fn(&Board, &Task)) {
    check(3, move || {
        let board = Arc::new(Board::new(2));
        let reapers = [0, 1].map(|node| {
            let board = Arc::clone(&board);
            spawn(move || board.completed(node, Ok(7)))
        });
        assert_eq!(await_ends(&board, 2, sleep), [0, 1], "each once");
        for reaper in reapers {
            reaper.join().unwrap();
        }
        assert!(!board.any());
    });
}

#[test]
fn a_run_that_registers_and_then_looks_is_told_of_every_end_once() {
    run_is_told(register_then_look);
}

#[test]
fn mutant_that_looks_and_then_registers_is_found() {
    mutant("deadlock", || {
        run_is_told(|board, task| {
            if !board.any() {
                board.register(&task.waker());
                task.sleep();
            }
        });
    });
}

#[test]
fn a_run_that_is_dropped_leaves_its_ends_to_the_next() {
    check(3, || {
        let board = Arc::new(Board::new(1));
        let reaper = {
            let board = Arc::clone(&board);
            spawn(move || board.completed(0, Ok(7)))
        };
        let task = Task::new();
        board.register(&task.waker());
        board.forget_waker();
        reaper.join().unwrap();
        let mut ends = Vec::new();
        board.take(&mut ends);
        assert_eq!(ends, [(0, Ok(7))], "for the next run to wait for");
    });
}

/// A toy of a board: the lines in which a completion meets the run that waits for it. `wrong`
/// selects a way to get them wrong.
struct Toy {
    any: AtomicBool,
    told: Mutex<(u32, Option<Waker>)>,
    /// Models what a node wrote. A run that sees the node's completion must see it.
    written: TrackedCell,
    wrong: Wrong,
}

#[derive(Clone, Copy, PartialEq)]
enum Wrong {
    Nothing,
    /// The waker is taken in one critical section, and the completion is added in the next.
    TwoSections,
    /// `any` is set outside the lock, after the waker was taken and woken.
    LateMark,
}

impl Toy {
    fn completed(&self) {
        self.written.write();
        let mut told = lock(&self.told);
        if self.wrong == Wrong::TwoSections {
            let waker = told.1.take();
            drop(told);
            waker.into_iter().for_each(Waker::wake);
            told = lock(&self.told);
        }
        told.0 += 1;
        if self.wrong != Wrong::LateMark {
            self.any.store(true, Release);
        }
        let waker = match self.wrong {
            Wrong::TwoSections => None,
            _ => told.1.take(),
        };
        drop(told);
        if self.wrong == Wrong::LateMark {
            ::loom::thread::yield_now();
            waker.into_iter().for_each(Waker::wake);
            self.any.store(true, Release);
            return;
        }
        waker.into_iter().for_each(Waker::wake);
    }
}

fn toy_is_awaited(wrong: Wrong) {
    check(3, move || {
        let toy = Arc::new(Toy {
            any: AtomicBool::new(false),
            told: Mutex::new((0, None)),
            written: TrackedCell::new(),
            wrong,
        });
        let reaper = {
            let toy = Arc::clone(&toy);
            spawn(move || toy.completed())
        };
        let task = Task::new();
        while !toy.any.load(Acquire) {
            let old = lock(&toy.told).1.replace(task.waker());
            drop(old);
            if toy.any.load(Acquire) {
                break;
            }
            task.sleep();
        }
        toy.written.read();
        reaper.join().unwrap();
    });
}

#[test]
fn the_toy_board_is_right() {
    toy_is_awaited(Wrong::Nothing);
}

#[test]
fn mutant_that_takes_the_waker_before_it_tells_is_found() {
    mutant("deadlock", || toy_is_awaited(Wrong::TwoSections));
}

#[test]
fn mutant_that_wakes_before_the_end_can_be_seen_is_found() {
    mutant("deadlock", || toy_is_awaited(Wrong::LateMark));
}
