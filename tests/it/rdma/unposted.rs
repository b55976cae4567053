//! Operations without a posted receive learn of the end of their connection: a stream whose pool is
//! empty, and a receive that waits for an entry that another receive never returns.

use std::time::Duration;

use futures::{FutureExt, StreamExt};
use support::rdma::{Setup, Side, connect};
use support::*;
use tokio_doca::{
    Buf, Mode,
    error::Reason,
    rdma::{RdmaState, RecvStream},
};

fn all_modes() -> [Mode; 3] {
    let spin = Duration::from_micros(50);
    [Mode::EventDriven, Mode::BusyPoll, Mode::Hybrid { spin }]
}

fn pair(mode: Mode, receives: u32) -> (Side, Side) {
    let setup = Setup {
        receives,
        ..Setup::new(false, mode)
    };
    let (one, other) = (Side::new(setup), Side::new(setup));
    connect(&one.rdma, &other.rdma);
    (one, other)
}

/// Takes all Bufs of the pool.
fn empty(side: &Side) -> Vec<Buf> {
    std::iter::from_fn(|| side.pool.try_alloc().ok()).collect()
}

async fn error_of(mut stream: RecvStream) -> (Reason, Option<Reason>) {
    let next = in_time("the end of the stream", stream.next()).await;
    let error = next.expect("an error").expect_err("no message came");
    assert!(stream.next().await.is_none(), "it ends after the error");
    (error.reason(), error.cause())
}

/// Takes all Bufs of the pool, makes a stream on it, and polls the stream once.
async fn stream_without_bufs(side: &Side) -> (Vec<Buf>, RecvStream) {
    let bufs = empty(side);
    let mut stream = side.rdma.recv_stream(&side.pool, 4);
    assert!(stream.next().now_or_never().is_none());
    (bufs, stream)
}

#[test]
fn a_stream_whose_pool_is_empty_hears_that_its_peer_has_left() {
    for mode in all_modes() {
        run(async {
            let (one, other) = pair(mode, 16);
            let (_bufs, stream) = stream_without_bufs(&one).await;
            let ended = tokio::spawn(error_of(stream));
            tokio::task::yield_now().await;
            drop(other);
            let flushed = (Reason::Flushed, Some(Reason::PeerClosed));
            assert_eq!(ended.await.unwrap(), flushed, "{mode:?}");
        });
    }
}

#[test]
fn a_stream_whose_pool_is_empty_ends_with_a_reset_and_with_a_shutdown() {
    for mode in all_modes() {
        run(async {
            let (one, _other) = pair(mode, 16);
            let (_bufs, stream) = stream_without_bufs(&one).await;
            let ended = tokio::spawn(error_of(stream));
            tokio::task::yield_now().await;
            one.rdma.reset().unwrap();
            let flushed = (Reason::Flushed, Some(Reason::Reset));
            assert_eq!(ended.await.unwrap(), flushed, "{mode:?}");

            let mut stream = one.rdma.recv_stream(&one.pool, 4);
            assert!(stream.next().now_or_never().is_none());
            let ended = tokio::spawn(error_of(stream));
            tokio::task::yield_now().await;
            in_time("the shutdown", one.workq.shutdown()).await.unwrap();
            assert_eq!(ended.await.unwrap(), (Reason::Shutdown, None), "{mode:?}");
        });
    }
}

#[test]
fn a_stream_whose_pool_is_empty_hears_in_the_mode_that_is_set_meanwhile() {
    let [event, busy, hybrid] = all_modes();
    for (before, after) in [(event, busy), (busy, event), (event, hybrid)] {
        run(async {
            let (one, other) = pair(before, 16);
            let (_bufs, stream) = stream_without_bufs(&one).await;
            let ended = tokio::spawn(error_of(stream));
            tokio::task::yield_now().await;
            one.workq.set_mode(after).unwrap();
            tokio::task::yield_now().await;
            drop(other);
            let flushed = (Reason::Flushed, Some(Reason::PeerClosed));
            assert_eq!(ended.await.unwrap(), flushed, "{before:?} {after:?}");
        });
    }
}

