//! Adapter duties 1 to 4, and registrar duties 1 and 2: what a device says of itself, which queue has
//! which job and reaches which memory, and where a counter lies.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use super::arena::Arena;
use super::dice::Dice;
use super::rig::Rig;
use super::shape::Shape;
use super::subject::Subject;
use super::suite::{wait_for, watched};
use super::sync_event::{self, Events, step};
use crate::device::{EventConfig, EventJob, Unit, Use};
use crate::error::ErrorKind;
use crate::{Access, BufInventory, Mmap};

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
        let arena = || Arena::new(&subject.device, CELL, Use::Dma);
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

/// Adapter duty 4: a counter in memory of the application's is those eight bytes, begins with what
/// is there, and lets go of the memory. Devices that refuse such memory pass.
///
/// # Panics
///
/// If the counter lies elsewhere, other bytes change, or the memory is kept.
pub fn a_counter_lies_where_it_was_told(events: impl Into<Events>) {
    sync_event::watched("a_counter_lies_where_it_was_told", events, |events| {
        const AT: usize = 64;
        let device = &events.device;
        let access = Access::LOCAL_READ_WRITE | Access::DPU_READ_WRITE;
        let mmap = Mmap::builder().device(device).access(access).alloc(4096);
        let mmap = mmap.expect("memory");
        let mut bytes = Dice::new(4).bytes(mmap.len());
        let whole = || BufInventory::with_capacity(1).buf(&mmap, ..).expect("all");
        let filled = whole();
        filled.set_data(0, bytes.len()).expect("nobody has it");
        filled.copy_in(0, &bytes).expect("nobody has it");
        let mut config = EventConfig::new(Unit::Cpu, Unit::Dpu);
        let backing = mmap.counter("a counter", device, AT);
        config.backing = Some(backing.expect("eight bytes of it"));
        let counter = match device.adapter().open_event(config) {
            Err(error) if error.kind() == ErrorKind::NotSupported => return,
            counter => counter.expect("a sync event in memory"),
        };
        let mut value = u64::from_ne_bytes(bytes[AT..AT + 8].try_into().expect("eight"));
        for job in [EventJob::Get, EventJob::Add(3), EventJob::Set(77)] {
            let answer = step(&mut value, job);
            assert_eq!(
                counter.perform(job),
                Ok(answer),
                "adapter duty 4: the counter is the eight bytes"
            );
            bytes[AT..AT + 8].copy_from_slice(&value.to_ne_bytes());
            let mut found = vec![0; bytes.len()];
            filled.copy_out(0, &mut found).expect("nobody has it");
            assert!(
                found == bytes,
                "adapter duty 4: the counter is the eight bytes, and no others change"
            );
        }
        counter.stop();
        drop((counter, filled));
        wait_for(
            events.deadline,
            "adapter duty 4: the memory is let go of",
            || mmap.stop().is_ok(),
        );
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
