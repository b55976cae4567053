//! Hostile endpoints against an honest one: attacks on the memory that both share, and on the
//! doorbell.
//!
//! Both are in this process: the hostile side implements the protocol by itself, apart from this
//! process's fabric. Whatever it does, the other connections of the same WorkQ continue, and only
//! the memory of receives is written.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::forged::endpoint::*;
use crate::forged::rdma::*;
use support::{test_name, *};
use tokio::time::timeout;
use tokio_doca::{
    Mode,
    error::{JobError, Reason},
    rdma::RdmaState,
};

/// Returns true if a connection may end with this error.
fn is_ordinary(error: JobError) -> bool {
    let ordinary = [
        Reason::PeerNonsense,
        Reason::PeerClosed,
        Reason::PeerFailed,
        Reason::NoReceive,
        Reason::MessageTooLong,
        Reason::ReceiveTooSmall,
    ];
    ordinary.contains(&error.cause().unwrap_or(error.reason()))
}

#[test]
fn a_peer_that_scribbles_ends_its_own_connection_at_most() {
    let mut causes = Vec::new();
    for (mode, is_host) in modes()
        .into_iter()
        .flat_map(|mode| [(mode, false), (mode, true)])
    {
        eprintln!("{mode:?}, a hostile host: {is_host}");
        let victim = Victim::new(mode);
        for round in 1..=20 {
            let hold = victim.meets(is_host);
            let over = Arc::new(AtomicBool::new(false));
            let scribbler = std::thread::spawn({
                let over = Arc::clone(&over);
                move || {
                    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ round);
                    // Most rounds begin correctly, and differ in how soon words of messages are
                    // overwritten.
                    (0..RECEIVES).for_each(|number| hold.post(number.into(), 1 << 17));
                    hold.put(hold.own(0), 1);
                    while !over.load(Ordering::Relaxed) {
                        hold.scribble(&mut random);
                    }
                }
            });
            run(async {
                let mut random = Random(round);
                for _ in 0..12 {
                    let result = match random.below(4) {
                        0 => victim.send(48).await,
                        1 => victim.send(PART).await,
                        _ => victim.recv().await.unwrap_or(Ok(0)),
                    };
                    victim.goes_on().await;
                    if let Err(error) = result {
                        assert!(is_ordinary(error), "{error:?}");
                        causes.push(error.cause().unwrap_or(error.reason()));
                        break;
                    }
                }
                over.store(true, Ordering::Relaxed);
                scribbler.join().unwrap();
                victim.survived().await;
            });
        }
    }
    assert!(causes.contains(&Reason::PeerNonsense), "{causes:?}");
}

/// Messages of impossible lengths or of an unknown kind, or whose bytes never come, a stream that
/// runs backwards, a receive that was never posted, and counts of bytes that were never put.
#[test]
fn a_peer_that_says_what_cannot_be_is_nonsense() {
    type Play = fn(&Hold);
    let plays: [(&str, Play); 7] = [
        ("a message longer than the room", |hold| {
            hold.publish(0, 0, u32::MAX);
        }),
        ("a message of no kind", |hold| hold.publish(0, 4, 1)),
        ("more than the stream has", |hold| {
            hold.put(hold.own(128), (512 << 10) + 1);
            hold.publish(0, 0, PART as u32);
        }),
        ("a stream that runs backwards", |hold| {
            hold.put(hold.own(128), u64::MAX);
            hold.publish(0, 0, PART as u32);
        }),
        ("a message that nobody posted a receive for", |hold| {
            hold.publish(1, 2, 0);
            hold.publish(0, 2, 0);
        }),
        ("bytes taken that were not put", |hold| {
            hold.put(hold.own(256), 1);
            hold.post(0, u32::MAX);
        }),
        ("more taken than there are", |hold| {
            hold.put(hold.own(256), u64::MAX / 2);
            hold.post(0, u32::MAX);
        }),
    ];
    for mode in modes() {
        let victim = Victim::new(mode);
        for (play, does) in plays {
            eprintln!("{mode:?}: {play}");
            let hold = victim.meets(false);
            run(async {
                let mut state = victim.rdma.watch();
                victim.rooms[0].reset_data_len().unwrap();
                let received = victim.rdma.recv(&victim.rooms[0]).start().unwrap();
                does(&hold);
                hold.put(hold.own(0), 1);
                hold.hint();
                let looks = async { tokio::join!(victim.send(PART), received) };
                let (sent, received) = in_time(play, looks).await;
                let error = received.err().or(sent.err()).unwrap();
                let cause = error.cause().unwrap_or(error.reason());
                assert_eq!(cause, Reason::PeerNonsense, "{error:?}");
                let failed = |state: RdmaState| matches!(state, RdmaState::Error(_));
                in_time("the state", state.wait_for(failed)).await.unwrap();
                // The peer sees that the endpoint has failed.
                assert_eq!(hold.get(hold.peers(0)), 3);
                victim.survived().await;
            });
        }
    }
}

#[test]
fn a_bell_that_is_flooded_or_closed_costs_its_own_connection_at_most() {
    let test = test_name!(a_bell_that_is_flooded_or_closed_costs_its_own_connection_at_most);
    if !alone(test) {
        return;
    }
    for mode in modes() {
        let victim = Victim::new(mode);
        let hold = Arc::new(victim.meets(false));
        run(async {
            let before = descriptors();
            let over = Arc::new(AtomicBool::new(false));
            let flooder = std::thread::spawn({
                let (hold, over) = (Arc::clone(&hold), Arc::clone(&over));
                move || {
                    let mut random = Random(7);
                    while !over.load(Ordering::Relaxed) {
                        hold.stuff(&mut random);
                    }
                }
            });
            for _ in 0..100 {
                victim.goes_on().await;
            }
            over.store(true, Ordering::Relaxed);
            flooder.join().unwrap();
            // Closes the channel, with whatever it contains.
            drop(hold);
            for _ in 0..10 {
                victim.goes_on().await;
            }
            victim.send(48).await.unwrap_err();
            if mode == Mode::EventDriven {
                let woken = victim.workq.stats().wake_ups;
                let waits = timeout(PATIENCE, victim.pair[0].recv(())).await;
                waits.unwrap_err();
                let woken = victim.workq.stats().wake_ups - woken;
                assert!(woken < 10, "woken {woken} times by nobody");
                victim.pair[1].send(()).await.unwrap();
            }
            victim.rdma.reset().unwrap();
            // The flooder's descriptors were closed with the messages that carried them; the page
            // and the channel are closed too.
            until("the descriptors are closed", || descriptors() < before).await;
        });
    }
}

#[test]
fn a_peer_that_is_rung_for_and_never_reads_stops_nobody() {
    for mode in modes() {
        let victim = Victim::new(mode);
        let hold = victim.meets(false);
        run(async {
            for number in 0..3000 {
                hold.put_page(0, 0, 1);
                hold.post(number, 48);
                assert_eq!(victim.send(48).await, Ok(48));
            }
            victim.survived().await;
        });
    }
}
