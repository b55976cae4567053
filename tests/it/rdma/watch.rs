//! Watches of the state of an `Rdma`: a task that reads the state may act on it at once, and no
//! watcher misses a change.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::Context;
use std::thread;

use support::rdma::{Setup, Side, connect};
use support::subscriber::OnEvent;
use support::*;
use tokio_doca::{
    Mode,
    rdma::{RdmaState, RdmaWatch},
};

fn pair(mode: Mode) -> (Side, Side) {
    let setup = Setup::new(false, mode);
    let (one, other) = (Side::new(setup), Side::new(setup));
    connect(&one.rdma, &other.rdma);
    (one, other)
}

/// Runs on a separate thread, so that a reset that hangs fails only this test.
fn reset_in_the_state_that_was_read(mode: Mode) -> RdmaState {
    let (said, result) = mpsc::channel();
    thread::spawn(move || {
        run(async {
            let (one, other) = pair(mode);
            let watch = one.rdma.watch();
            other.rdma.reset().unwrap();
            until("it fails", || {
                matches!(one.rdma.state(), RdmaState::Error(_))
            })
            .await;
            match watch.state() {
                RdmaState::Error(_) => one.rdma.reset().unwrap(),
                state => panic!("{state:?}"),
            }
            said.send(watch.state()).unwrap();
        });
    });
    result.recv_timeout(LIMIT).expect("the reset comes back")
}

#[test]
fn a_watcher_resets_the_rdma_while_it_matches_on_the_state() {
    for mode in modes() {
        assert_eq!(reset_in_the_state_that_was_read(mode), RdmaState::Init);
    }
}

#[test]
fn a_watcher_is_woken_before_the_log_hears_of_the_change() {
    run(async {
        let (one, other) = pair(Mode::EventDriven);
        let (mut watch, count) = (one.rdma.watch(), Count::new());
        let mut changed = Box::pin(watch.changed());
        poll_counted(changed.as_mut(), &count);
        let (told, heard) = mpsc::channel();
        let hears = OnEvent::new(move |_| told.send(count.wakes()).unwrap());
        let guard = tracing::subscriber::set_default(hears);
        other.rdma.reset().unwrap();
        one.failed().await;
        drop(guard);
        // The last event of the log reports the change: the watcher was woken before it.
        assert_eq!(heard.try_iter().last(), Some(1));
    });
}

#[test]
fn what_has_not_changed_wakes_no_watcher() {
    run(async {
        let (one, _other) = pair(Mode::EventDriven);
        let (mut watch, count) = (one.rdma.watch(), Count::new());
        let mut changed = Box::pin(watch.changed());
        poll_counted(changed.as_mut(), &count);
        assert_eq!(one.rdma.stats().connects, 1);
        assert_eq!(count.wakes(), 0);
    });
}

/// Polls once with a waker that counts its calls.
fn poll_counted(changed: Pin<&mut impl Future>, count: &Arc<Count>) {
    let waker = count.waker();
    assert!(changed.poll(&mut Context::from_waker(&waker)).is_pending());
}

#[test]
fn a_change_wakes_the_watchers_behind_one_whose_waker_panics() {
    for mode in modes() {
        run(async {
            let setup = Setup::new(false, mode);
            let (one, other) = (Side::new(setup), Side::new(setup));
            let mut watches: Vec<_> = (0..64).map(|_| one.rdma.watch()).collect();
            let mut waiting: Vec<_> = watches
                .iter_mut()
                .map(|watch| Box::pin(watch.changed()))
                .collect();
            let panics = Arc::new(AtomicUsize::new(0));
            let seen = Arc::clone(&panics);
            let bad = Call::waker(move || {
                seen.fetch_add(1, Ordering::SeqCst);
                panic!("a waker of the user's");
            });
            let told = Count::new();
            for (number, changed) in waiting.iter_mut().enumerate() {
                match number % 2 {
                    0 => assert!(
                        changed
                            .as_mut()
                            .poll(&mut Context::from_waker(&bad))
                            .is_pending()
                    ),
                    _ => poll_counted(changed.as_mut(), &told),
                }
            }
            connect(&one.rdma, &other.rdma);
            assert_eq!((panics.load(Ordering::SeqCst), told.wakes()), (32, 32));
        });
    }
}

#[test]
fn a_watch_ends_with_its_rdma_after_the_last_change() {
    for mode in modes() {
        run(async {
            let (one, _other) = pair(mode);
            let (mut watch, mut later) = (one.rdma.watch(), one.rdma.watch());
            one.rdma.reset().unwrap();
            let told = Count::new();
            assert_eq!(watch.changed().await, Some(RdmaState::Init));
            poll_counted(Box::pin(watch.changed()).as_mut(), &told);
            let mut changed = Box::pin(watch.changed());
            poll_counted(changed.as_mut(), &told);
            drop(one);
            assert_eq!(told.wakes(), 1);
            assert_eq!(in_time("the end", changed).await, None);
            assert_eq!(later.changed().await, Some(RdmaState::Init));
            assert_eq!(later.changed().await, None);
            assert_eq!(later.wait_for(|_| false).await, None);
            assert_eq!(later.state(), RdmaState::Init);
        });
    }
}

#[test]
fn a_watch_that_is_made_without_a_runtime_hears_on_the_one_where_it_is_awaited() {
    let (one, other) = pair(Mode::EventDriven);
    let mut watch = one.rdma.watch();
    run(async {
        let changed = async move { watch.changed().await };
        let mut changed = Box::pin(changed);
        poll_pending(changed.as_mut());
        drop(other);
        let state = in_time("the change", changed).await;
        assert!(matches!(state, Some(RdmaState::Error(_))), "{state:?}");
    });
}

#[test]
fn a_change_is_not_lost_by_a_dropped_future_and_a_forgotten_one_harms_nobody() {
    run(async {
        let setup = Setup::new(false, Mode::EventDriven);
        let (one, other) = (Side::new(setup), Side::new(setup));
        let mut watch: RdmaWatch = one.rdma.watch();
        poll_pending(Box::pin(watch.changed()).as_mut());
        let mut forgotten = one.rdma.watch();
        let mut changed = Box::pin(forgotten.changed());
        poll_pending(changed.as_mut());
        std::mem::forget(changed);
        let mut same = watch.clone();
        connect(&one.rdma, &other.rdma);
        assert_eq!(watch.changed().await, Some(RdmaState::Connected));
        assert_eq!(same.changed().await, Some(RdmaState::Connected));
        drop((one, watch, same, forgotten));
    });
}
