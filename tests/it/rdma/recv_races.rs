//! A receive that is posted while its `Rdma` is reset, and a receive whose poll panics in a
//! `tracing` subscriber of the application.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Poll};
use std::time::Duration;

use support::loopback::Loopback;
use support::rdma::{Setup, Side, connect};
use support::subscriber::OnEvent;
use support::*;
use tokio_doca::{Mode, Rdma, WorkQ};

/// Acts as another thread that resets the `Rdma` between the two steps of a post.
#[test]
fn a_receive_that_is_posted_into_the_next_life_keeps_its_message_when_it_is_dropped() {
    run(async {
        let (loopback, one, other) = both();
        let reset = one.clone();
        loopback.when_posted(move || reset.reset().unwrap());
        drop(one.recv(()).start().unwrap());
        assert_eq!(loopback.posted(), 1);
        connect(&one, &other);
        in_time("the message", other.send_imm((), 7)).await.unwrap();
        // The message has arrived, and no task has asked for it.
        one.state();
        let received = in_time("a receive", one.recv(())).await.unwrap();
        assert_eq!(received.immediate, Some(7));
    });
}

/// Returns two endpoints whose sends wait for a receive.
fn both() -> (Loopback, Rdma, Rdma) {
    let (loopback, device) = Loopback::device(false);
    let workq = WorkQ::builder().build().unwrap();
    let rdma = || {
        let builder = Rdma::builder(&device).rnr_timeout(Duration::from_secs(60));
        builder.attach(&workq).unwrap()
    };
    (loopback, rdma(), rdma())
}

/// Returns two such endpoints, connected.
fn connected() -> (Loopback, Rdma, Rdma) {
    let (loopback, one, other) = both();
    connect(&one, &other);
    (loopback, one, other)
}

/// Acts as another thread that posts a receive between the two steps of a reset, and drops it.
#[test]
fn a_message_that_a_reset_has_overtaken_is_not_for_the_next_connection() {
    for collected in [false, true] {
        run(async {
            let (loopback, one, other) = connected();
            let old = other.send_imm((), 1).start().unwrap();
            let posts = one.clone();
            loopback.when_reset(move || {
                drop(posts.recv(()).start().unwrap());
                if collected {
                    posts.state();
                }
            });
            one.reset().unwrap();
            assert_eq!(loopback.posted(), 0, "it has its message");
            in_time("the old message", old).await.unwrap();
            other.reset().unwrap();
            connect(&one, &other);
            let new = other.send_imm((), 2).start().unwrap();
            let received = in_time("a receive", one.recv(())).await.unwrap();
            assert_eq!(received.immediate, Some(2), "{collected}");
            in_time("the new message", new).await.unwrap();
        });
    }
}

/// Acts as another thread that resets the `Rdma`, connects it and reaps, all in the middle of a
/// post.
#[test]
fn a_message_that_comes_amid_the_post_of_its_receive_is_of_the_life_that_it_came_in() {
    run(async {
        let (loopback, one, other) = connected();
        let (again, peer) = (one.clone(), other.clone());
        loopback.when_posted(move || {
            again.reset().unwrap();
            peer.reset().unwrap();
            connect(&again, &peer);
            // The message is sent although its future is dropped.
            drop(peer.send_imm((), 7).start().unwrap());
        });
        let collects = one.clone();
        loopback.when_taken(move || {
            collects.state();
        });
        drop(one.recv(()).start().unwrap());
        assert_eq!(loopback.posted(), 0, "it has its message");
        let received = in_time("a receive", one.recv(())).await.unwrap();
        assert_eq!(received.immediate, Some(7));
    });
}

/// A message of the old connection is reaped in the middle of a post, before the reset.
#[test]
fn a_message_that_came_amid_a_post_before_a_reset_goes_with_it() {
    run(async {
        let (loopback, one, other) = connected();
        let old = other.send_imm((), 1).start().unwrap();
        let resets = one.clone();
        loopback.when_taken(move || {
            resets.state();
            resets.reset().unwrap();
        });
        drop(one.recv(()).start().unwrap());
        in_time("the old message", old).await.unwrap();
        other.reset().unwrap();
        connect(&one, &other);
        let new = other.send_imm((), 2).start().unwrap();
        let received = in_time("a receive", one.recv(())).await.unwrap();
        assert_eq!(received.immediate, Some(2));
        in_time("the new message", new).await.unwrap();
    });
}

#[test]
fn a_subscriber_that_panics_in_the_poll_of_a_receive_costs_neither_message_nor_place() {
    for adopts in [false, true] {
        run(async {
            let setup = Setup {
                receives: 1,
                ..Setup::new(false, Mode::EventDriven)
            };
            let (one, other) = (Side::new(setup), Side::new(setup));
            connect(&one.rdma, &other.rdma);
            if adopts {
                drop(one.rdma.recv(()).start().unwrap());
            }
            let mut first = Box::pin(one.rdma.recv(()));
            poll_pending(first.as_mut());
            // The waiting receive has a waker that panics, which is logged.
            let mut second = Box::pin(one.rdma.recv(()));
            let bad = Call::waker(|| panic!("a waker of the application's"));
            let polled = second.as_mut().poll(&mut Context::from_waker(&bad));
            assert!(polled.is_pending());
            other.rdma.send_imm((), 1).await.unwrap();
            one.rdma.state();
            let panics = OnEvent::new(|_| panic!("a subscriber of the application's"));
            let polled = tracing::subscriber::with_default(panics, || {
                catch_unwind(AssertUnwindSafe(|| poll(first.as_mut())))
            });
            assert!(
                matches!(&polled, Ok(Poll::Ready(Ok(received))) if received.immediate == Some(1)),
                "{polled:?}"
            );
            drop((first, second));
            // The only entry is free, and was returned only once.
            let next = one.rdma.recv(()).start().unwrap();
            assert!(one.rdma.recv(()).start().is_err());
            in_time("a send", other.rdma.send_imm((), 2)).await.unwrap();
            let received = in_time("a message", next).await.unwrap();
            assert_eq!(received.immediate, Some(2));
        });
    }
}