#[test]
fn a_stream_whose_pool_was_empty_goes_on_with_the_bufs_that_come_home() {
    for mode in all_modes() {
        run(async {
            let (one, other) = pair(mode, 16);
            let (mut bufs, mut stream) = stream_without_bufs(&one).await;
            for round in 0..3_u8 {
                drop(bufs.pop());
                let sent = [round; 7];
                let both = async { tokio::join!(other.send(&sent), stream.next()) };
                let (done, message) = in_time("a message", both).await;
                done.unwrap();
                let buf = message.unwrap().unwrap().buf.unwrap();
                assert_eq!(*buf.data().unwrap(), sent);
                bufs.push(buf);
                assert!(stream.next().now_or_never().is_none(), "the pool is empty");
            }
            drop(other);
            let flushed = (Reason::Flushed, Some(Reason::PeerClosed));
            assert_eq!(error_of(stream).await, flushed);
        });
    }
}

#[test]
fn a_stream_takes_no_buf_that_another_one_waits_for() {
    run(async {
        let (one, _other) = pair(Mode::EventDriven, 16);
        let mut bufs = empty(&one);
        let mut waiting = Box::pin(one.pool.alloc());
        poll_pending(waiting.as_mut());
        drop(bufs.pop());
        let mut stream = one.rdma.recv_stream(&one.pool, 4);
        assert!(stream.next().now_or_never().is_none());
        let buf = waiting.as_mut().now_or_never();
        assert!(
            buf.is_some(),
            "the stream has the Buf of whoever came first"
        );
    });
}

#[test]
fn two_streams_that_share_a_pool_take_turns() {
    for mode in all_modes() {
        run(async {
            let setup = Setup::new(false, mode);
            let (one, other) = (Side::new(setup), Side::new(setup));
            connect(&one.rdma, &other.rdma);
            let beside = Side::on(&other.device, &other.workq, setup);
            let third = Side::new(setup);
            connect(&third.rdma, &beside.rdma);
            // Leaves four Bufs, which the first stream takes.
            let _kept: Vec<Buf> = empty(&other).drain(4..).collect();
            let mut first = other.rdma.recv_stream(&other.pool, 4);
            assert!(first.next().now_or_never().is_none());
            let mut second = beside.rdma.recv_stream(&other.pool, 4);
            assert!(second.next().now_or_never().is_none());
            let take = async |stream: &mut RecvStream| {
                for round in 0..20 {
                    let message = stream.next().await.unwrap().unwrap();
                    assert_eq!(*message.buf.unwrap().data().unwrap(), [round]);
                }
            };
            let send = async |side: &Side| {
                for round in 0..20 {
                    side.send(&[round]).await.unwrap();
                }
            };
            // The first stream continues while the second one receives its messages.
            let endless = async {
                loop {
                    one.send(&[0]).await.unwrap();
                    drop(first.next().await.unwrap().unwrap());
                }
            };
            let second = async { tokio::join!(take(&mut second), send(&third)) };
            let ended = async {
                tokio::select! {
                    _ = endless => unreachable!(),
                    ended = second => ended,
                }
            };
            in_time("the messages of the second", ended).await;
        });
    }
}

/// The receive was notified of a free entry, and is never polled again.
#[test]
fn a_receive_in_line_that_nobody_polls_leaves_a_stream_its_receives() {
    run(async {
        let (one, other) = pair(Mode::EventDriven, 4);
        let mut stream = one.rdma.recv_stream(&one.pool, 4);
        assert!(stream.next().now_or_never().is_none());
        let mut lazy = Box::pin(one.rdma.recv(()).owned());
        poll_pending(lazy.as_mut());
        for _ in 0..4 {
            for number in 0..4_u8 {
                other.send(&[number]).await.unwrap();
            }
            for number in 0..4_u8 {
                let message = in_time("a message", stream.next()).await.unwrap().unwrap();
                assert_eq!(*message.buf.unwrap().data().unwrap(), [number]);
            }
            // The stream has posted four receives again, so that four sends complete without a poll
            // of this side.
            assert!(stream.next().now_or_never().is_none());
        }
        drop(lazy);
    });
}

