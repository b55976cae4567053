//! Loom models of sync events: one side waits, while either side changes the counter. No waiter may
//! sleep through a change.
#![allow(clippy::unwrap_used, reason = "these are tests")]
#![expect(unsafe_code, reason = "reaps")]

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64 as Tally;

use super::super::counter::Counters;
use super::super::fault::Faults;
use super::super::ports::Ports;
use super::super::shared::DeviceShared;
use super::counter::SoftEvent;
use super::port::SoftPort;
use super::words::{Side, Words};
use crate::device::{Completion, EventCounter, EventJob, EventPort, EventWait, Signal, Token};
use crate::error::{JobError, Reason};
use crate::sync::atomic::Ordering::SeqCst;
use crate::sync::loom::{check, mutant, spawn};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// One side of an event, on a queue of its own.
struct End {
    event: Arc<SoftEvent>,
    port: SoftPort,
    ports: Arc<Ports>,
    signal: Arc<Signal>,
}

impl End {
    fn new(event: Arc<SoftEvent>) -> End {
        let device = Arc::new(DeviceShared {
            faults: Faults::new(1),
            inline_jobs: Counters::default(),
            own_jobs: Tally::new(0),
            highest_value: u64::MAX,
        });
        let signal = Arc::new(Signal::new().unwrap());
        let inline_jobs = device.inline_jobs.open();
        let ports = Ports::new(device, inline_jobs, Arc::clone(&signal)).unwrap();
        let port = SoftPort::open(&ports, Arc::clone(&event), 2).unwrap();
        End {
            event,
            port,
            ports,
            signal,
        }
    }

    fn wait(&self, index: u32, threshold: u64) {
        let mask = u64::MAX;
        let wait = EventWait { threshold, mask };
        self.port.wait(Token::new(1, index, 7), wait).unwrap();
    }

    fn reap(&self) -> Vec<Result<u64, JobError>> {
        let nothing = Completion::new(Token::from_raw(u64::MAX), Ok(0));
        let mut out = [nothing; 4];
        // SAFETY: one thread of a model reaps, and the jobs of sync events name no memory.
        let count = unsafe { self.ports.reap(self.ports.reaper(), &mut out) };
        out[..count].iter().map(|over| over.result).collect()
    }

    /// Returns true if the event handle is readable.
    fn is_rung(&self) -> bool {
        let mut polled = [PollFd::new(self.signal.as_fd(), PollFlags::POLLIN)];
        poll(&mut polled, PollTimeout::ZERO) == Ok(1)
    }
}

/// Returns both sides of an event; `waits` is the first of them.
fn ends(waits: Side) -> [End; 2] {
    let owner = SoftEvent::side(
        Arc::new(Words::own()),
        Side::Owner,
        None,
        Default::default(),
        1,
    );
    let importer = owner.admit().unwrap();
    let [owner, importer] = [owner, importer].map(End::new);
    match waits {
        Side::Owner => [owner, importer],
        Side::Importer => [importer, owner],
    }
}

fn set(event: &SoftEvent) {
    event.operate(&EventJob::Set(1)).unwrap();
}

fn add(event: &SoftEvent) {
    event.operate(&EventJob::Add(1)).unwrap();
}

fn say_and_look(event: &SoftEvent) -> bool {
    event.say(0);
    event.value() > 0
}

/// Models a thread that changes the counter, on side `side` or the other, while another thread
/// publishes what it waits for and polls. At least one of the two must notice the other.
fn is_told(
    side: Side,
    changes: fn(&SoftEvent),
    looks: fn(&SoftEvent) -> bool,
) -> impl Fn() + Send + Sync {
    move || {
        for same in [true, false] {
            let [waiter, other] = ends(side);
            let by = Arc::clone(if same { &waiter.event } else { &other.event });
            let changer = spawn(move || changes(&by));
            let found = looks(&waiter.event);
            changer.join().unwrap();
            assert!(found || waiter.ports.ready(), "slept through it");
        }
    }
}

#[test]
fn who_says_what_it_waits_for_and_looks_is_told_or_sees_it() {
    for side in [Side::Owner, Side::Importer] {
        check(3, is_told(side, set, say_and_look));
        check(3, is_told(side, add, say_and_look));
    }
}

#[test]
fn mutant_that_looks_and_then_says_what_it_waits_for_is_found() {
    fn look_and_say(event: &SoftEvent) -> bool {
        let found = event.value() > 0;
        event.say(0);
        found
    }
    mutant("slept through it", || {
        check(3, is_told(Side::Owner, add, look_and_say));
    });
}

