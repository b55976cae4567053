//! Tests that a write or read of no bytes checks whether the peer is still there.

use support::peer::{Peer, hear, role};
use support::rdma::{Setup, Side, connect, failed};
use support::{test_name, *};
use tokio_doca::error::{JobError, Reason};

fn pair(setup: Setup) -> (Side, Side) {
    let (one, other) = (Side::new(setup), Side::new(setup));
    connect(&one.rdma, &other.rdma);
    (one, other)
}

type Leaves = fn(Side) -> Option<Side>;

#[test]
fn the_first_write_of_nothing_after_the_peer_has_left_fails() {
    let leaves: [(Reason, Leaves); 2] = [
        (Reason::PeerClosed, |side| {
            side.rdma.reset().unwrap();
            Some(side)
        }),
        (Reason::PeerClosed, |side| {
            drop(side);
            None
        }),
    ];
    for setup in Setup::all() {
        for (why, leave) in leaves {
            for write in [true, false] {
                run(async {
                    let (one, other) = pair(setup);
                    let ask = async || match write {
                        true => one.rdma.write((), ()).await,
                        false => one.rdma.read((), ()).await,
                    };
                    assert_eq!(in_time("an answer", ask()).await, Ok(0));
                    let _kept = leave(other);
                    assert_eq!(
                        in_time("an answer", ask()).await,
                        Err(JobError::endpoint(why, 0, 0)),
                        "{setup:?}"
                    );
                    let after = in_time("an answer", ask()).await;
                    assert_eq!(failed(after), (Reason::Flushed, Some(why)));
                });
            }
        }
    }
}

#[test]
fn the_first_write_of_nothing_after_the_peers_process_has_ended_fails() {
    const TEST: &str =
        test_name!(the_first_write_of_nothing_after_the_peers_process_has_ended_fails);
    if role().is_some() {
        let side = Side::new(Setup::new(false, tokio_doca::Mode::EventDriven));
        side.meet_parent(true);
        hear();
        return;
    }
    for setup in Setup::all() {
        run(async {
            let one = Side::new(setup);
            let mut peer = Peer::start(TEST, "peer");
            one.meet_child(&mut peer, false);
            let ask = async || in_time("an answer", one.rdma.write((), ())).await;
            assert_eq!(ask().await, Ok(0));
            peer.kill();
            assert_eq!(failed(ask().await).0, Reason::PeerGone, "{setup:?}");
        });
    }
}

#[test]
fn what_the_peer_sent_before_it_left_comes_before_the_answer() {
    for setup in Setup::all() {
        run(async {
            let (one, other) = pair(setup);
            let mut receives: Vec<_> = (0..16)
                .map(|_| Box::pin(one.rdma.recv(one.empty()).owned()))
                .collect();
            for receive in &mut receives {
                poll_pending(receive.as_mut());
            }
            for number in 0..12 {
                other.send(&[number; 9]).await.unwrap();
            }
            drop(other);
            let answer = in_time("an answer", one.rdma.write((), ())).await;
            assert_eq!(failed(answer).0, Reason::PeerClosed, "{setup:?}");
            for (number, receive) in receives.into_iter().enumerate() {
                match in_time("a receive", receive).await {
                    Ok(received) => assert_eq!((number < 12, received.len), (true, 9)),
                    Err(error) => assert!(number >= 12, "{number}: {error}"),
                }
            }
        });
    }
}