#[test]
fn a_stream_of_many_receives_posts_them_all_before_it_sleeps() {
    run(async {
        let (one, other) = pair(Mode::EventDriven, 64);
        let mut stream = one.rdma.recv_stream(&one.pool, 40);
        for round in 0..5_u8 {
            assert!(stream.next().now_or_never().is_none());
            for number in 0..40_u8 {
                let sent = other.send(&[round, number]).now_or_never();
                sent.expect("there is a receive for it").unwrap();
            }
            for number in 0..40_u8 {
                let message = in_time("a message", stream.next()).await.unwrap().unwrap();
                assert_eq!(*message.buf.unwrap().data().unwrap(), [round, number]);
            }
        }
    });
}

#[test]
fn a_stream_without_a_place_stands_in_line_and_goes_on() {
    for mode in all_modes() {
        run(async {
            let (one, other) = pair(mode, 1);
            for round in 0..3_u8 {
                let dst = one.empty();
                let first = one.rdma.recv(&dst).start().unwrap();
                let mut stream = one.rdma.recv_stream(&one.pool, 1);
                assert!(stream.next().now_or_never().is_none());
                let mut behind = Box::pin(one.rdma.recv(one.empty()).owned());
                poll_pending(behind.as_mut());
                let messages = async {
                    assert_eq!(first.await.unwrap().len, 1);
                    let message = stream.next().await.unwrap().unwrap();
                    assert_eq!(*message.buf.unwrap().data().unwrap(), [round; 2]);
                    // A stream that waits gives its turn up when it is dropped.
                    drop(stream);
                    assert_eq!(behind.await.unwrap().len, 3);
                };
                let sends = async {
                    for len in 1..4 {
                        other.send(&vec![round; len]).await.unwrap();
                    }
                };
                in_time("the messages", async { tokio::join!(messages, sends) }).await;
            }
        });
    }
}

/// The receive that holds the entry has its message, but is not polled.
#[test]
fn a_receive_in_line_hears_of_the_end_although_the_place_before_it_is_kept() {
    for mode in all_modes() {
        run(async {
            let (one, other) = pair(mode, 1);
            let mut first = Box::pin(one.rdma.recv(one.empty()).owned());
            poll_pending(first.as_mut());
            other.send(b"abc").await.unwrap();
            // Polls the device, so that the message reaches its receive.
            assert_eq!(one.rdma.state(), RdmaState::Connected);
            let second = tokio::spawn(one.rdma.recv(one.empty()).owned());
            tokio::task::yield_now().await;
            drop(other);
            let second = in_time("the one in line", second).await.unwrap();
            let error = second.unwrap_err();
            let cause = (error.reason(), error.cause());
            assert_eq!(
                cause,
                (Reason::Flushed, Some(Reason::PeerClosed)),
                "{mode:?}"
            );
            assert_eq!(in_time("the first", first).await.unwrap().len, 3);
        });
    }
}

// Without a runtime the blocked thread itself must learn of the end.
#[test]
fn block_on_hears_of_the_end_for_a_stream_on_an_empty_pool() {
    let modes = all_modes().into_iter();
    for mode in modes.filter(|mode| *mode != Mode::BusyPoll) {
        let (one, other) = pair(mode, 4);
        let _bufs = empty(&one);
        let before = one.workq.stats().arms;
        let (ended, end) = std::sync::mpsc::channel();
        let (stream, workq) = (one.rdma.recv_stream(&one.pool, 2), one.workq.clone());
        std::thread::spawn(move || {
            let mut stream = std::pin::pin!(stream);
            let next = workq.block_on(stream.next());
            let _ = ended.send(next.map(|message| message.is_err()));
        });
        // The task sleeps, or is about to.
        block_until("it armed", || one.workq.stats().arms > before);
        other.rdma.reset().unwrap();
        assert_eq!(end.recv_timeout(LIMIT), Ok(Some(true)), "{mode:?}");
    }
}
