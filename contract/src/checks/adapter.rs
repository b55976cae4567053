//! Adapter duties 1 to 3, and registrar duties 1 and 2: what a device says of itself, which queue
//! has which job, and which memory it reaches.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use crate::rig::{Arena, Rig, Shape, Subject, watched};
use tokio_doca::device::RegistrationUse;

const CELL: usize = 1024;
const ROUNDS: usize = 20;

/// Adapter duty 3: the device says the same of itself each time, whatever is open.
///
/// # Panics
///
/// If `Adapter::info` changes.
pub fn a_device_says_the_same_of_itself(subject: impl Into<Subject>) {
    watched("a_device_says_the_same_of_itself", subject, |subject| {
        let adapter = subject.device.adapter();
        let first = adapter.info().clone();
        let same = || assert_eq!(*adapter.info(), first, "adapter duty 3: `info` changed");
        same();
        let mut rig = Rig::new(subject, 1, CELL);
        same();
        rig.round(&[0], &Shape::plain(CELL, subject.within(100)));
        rig.finish();
        same();
    });
}

/// Adapter duty 1: two queues that are open at once do their own jobs, and no others.
///
/// # Panics
///
/// If `open_queue` returns a queue twice, or a queue has the other's completions.
pub fn each_queue_is_new(subject: impl Into<Subject>) {
    watched("each_queue_is_new", subject, |subject| {
        let depth = subject.max_depth().min(8);
        let [mut one, mut other] = [depth, 1].map(|depth| Rig::new(subject, depth, CELL));
        let same = Arc::ptr_eq(one.queue(), other.queue());
        assert!(!same, "adapter duty 1: `open_queue` returned a queue twice");
        let (all, shape) = (0..depth, Shape::plain(CELL, subject.within(100)));
        naming("adapter duty 1: each queue is new", || {
            for _ in 0..ROUNDS {
                for index in all.clone() {
                    one.prepare(index, &shape);
                    one.submit_all(&[index]);
                    // Its own job, and whatever it has of the other queue's.
                    other.round(&[0], &shape);
                }
                one.drain();
            }
        });
        one.finish();
        other.finish();
    });
}

/// Registrar duties 1 and 2, and adapter duty 2: memory is reached by its key on every queue,
/// whatever else is registered, and taken back, meanwhile.
///
/// # Panics
///
/// If a job does not reach the memory that its keys are of.
pub fn each_registration_stands_alone(subject: impl Into<Subject>) {
    watched("each_registration_stands_alone", subject, |subject| {
        let arena = || Arena::new(&subject.device, CELL, RegistrationUse::Dma);
        let shape = Shape::plain(CELL, subject.within(CELL / 2 - 64));
        naming("registrar duties 1 and 2: a key names its memory", || {
            let before = arena();
            let mut one = Rig::new(subject, 1, CELL);
            let between = arena();
            let mut other = Rig::new(subject, 1, CELL);
            let after = arena();
            for gone in [None, Some(between), Some(before), Some(after)] {
                drop(gone);
                one.round(&[0], &shape);
                other.round(&[0], &shape);
            }
            one.finish();
            other.round(&[0], &shape);
            other.finish();
        });
    });
}

/// Names a duty in whatever the check says: its jobs fail in the words of other duties.
fn naming(duty: &str, check: impl FnOnce()) {
    let Err(panic) = catch_unwind(AssertUnwindSafe(check)) else {
        return;
    };
    match panic.downcast::<String>() {
        Ok(text) => panic!("{duty} ({text})"),
        Err(other) => resume_unwind(other),
    }
}
