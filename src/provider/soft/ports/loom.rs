//! Loom models of the ready set: a port that becomes ready is taken, and no thread sleeps through
//! that.
#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::sync::Arc;

use super::flags::Flags;
use super::ready_set::ReadySet;
use crate::device::Signal;
use crate::sync::atomic::{AtomicU64, Ordering::SeqCst};
use crate::sync::loom::{check, mutant, spawn};

fn is_rung(signal: &Signal) -> bool {
    let fd = signal.as_fd().try_clone_to_owned().unwrap();
    File::from(fd).read(&mut [0; 8]).is_ok()
}

#[test]
fn numbers_that_are_set_while_one_takes_are_taken_once() {
    check(3, || {
        let flags = Arc::new(Flags::new());
        let setters = [&[3, 70][..], &[4]].map(|numbers| {
            let flags = Arc::clone(&flags);
            spawn(move || numbers.iter().for_each(|&number| flags.set(number)))
        });
        let mut taken: Vec<u32> = (0..2).filter_map(|from| flags.take(from)).collect();
        for setter in setters {
            setter.join().unwrap();
        }
        taken.extend(std::iter::from_fn(|| flags.take(0)));
        taken.sort_unstable();
        assert_eq!(taken, [3, 4, 70]);
        assert!(!flags.any());
    });
}

/// Models the two words of a set, as `Flags` takes from them. `takes` clears them in one of two
/// orders.
fn is_not_lost(takes: fn(&[AtomicU64; 2]) -> u64) -> impl Fn() + Send + Sync {
    move || {
        let words = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let setter = {
            let words = Arc::clone(&words);
            spawn(move || {
                words[1].fetch_or(1, SeqCst);
                words[0].fetch_or(1, SeqCst);
            })
        };
        let taken = takes(&words);
        setter.join().unwrap();
        let left = words[0].load(SeqCst) != 0;
        assert!(taken != 0 || left, "lost");
    }
}

#[test]
fn mutant_that_takes_numbers_before_it_clears_their_summary_is_found() {
    check(
        3,
        is_not_lost(|words| {
            words[0].swap(0, SeqCst);
            words[1].swap(0, SeqCst)
        }),
    );
    mutant("lost", || {
        check(
            3,
            is_not_lost(|words| {
                let taken = words[1].swap(0, SeqCst);
                words[0].swap(0, SeqCst);
                taken
            }),
        );
    });
}

/// Models an endpoint that becomes ready, or that the reaper puts back, while another thread is
/// about to sleep.
fn is_woken(
    before: bool,
    marks: fn(&ReadySet),
    looks: fn(&ReadySet) -> bool,
) -> impl Fn() + Send + Sync {
    move || {
        let signal = Arc::new(Signal::new().unwrap());
        let ready_set = Arc::new(ReadySet::new(Arc::clone(&signal)));
        if before {
            ready_set.set(5);
        }
        let sleeper = {
            let ready_set = Arc::clone(&ready_set);
            spawn(move || looks(&ready_set))
        };
        marks(&ready_set);
        let found = sleeper.join().unwrap();
        assert!(found || is_rung(&signal), "slept through it");
    }
}

fn arm_and_ask(ready_set: &ReadySet) -> bool {
    ready_set.arm();
    ready_set.any()
}

#[test]
fn who_arms_and_then_asks_is_rung_for_what_is_raised() {
    check(
        4,
        is_woken(false, |ready_set| ready_set.mark_ready(5), arm_and_ask),
    );
}

#[test]
fn mutant_that_asks_what_is_raised_and_then_arms_is_found() {
    fn ask_and_arm(ready_set: &ReadySet) -> bool {
        let found = ready_set.any();
        ready_set.arm();
        found
    }
    mutant("slept through it", || {
        check(
            4,
            is_woken(false, |ready_set| ready_set.mark_ready(5), ask_and_arm),
        );
    });
}

/// Takes the port, as if to do a part of its work, and puts it back.
fn take_and_leave(ready_set: &ReadySet) {
    let number = ready_set.take(0).unwrap();
    ready_set.set(number);
}

#[test]
fn who_arms_while_another_one_looks_is_rung_for_the_rest() {
    fn take_and_pass_on(ready_set: &ReadySet) {
        take_and_leave(ready_set);
        ready_set.pass_on();
    }
    check(4, is_woken(true, take_and_pass_on, arm_and_ask));
}

#[test]
fn mutant_that_leaves_the_rest_without_a_word_is_found() {
    mutant("slept through it", || {
        check(4, is_woken(true, take_and_leave, arm_and_ask));
    });
}