#[test]
fn mutant_that_asks_who_waits_and_then_sets_is_found() {
    fn ask_and_set(event: &SoftEvent) {
        let waited = event.is_waited_for(1);
        event.words.counter().store(1, SeqCst);
        if waited {
            event.raise();
            event.signal_peer();
        }
    }
    mutant("slept through it", || {
        check(3, is_told(Side::Importer, ask_and_set, say_and_look));
    });
}

#[test]
fn mutant_that_asks_without_a_fence_is_found() {
    fn set_and_ask(event: &SoftEvent) {
        event.words.counter().store(1, SeqCst);
        if event.is_waited_for(1) {
            event.raise();
            event.signal_peer();
        }
    }
    mutant("slept through it", || {
        check(3, is_told(Side::Importer, set_and_ask, say_and_look));
    });
}

/// Models two waits and two threads that add: both waits end, by a poll or by a wake-up.
fn are_woken(arms: fn(&End) -> Vec<Result<u64, JobError>>) -> impl Fn() + Send + Sync {
    move || {
        let [waiter, other] = ends(Side::Owner);
        let adders = [Arc::clone(&waiter.event), Arc::clone(&other.event)]
            .map(|event| spawn(move || add(&event)));
        waiter.wait(0, 0);
        waiter.wait(1, 1);
        let mut over = arms(&waiter);
        for adder in adders {
            adder.join().unwrap();
        }
        if over.len() < 2 {
            assert!(waiter.is_rung(), "slept through it");
            over.extend(waiter.reap());
        }
        assert_eq!(over.len(), 2);
        assert!(over.iter().all(|value| matches!(value, Ok(1 | 2))));
        assert!(waiter.reap().is_empty() && !waiter.ports.ready());
    }
}

#[test]
fn who_waits_and_sleeps_is_woken_once_for_each_wait() {
    fn arm_and_look(end: &End) -> Vec<Result<u64, JobError>> {
        end.ports.arm();
        end.reap()
    }
    check(2, are_woken(arm_and_look));
}

#[test]
fn mutant_that_looks_and_then_arms_is_found() {
    fn look_and_arm(end: &End) -> Vec<Result<u64, JobError>> {
        let over = end.reap();
        end.ports.arm();
        over
    }
    mutant("slept through it", || check(2, are_woken(look_and_arm)));
}

#[test]
fn a_wait_beside_the_end_of_the_event_ends() {
    for side in [Side::Owner, Side::Importer] {
        check(3, move || {
            let [waiter, other] = ends(side);
            let owner = match side {
                Side::Owner => &waiter,
                Side::Importer => &other,
            };
            let event = Arc::clone(&owner.event);
            let stopper = spawn(move || event.stop());
            let mask = u64::MAX;
            let wait = EventWait { threshold: 5, mask };
            let refused = waiter.port.wait(Token::new(1, 0, 7), wait).err();
            stopper.join().unwrap();
            let end = refused.or_else(|| waiter.reap().pop().and_then(Result::err));
            let expected = match side {
                Side::Owner => Reason::EventStopped,
                Side::Importer => Reason::EventRevoked,
            };
            assert_eq!(end.map(|error| error.reason()), Some(expected));
        });
    }
}

#[test]
fn an_importer_that_comes_beside_the_end_of_the_event_is_told_of_it() {
    check(3, || {
        let owner = SoftEvent::private();
        let stopper = {
            let owner = Arc::clone(&owner);
            spawn(move || owner.stop())
        };
        let importer = owner.admit();
        stopper.join().unwrap();
        if let Ok(importer) = importer {
            let end = importer
                .operate(&EventJob::Get)
                .map_err(|error| error.reason());
            assert_eq!(end, Err(Reason::EventRevoked), "it was told nothing");
        }
    });
}

#[test]
fn a_wait_is_cancelled_or_ends_and_never_both() {
    check(3, || {
        let [waiter, other] = ends(Side::Owner);
        waiter.wait(0, 0);
        let adder = spawn(move || add(&other.event));
        let before = waiter.reap().len();
        waiter.port.cancel(Token::new(1, 0, 7));
        adder.join().unwrap();
        assert!(waiter.reap().is_empty() && before <= 1);
        // The entry is free again.
        waiter.wait(0, 0);
        assert_eq!(waiter.reap(), [Ok(1)]);
    });
}
