//! Checks of duty 5: the queue signals once for each `arm`, never without one, and no completion is
//! missed.

use crate::rig::{Rig, Shape, Subject, depths, watched};
use tokio_doca::device::contract::Armed;

const CELL: usize = 1024;
const ROUNDS: u64 = 50;

/// Checks duty 5: the next completion after `arm` signals once. Later completions, and those before
/// any `arm`, do not signal. If a completion is waiting, `arm` returns `Ready` or the queue
/// signals.
///
/// # Panics
///
/// Panics if a signal is missing, or if there is one too many.
pub fn armed_completions_signal_once(subject: impl Into<Subject>) {
    watched("armed_completions_signal_once", subject, |subject| {
        for depth in depths(subject) {
            nothing_signals_unless_armed(subject, depth);
            each_arm_signals_once(subject, depth);
            waiting_completions_are_told(subject, depth);
        }
    });
}

fn nothing_signals_unless_armed(subject: &Subject, depth: u32) {
    let mut rig = Rig::new(subject, depth, CELL);
    for round in 0..ROUNDS as u32 {
        let some: Vec<u32> = (0..1 + round % depth).collect();
        rig.round(&some, &Shape::plain(CELL, subject.within(100)));
    }
    let signals = rig.signals() + rig.finish();
    assert_eq!(
        signals, 0,
        "duty 5: nothing was armed, and the queue signalled"
    );
}

fn each_arm_signals_once(subject: &Subject, depth: u32) {
    let mut rig = Rig::new(subject, depth, CELL);
    let mut signals = 0;
    for round in 0..ROUNDS as u32 {
        arm_and_look(&mut rig);
        if round % 3 == 0 {
            // Arming twice has the effect of arming once.
            arm_and_look(&mut rig);
        }
        let some: Vec<u32> = (0..1 + round % depth.min(5)).collect();
        for &index in &some {
            rig.prepare(index, &Shape::plain(CELL, subject.within(100)));
        }
        rig.submit_all(&some);
        signals += rig.wait_for_signal("duty 5: armed, and a Job completed");
        rig.drain();
        // The queue is not armed for these Jobs.
        rig.round(&some, &Shape::plain(CELL, subject.within(50)));
    }
    signals += rig.signals() + rig.finish();
    assert_eq!(signals, ROUNDS, "duty 5: one signal per arm");
}

/// Arms the queue, and checks that no completion is waiting.
fn arm_and_look(rig: &mut Rig) {
    rig.arm();
    let reaped = rig.reap(rig.depth() as usize);
    assert_eq!(reaped, 0, "duty 1: a completion with nothing in flight");
}

fn waiting_completions_are_told(subject: &Subject, depth: u32) {
    let mut rig = Rig::new(subject, depth, CELL);
    let shape = Shape::plain(CELL, subject.within(100));
    for _ in 0..ROUNDS {
        arm_and_look(&mut rig);
        rig.prepare(0, &shape);
        rig.submit_all(&[0]);
        rig.wait_for_signal("duty 5: armed, and a Job completed");
        // The completion of the Job is waiting now.
        let answer = rig.arm();
        if answer == Armed::Armed {
            rig.wait_for_signal("duty 5: a completion waits, and `arm` did not say Ready");
        }
        rig.drain();
        if answer == Armed::Ready {
            // After `Ready` the crate reaps. If a task's own Job is not among the completions, the
            // task sleeps without another `arm`.
            rig.signals();
            rig.prepare(0, &shape);
            rig.submit_all(&[0]);
            rig.wait_for_signal("duty 5: `arm` said Ready, and must have armed as well");
            rig.drain();
        }
        rig.signals();
    }
    rig.finish();
}

/// Checks duty 5 in a race: a Job completes while the caller arms. The caller sleeps if `arm` or a
/// poll has found nothing.
///
/// # Panics
///
/// Panics if the caller sleeps for ever.
pub fn no_completion_is_slept_through(subject: impl Into<Subject>) {
    watched("no_completion_is_slept_through", subject, |subject| {
        for depth in depths(subject) {
            let mut rig = Rig::new(subject, depth, CELL);
            let shape = Shape::plain(CELL, subject.within(200));
            for round in 0..300 {
                let some: Vec<u32> = (0..1 + round % depth.min(3)).collect();
                for &index in &some {
                    rig.prepare(index, &shape);
                }
                rig.submit_all(&some);
                for _ in 0..rig.dice.below(600) {
                    std::hint::spin_loop();
                }
                while rig.in_flight() > 0 {
                    let answer = rig.arm();
                    // After `Armed` a caller may sleep at once, since `arm` polls itself. Every
                    // other round does so.
                    let believed = answer == Armed::Armed && round % 2 == 0;
                    if believed || rig.reap(1) == 0 {
                        rig.wait_for_signal("duty 5: armed, and nothing waited");
                    }
                }
                // Clears a signal of a completion that came between `arm` and the poll.
                rig.signals();
            }
            rig.finish();
        }
    });
}
