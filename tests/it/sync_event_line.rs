//! More waits than a sync event has entries: a value completes the queued waits too, whatever
//! happens to the waits that have the entries.

use std::future::poll_fn;
use std::mem::forget;
use std::pin::pin;
use std::time::{Duration, Instant};

use support::events::Setup;
use support::*;
use tokio_doca::soft::Limits;
use tokio_doca::{
    ErrorKind, Mode,
    error::{JobError, Reason},
    sync_event::SyncEvent,
};

const PLACES: u32 = 2;
/// A value that no test reaches.
const NEVER: u64 = 1_000_000;
const ALL: u64 = u64::MAX;

/// Runs `story` in each setup, for an event within this process and for both sides of a shared one.
/// Its arguments are the side that sets the event and the side that waits for it.
fn each(story: impl AsyncFn(&SyncEvent, &SyncEvent)) {
    for setup in Setup::all().map(|setup| setup.waits(PLACES)) {
        let private = setup.private();
        run(in_time("the waits in line", story(&private, &private)));
        for swapped in [false, true] {
            let (owner, importer) = setup.pair();
            let (sets, waits) = match swapped {
                false => (owner, importer),
                true => (importer, owner),
            };
            run(in_time("the waits in line", story(&sets, &waits)));
        }
    }
}

/// Returns waits that occupy all entries until they are dropped.
fn take_places(
    event: &SyncEvent,
    threshold: u64,
) -> Vec<impl Future<Output = Result<u64, JobError>>> {
    let wait = |_| event.wait_gt_masked(threshold, ALL).start().unwrap();
    let taken: Vec<_> = (0..PLACES).map(wait).collect();
    let full = event.wait_gt_masked(threshold, ALL).start().err().unwrap();
    assert_eq!(full.reason(), Reason::WaitsFull);
    taken
}

/// Gives the task of a wait time to queue, and to sleep there.
async fn stands_in_line(event: &SyncEvent) {
    let spin = Duration::from_micros(50);
    let since = Instant::now();
    while since.elapsed() < 2 * spin {
        tokio::task::yield_now().await;
    }
    assert!(event.wait_gt_masked(NEVER, ALL).start().is_err());
}

#[test]
fn a_value_serves_those_in_line() {
    each(async |sets, waits| {
        let taken = take_places(waits, NEVER);
        let line: Vec<_> = [(0, ALL), (4, ALL), (4, 0xff), (0, 0x100)]
            .map(|(threshold, mask)| tokio::spawn(waits.wait_gt_masked(threshold, mask).owned()))
            .into();
        let later = tokio::spawn(waits.wait_gt_masked(5, ALL).owned());
        stands_in_line(waits).await;
        assert!(line.iter().all(|wait| !wait.is_finished()));
        sets.set(0x105).await.unwrap();
        for wait in line {
            assert_eq!(wait.await.unwrap(), Ok(0x105));
        }
        assert_eq!(later.await.unwrap(), Ok(0x105));
        drop(taken);
    });
}

#[test]
fn a_value_that_ends_only_some_serves_those_in_line() {
    each(async |sets, waits| {
        let _taken = take_places(waits, NEVER);
        let [first, last] = [3, 7].map(|at| tokio::spawn(waits.wait_gt_masked(at, ALL).owned()));
        stands_in_line(waits).await;
        sets.set(5).await.unwrap();
        assert_eq!(first.await.unwrap(), Ok(5));
        assert!(!last.is_finished());
        sets.add(4).await.unwrap();
        assert_eq!(last.await.unwrap(), Ok(9));
        // A wait that starts later finds the value at once.
        assert_eq!(waits.wait_gt(8).await, Ok(9));
    });
}

#[test]
fn a_wait_in_line_passes_those_that_are_never_polled() {
    each(async |sets, waits| {
        take_places(waits, 0).into_iter().for_each(forget);
        // This wait is queued, and is not polled again before the wait behind it has completed.
        let mut left = pin!(waits.wait_gt(0));
        assert!(futures::poll!(left.as_mut()).is_pending());
        let line = tokio::spawn(waits.wait_gt_masked(0, ALL).owned());
        stands_in_line(waits).await;
        sets.set(1).await.unwrap();
        assert_eq!(line.await.unwrap(), Ok(1));
        assert_eq!(left.await, Ok(1));
    });
}

#[test]
fn a_wait_in_line_ends_with_its_event() {
    each(async |_, waits| {
        take_places(waits, 0).into_iter().for_each(forget);
        let line = tokio::spawn(waits.wait_gt_masked(0, ALL).owned());
        stands_in_line(waits).await;
        waits.stop();
        let ended = line.await.unwrap().unwrap_err();
        assert_eq!(ended.reason(), Reason::EventStopped);
    });
}

#[test]
fn a_wait_in_line_hears_of_another_mode_and_of_a_shutdown() {
    each(async |sets, waits| {
        take_places(waits, 0).into_iter().for_each(forget);
        let line = tokio::spawn(waits.wait_gt_masked(0, ALL).owned());
        stands_in_line(waits).await;
        waits.workq().set_mode(Mode::BusyPoll).unwrap();
        sets.set(1).await.unwrap();
        assert_eq!(line.await.unwrap(), Ok(1));
        let line = tokio::spawn(waits.wait_gt_masked(1, ALL).owned());
        stands_in_line(waits).await;
        waits.workq().shutdown().await.unwrap();
        let ended = line.await.unwrap().unwrap_err();
        assert_eq!(ended.kind(), ErrorKind::Shutdown);
    });
}

#[test]
fn a_wait_in_line_does_not_end_where_the_value_is_beyond_the_limit() {
    for setup in Setup::all() {
        let event = setup.limits(Limits::bluefield3()).waits(PLACES).private();
        run(in_time("the waits in line", async {
            take_places(&event, 9).into_iter().for_each(forget);
            let waits = [(0, ALL), (0, 0xff00_0000)].map(|(threshold, mask)| {
                tokio::spawn(event.wait_gt_masked(threshold, mask).owned())
            });
            stands_in_line(&event).await;
            event.set(255).await.unwrap();
            for wait in waits {
                let ended = wait.await.unwrap().unwrap_err();
                assert_eq!(ended.reason(), Reason::EventTooHigh);
            }
        }));
    }
}

#[test]
fn an_idle_wait_in_line_is_polled_now_and_then() {
    // The longest nap that `SyncEvent::wait_gt` documents.
    const NAP: Duration = Duration::from_micros(8400);
    let spin = Duration::from_micros(50);
    let modes = [Mode::EventDriven, Mode::Hybrid { spin }];
    for mode in modes {
        let event = Setup::new(false, mode).waits(PLACES).private();
        let (since, mut polls) = (Instant::now(), 0);
        run(async {
            let _taken = take_places(&event, NEVER);
            let mut wait = pin!(event.wait_gt(0));
            let counted = poll_fn(|cx| {
                polls += 1;
                wait.as_mut().poll(cx)
            });
            let idle = tokio::time::timeout(Duration::from_millis(300), counted);
            assert!(idle.await.is_err());
        });
        // A spin and shorter naps come first.
        let naps = since.elapsed().div_duration_f64(NAP) as u64 + 8;
        assert!(polls <= 2 * naps + 200, "{polls} polls, {naps} naps");
    }
}
