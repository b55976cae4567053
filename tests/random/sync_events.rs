//! Checks random programs of sets, adds, gets and waits on both sides of events against a model: a
//! number and a list of waits.
//!
//! `TOKIO_DOCA_EVENTS` sets the number of programs and defaults to 60; `TOKIO_DOCA_EVENTS_SEED`
//! repeats a run.

use std::pin::Pin;
use std::task::Poll;
use std::time::SystemTime;

use support::events::Setup;
use support::random::{Random, setting};
use support::*;
use tokio_doca::{
    error::{JobError, Reason},
    sync_event::{SyncEvent, SyncEventWait},
};

/// A wait in progress, and the condition that completes it.
struct Waiting {
    wait: Pin<Box<SyncEventWait<SyncEvent>>>,
    threshold: u64,
    mask: u64,
}

const MASKS: [u64; 4] = [u64::MAX, u64::MAX, 0xff, 0xff00];

fn is_over(value: u64, threshold: u64, mask: u64) -> bool {
    value & mask > threshold
}

/// Polls a wait. If `over` is true, polls until it completes; otherwise a few times, and returns
/// `None` if it is still pending.
async fn polled(wait: &mut Waiting, over: bool) -> Option<Result<u64, JobError>> {
    let mut turns = 0;
    loop {
        if let Poll::Ready(result) = poll(wait.wait.as_mut()) {
            return Some(result);
        }
        turns += 1;
        if !over && turns > 3 {
            return None;
        }
        tokio::task::yield_now().await;
    }
}

async fn program(random: &mut Random, setup: &Setup) {
    let (owner, importer) = match random.below(3) {
        0 => {
            let event = setup.private();
            (event.clone(), event)
        }
        _ => setup.pair(),
    };
    let sides = [&owner, &importer];
    let mut value = 0_u64;
    let mut waits: Vec<Waiting> = Vec::new();
    for _ in 0..40 + random.below(80) {
        let side = sides[random.below(2) as usize];
        match random.below(9) {
            0 => {
                value = random.below(0x400);
                side.set(value).await.unwrap();
            }
            1 => {
                let add = match random.below(4) {
                    0 => u64::MAX - random.below(5),
                    _ => random.below(0x40),
                };
                assert_eq!(side.add(add).owned().await, Ok(value));
                value = value.wrapping_add(add);
            }
            2 => assert_eq!(side.get().await, Ok(value)),
            3..6 => {
                let mask = MASKS[random.below(4) as usize];
                let threshold = random.below(0x400) & mask;
                let wait = Box::pin(side.wait_gt_masked(threshold, mask).owned());
                let mut wait = Waiting {
                    wait,
                    threshold,
                    mask,
                };
                let over = is_over(value, threshold, mask);
                match polled(&mut wait, over).await {
                    Some(result) => assert_eq!((result, over), (Ok(value), true)),
                    None => waits.push(wait),
                }
            }
            6 if !waits.is_empty() => {
                let at = random.below(waits.len() as u64) as usize;
                drop(waits.swap_remove(at));
            }
            7 => tokio::task::yield_now().await,
            _ => {
                // Waits that were not polled may complete with any value that they saw. Waits whose
                // condition holds now must complete.
                let (over, on): (Vec<_>, Vec<_>) = waits
                    .into_iter()
                    .partition(|wait| is_over(value, wait.threshold, wait.mask));
                for mut wait in over {
                    let seen = polled(&mut wait, true).await.unwrap().unwrap();
                    assert!(is_over(seen, wait.threshold, wait.mask), "{seen}");
                }
                waits = Vec::new();
                for mut wait in on {
                    match polled(&mut wait, false).await {
                        Some(seen) => {
                            assert!(is_over(seen.unwrap(), wait.threshold, wait.mask));
                        }
                        None => waits.push(wait),
                    }
                }
            }
        }
        // Keep few enough waits that the event has capacity for all of them.
        while waits.len() > 6 {
            waits.remove(0);
        }
    }
    owner.stop();
    for mut wait in waits {
        match polled(&mut wait, true).await.unwrap() {
            Ok(seen) => assert!(is_over(seen, wait.threshold, wait.mask)),
            Err(error) => assert!(matches!(
                error.reason(),
                Reason::EventStopped | Reason::EventRevoked
            )),
        }
    }
    for side in sides {
        assert_eq!(side.workq().in_flight(), 0);
        assert!(side.get().await.is_err());
    }
}

#[test]
fn every_program_does_what_the_model_says() {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.unwrap().as_nanos() as u64;
    let seed = setting("TOKIO_DOCA_EVENTS_SEED").unwrap_or(now);
    println!("TOKIO_DOCA_EVENTS_SEED={seed}");
    let mut random = Random(seed);
    for turn in 0..setting("TOKIO_DOCA_EVENTS").unwrap_or(60) {
        let setup = &Setup::all()[turn as usize % 6];
        run(in_time("a program", program(&mut random, setup)));
    }
}
