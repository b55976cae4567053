//! Checks of duty 5 for waits that the peer completes.

use std::thread;
use std::time::Duration;

use super::end::{End, Ended, Plan, Table};
use super::pair::Pair;
use super::{Peers, watched};
use crate::rig::wait_for;
use tokio_doca::device::contract::Armed;

const CELL: usize = 1024;
const ROUNDS: u64 = 50;

/// Checks duty 5: a message signals the queue that receives it, and the completion of a Job signals
/// the queue of its sender: once for each `arm`, and not without one.
///
/// # Panics
///
/// Panics if a signal is missing, or if there is one too many.
pub fn armed_messages_signal_once(peers: impl Into<Peers>) {
    watched("armed_messages_signal_once", peers, |peers| {
        nothing_signals_unless_armed(peers);
        each_arm_signals(peers);
    });
}

fn nothing_signals_unless_armed(peers: &Peers) {
    let mut pair = Pair::new(peers, Plan::new(peers, CELL));
    for _ in 0..ROUNDS {
        pair.works(0..pair.plan.jobs);
    }
    let signals: u64 = pair.ends.iter().map(|end| end.signals.count()).sum();
    assert_eq!(
        signals, 0,
        "duty 5: nothing was armed, and the queue signalled"
    );
    pair.finish();
}

fn each_arm_signals(peers: &Peers) {
    let mut pair = Pair::new(peers, Plan::new(peers, CELL));
    let (mut arms, mut signals) = ([0, 0], [0, 0]);
    for round in 0..ROUNDS as usize {
        // Alternates the direction of the message.
        let side = round % 2;
        for one in [0, 1] {
            while !pair.ends[one].receives[0].in_flight {
                pair.post(one, 0, CELL / 2);
            }
        }
        let verb = pair.message(round as u32);
        pair.prepare(side, 0, verb, pair.longest());
        for one in [0, 1] {
            pair.arm_and_look(one, &mut arms);
        }
        pair.submit(side, &[0]);
        // Both the receiver and the sender sleep until their queue signals. A signal may come
        // without a completion; then the side arms again.
        let mut over = [false; 2];
        let what = "duty 5: armed, and a message came, or a Job ended: the queue did not signal";
        wait_for(peers.deadline, what, || {
            for one in [0, 1] {
                let signalled = pair.ends[one].signals.count();
                if signalled == 0 {
                    continue;
                }
                signals[one] += signalled;
                pair.ends[one].queue.clear();
                for ended in pair.ends[one].reap(8) {
                    let waited_for = (one == side) == (ended.table == Table::Jobs);
                    over[one] |= waited_for;
                    pair.settle(one, &ended);
                }
                if !over[one] {
                    over[one] = pair.arm_and_look(one, &mut arms);
                }
            }
            over == [true; 2]
        });
    }
    for one in [0, 1] {
        signals[one] += pair.ends[one].signals.count();
        assert!(
            signals[one] <= arms[one],
            "duty 5: one signal per arm: {} of {}",
            signals[one],
            arms[one]
        );
    }
    pair.finish();
}

impl Pair {
    /// Arms until no completion is waiting. Returns true if there was one.
    fn arm_and_look(&mut self, side: usize, arms: &mut [u64; 2]) -> bool {
        let mut found = false;
        wait_for(
            self.deadline(),
            "duty 5: `arm` says Armed when nothing waits",
            || {
                arms[side] += 1;
                let answer = self.ends[side].queue.arm();
                let ended = self.ends[side].reap(8);
                for ended in &ended {
                    self.settle(side, ended);
                }
                found |= !ended.is_empty();
                answer == Armed::Armed && ended.is_empty()
            },
        );
        found
    }
}

/// Checks duty 5 in a race: messages come at any moment while the receiver arms. The receiver
/// sleeps if `arm` or a poll has found nothing.
///
/// # Panics
///
/// Panics if the receiver sleeps for ever.
pub fn no_message_is_slept_through(peers: impl Into<Peers>) {
    watched("no_message_is_slept_through", peers, |peers| {
        let mut pair = Pair::new(peers, Plan::new(peers, CELL));
        for round in 0..60 {
            let side = round % 2;
            let all = pair.plan.jobs.min(pair.plan.receives);
            let mut jobs = Vec::new();
            for index in 0..all {
                // Receives that are still posted stay, and are used first.
                if !pair.ends[1 - side].receives[index as usize].in_flight {
                    pair.post(1 - side, index, CELL / 2);
                }
                let len = pair.dice.below(pair.longest() + 1);
                let verb = pair.message(index);
                pair.prepare(side, index, verb, len);
                pair.announce(side, index);
                jobs.push((index, pair.job(side, index)));
            }
            let spins: Vec<usize> = jobs.iter().map(|_| pair.dice.below(2000)).collect();
            let deadline = pair.deadline();
            let (one, other) = pair.ends.split_at_mut(1);
            let (sender, sleeper) = match side {
                0 => (&mut one[0], &mut other[0]),
                _ => (&mut other[0], &mut one[0]),
            };
            // Each side waits for one kind of completion, by the signals of its own queue.
            let believes = round % 4 < 2;
            let left = sleeper.in_flight(Table::Receives) - all as usize;
            let (sent, received) = thread::scope(|scope| {
                let sends = scope.spawn(move || {
                    for (job, spins) in jobs.iter().zip(spins) {
                        (0..spins).for_each(|_| std::hint::spin_loop());
                        wait_for(deadline, "duty 3: it takes a Job within its depth", || {
                            sender.submit(&[*job]).accepted == 1
                        });
                    }
                    sleep_until(sender, Table::Jobs, 0, believes, deadline)
                });
                let received = sleep_until(sleeper, Table::Receives, left, believes, deadline);
                (sends.join(), received)
            });
            let sent = sent.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            for ended in received {
                pair.settle(1 - side, &ended);
            }
            for ended in sent {
                pair.settle(side, &ended);
            }
        }
        pair.finish();
    });
}

/// Sleeps until at most `left` are in flight.
fn sleep_until(
    end: &mut End,
    table: Table,
    left: usize,
    believes: bool,
    deadline: Duration,
) -> Vec<Ended> {
    let mut ended = Vec::new();
    while end.in_flight(table) > left {
        let armed = end.queue.arm() == Armed::Armed;
        // After `Armed` a caller may sleep at once, since `arm` polls itself. `believes` says
        // whether this caller does so.
        let at_most = 1 + end.dice.below(4);
        let found = if armed && believes {
            Vec::new()
        } else {
            end.reap(at_most)
        };
        if found.is_empty() && armed {
            let signals = end.signals.wait_for_one(deadline);
            assert!(
                signals > 0,
                "duty 5: armed, and what is waited for came, or will: the queue did not signal"
            );
            end.queue.clear();
            ended.extend(end.reap(at_most));
        }
        ended.extend(found);
    }
    ended
}
