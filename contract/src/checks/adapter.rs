//! Checks of adapter duties 1 to 3 and registrar duties 1 and 2: the device's information, the jobs
//! of each queue, and the memory that keys give access to.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use crate::rig::{Arena, Rig, Shape, Subject, watched};
use tokio_doca::device::RegistrationUse;

const CELL: usize = 1024;
const ROUNDS: usize = 20;

/// Checks adapter duty 3: the device returns the same information each time, whatever is open.
///
/// # Panics
///
/// Panics if `Adapter::info` changes.
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

/// Checks adapter duty 1: two queues that are open at once complete their own jobs only.
///
/// # Panics
///
/// Panics if `open_queue` returns the same queue twice, or if a queue returns the other's
/// completions.
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
                    // Reaps this queue's job, and any completion that wrongly comes from the other
                    // queue.
                    other.round(&[0], &shape);
                }
                one.drain();
            }
        });
        one.finish();
        other.finish();
    });
}

/// Checks registrar duties 1 and 2 and adapter duty 2: a key gives access to its memory on every
/// queue, while other memory is registered and unregistered.
///
/// # Panics
///
/// Panics if a job does not reach the memory that its keys belong to.
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

/// Prefixes the panic message of a check with a duty, since its jobs fail with messages of other
/// duties.
fn naming(duty: &str, check: impl FnOnce()) {
    let Err(panic) = catch_unwind(AssertUnwindSafe(check)) else {
        return;
    };
    match panic.downcast::<String>() {
        Ok(text) => panic!("{duty} ({text})"),
        Err(other) => resume_unwind(other),
    }
}
