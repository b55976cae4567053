//! Messages that are fed to a sink, and sent in batches.

use std::pin::pin;
use std::task::Poll;

use futures::future::{Either, join, join_all, join3, select};
use futures::{FutureExt, SinkExt};
use support::device::{defers, needs_soft, under_test};
use support::loopback::Loopback;
use support::rdma::{Setup, Side, connect, failed};
use support::*;
use tokio_doca::{
    Buf, Device, ErrorKind, Mode, WorkQ,
    error::{JobError, Reason},
    rdma::{RdmaState, SendSink},
};

const MESSAGES: u32 = 60;

/// Returns the loopback device, which sends nothing inline, and the devices under test: software
/// devices that send all messages inline, or none, or the adapter.
fn devices() -> Vec<Device> {
    let under_test = defers().iter().map(|&defer| under_test(defer));
    std::iter::once(Loopback::device(false).1)
        .chain(under_test)
        .collect()
}

/// Returns two connected sides of a device; the first side's WorkQ has `depth` slots.
fn pair(device: &Device, setup: Setup, depth: u32) -> (Side, Side) {
    let side = |depth| {
        let workq = WorkQ::builder().depth(depth).mode(setup.mode);
        Side::on(device, &workq.build().unwrap(), setup)
    };
    let sides = (side(depth), side(32));
    connect(&sides.0.rdma, &sides.1.rdma);
    sides
}

/// Runs `story` on each device, in each mode, with each of these depths of the sender's WorkQ.
fn each(depths: &[u32], story: impl AsyncFn(Side, Side)) {
    let modes = Setup::all().into_iter().filter(|setup| !setup.defer);
    for setup in modes {
        for device in devices() {
            for &depth in depths {
                eprintln!("{:?}, depth {depth}, {}", setup.mode, device.info().name());
                let (here, there) = pair(&device, setup, depth);
                run(story(here, there));
            }
        }
    }
}

fn message(number: u32) -> Vec<u8> {
    number.to_le_bytes().repeat(1 + number as usize % 20)
}

/// Feeds messages with these numbers as Bufs become free.
async fn feed(
    side: &Side,
    sink: &mut SendSink<Buf>,
    numbers: impl Iterator<Item = u32>,
) -> Result<(), JobError> {
    for number in numbers {
        let buf = side.pool.alloc().await;
        buf.extend_from_slice(&message(number)).unwrap();
        sink.feed(buf).await?;
    }
    Ok(())
}

async fn expect(side: &Side, numbers: impl Iterator<Item = u32>) {
    for number in numbers {
        let what = format!("message {number}");
        let received = in_time(&what, side.recv()).await;
        assert_eq!(received, Ok(message(number)), "{what}");
    }
}

#[test]
fn messages_arrive_in_order_at_a_peer_that_posts_late() {
    each(&[2, 32], async |here, there| {
        for depth in [1, 5, 64] {
            let mut sink = here.rdma.send_sink(depth);
            let sends = async {
                feed(&here, &mut sink, 0..MESSAGES).await.unwrap();
                sink.close().await.unwrap();
            };
            let mut sends = pin!(in_time("the sends", sends));
            // The peer has posted no receives, so the messages wait.
            assert_eq!(sends.as_mut().now_or_never(), None);
            join(sends, expect(&there, 0..MESSAGES)).await;
        }
        here.all_back().await;
    });
}

#[test]
fn a_burst_is_sent_by_its_flush_and_not_before() {
    each(&[32], async |here, there| {
        let mut sink = here.rdma.send_sink(64);
        let posted = (0..12).map(|_| Box::pin(there.rdma.recv(there.empty()).start().unwrap()));
        let mut posted: Vec<_> = posted.collect();
        feed(&here, &mut sink, 0..12).await.unwrap();
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert!(poll(posted[0].as_mut()).is_pending());
        sink.flush().await.unwrap();
        for posted in posted {
            in_time("the burst", posted).await.unwrap();
        }
        // A flush without messages completes at once.
        assert_eq!(sink.flush().now_or_never(), Some(Ok(())));
    });
}

/// The peer receives the first half of a burst while the second half is fed, if the WorkQ serves no
/// other peer.
#[test]
fn a_burst_leaves_by_halves_where_it_is_alone_and_inline() {
    if needs_soft("nothing is sent inline") {
        return;
    }
    for mode in [Mode::EventDriven, Mode::BusyPoll] {
        for (others, fed_before) in [(0, 16), (1, 32)] {
            let (device, setup) = (under_test(false), Setup::new(false, mode));
            let (here, there) = pair(&device, setup, 64);
            let others: Vec<_> = (0..others)
                .map(|_| Side::on(&device, &here.workq, setup))
                .collect();
            run(async {
                let mut posted = Box::pin(there.rdma.recv(there.empty()).start().unwrap());
                let (mut sink, src) = (here.rdma.send_sink(64), here.filled(b"one of many"));
                for fed in 0..=fed_before {
                    assert!(poll(posted.as_mut()).is_pending(), "{fed} were fed");
                    sink.feed(src.clone()).await.unwrap();
                }
                let came = in_time("the first", posted).await.unwrap();
                assert_eq!(came.len, src.data_len());
            });
            drop(others);
        }
    }
}

/// A fed message is leased: it cannot be changed before it is sent.
#[test]
fn a_fed_message_is_leased() {
    each(&[32], async |here, _there| {
        let mut sink = here.rdma.send_sink(64);
        let buf = here.filled(b"fed");
        sink.feed(buf.clone()).await.unwrap();
        assert_eq!(buf.data_mut().unwrap_err().kind(), ErrorKind::InUse);
        drop(sink);
        assert!(buf.data_mut().is_ok());
    });
}

#[test]
fn a_sink_has_no_more_than_its_depth_on_their_way() {
    each(&[32], async |here, there| {
        let mut sink = here.rdma.send_sink(3);
        let sends = async {
            feed(&here, &mut sink, 0..10).await.unwrap();
            sink.flush().await.unwrap();
        };
        let mut sends = pin!(sends);
        assert_eq!(sends.as_mut().now_or_never(), None);
        assert_eq!(here.workq.in_flight(), 3);
        join(sends, expect(&there, 0..10)).await;
    });
}

/// Messages of a sink are queued behind sends that were polled before the flush, and before sends
/// that are polled after it.
#[test]
fn a_flush_passes_nothing_that_waits_in_line_and_is_not_passed() {
    each(&[1, 3, 32], async |here, there| {
        let plain = |numbers: std::ops::Range<u32>| {
            join_all(numbers.map(|number| {
                let buf = here.filled(&message(number));
                here.rdma.send(buf)
            }))
        };
        let mut sink = here.rdma.send_sink(64);
        // Feeds as many messages as the sink accepts. The plain sends have the slots.
        let end = 4 + here.workq.depth().min(10);
        feed(&here, &mut sink, 4..end).await.unwrap();
        let sends = join3(plain(0..4), sink.flush(), plain(end..20));
        let sends = in_time("the sends", join(sends, expect(&there, 0..20)));
        let (before, flushed, after) = sends.await.0;
        assert_eq!(flushed, Ok(()));
        assert!(before.iter().chain(&after).all(Result::is_ok));
    });
}

#[test]
fn tasks_with_sinks_and_plain_sends_share_an_rdma() {
    const EACH: u32 = 200;
    let modes = Setup::all().into_iter().filter(|setup| !setup.defer);
    for (setup, device) in modes.flat_map(|setup| devices().into_iter().map(move |d| (setup, d))) {
        for depth in [2, 32] {
            let (here, there) = pair(&device, setup, depth);
            let here = std::sync::Arc::new(here);
            let sink = |first: u32, depth: usize| {
                let here = here.clone();
                async move {
                    let mut sink = here.rdma.send_sink(depth);
                    for burst in (first..first + EACH).collect::<Vec<_>>().chunks(7) {
                        feed(&here, &mut sink, burst.iter().copied()).await.unwrap();
                        sink.flush().await.unwrap();
                    }
                }
            };
            let plain = {
                let here = here.clone();
                async move {
                    for number in 2 * EACH..3 * EACH {
                        here.send(&message(number)).await.unwrap();
                    }
                }
            };
            let (one, other) = (sink(0, 4), sink(EACH, 64));
            let story = async move {
                let tasks = [tokio::spawn(one), tokio::spawn(other), tokio::spawn(plain)];
                let mut next = [0, EACH, 2 * EACH];
                for _ in 0..3 * EACH {
                    let bytes = in_time("a message", there.recv()).await.unwrap();
                    let number = u32::from_le_bytes(bytes[..4].try_into().unwrap());
                    let next = &mut next[(number / EACH) as usize];
                    assert_eq!((number, bytes), (*next, message(*next)), "{setup:?}");
                    *next += 1;
                }
                join_all(tasks).await.into_iter().for_each(Result::unwrap);
            };
            let runtime = workers();
            runtime.block_on(async { tokio::spawn(story).await.unwrap() });
        }
    }
}

/// Checks that each call from now on reports that the sink has failed.
async fn assert_failed(side: &Side, sink: &mut SendSink<Buf>) {
    let over = (Reason::SinkFailed, None);
    assert_eq!(failed(sink.feed(side.filled(b"more")).await), over);
    assert_eq!(failed(sink.flush().await), over);
    assert_eq!(failed(sink.close().await), over);
}

#[test]
fn a_peer_that_has_gone_amid_a_batch_ends_the_sink() {
    each(&[2, 32], async |here, there| {
        let mut sink = here.rdma.send_sink(32);
        let all = here.workq.depth().min(20);
        feed(&here, &mut sink, 0..all).await.unwrap();
        let mut flush = sink.flush();
        {
            let some = pin!(expect(&there, 0..all / 2));
            let Either::Right(_) = select(&mut flush, some).await else {
                panic!("the last messages found no receive");
            };
        }
        drop(there);
        let (reason, cause) = failed(in_time("the flush", flush).await);
        assert_eq!((reason, cause), (Reason::Flushed, Some(Reason::PeerClosed)));
        assert_failed(&here, &mut sink).await;
        here.all_back().await;
    });
}

#[test]
fn a_message_that_is_too_long_for_its_receive_ends_the_sink() {
    each(&[2, 32], async |here, there| {
        let mut sink = here.rdma.send_sink(32);
        let whole = (0..2).map(|_| there.rdma.recv(there.empty()).start().unwrap());
        let whole: Vec<_> = whole.collect();
        let small = there.empty();
        small
            .extend_from_slice(&vec![0; small.tailroom() - 1])
            .unwrap();
        let small = there.rdma.recv(small).start().unwrap();
        let sends = async {
            feed(&here, &mut sink, 0..6).await?;
            sink.flush().await
        };
        let (reason, _) = failed(in_time("the sends", sends).await);
        assert_eq!(reason, Reason::MessageTooLong);
        for received in whole {
            in_time("a message before it", received).await.unwrap();
        }
        assert!(small.await.is_err());
        assert_failed(&here, &mut sink).await;
        assert!(matches!(here.rdma.state(), RdmaState::Error(_)));
        here.all_back().await;
    });
}

/// Messages that were fed before the refused one are not sent, and the connection stays usable.
#[test]
fn a_message_that_is_refused_ends_the_sink_alone() {
    each(&[32], async |here, there| {
        let mut sink = here.rdma.send_sink(32);
        feed(&here, &mut sink, 0..6).await.unwrap();
        let used = here.filled(b"used");
        let guard = used.data_mut().unwrap();
        let (reason, _) = failed(sink.feed(used.clone()).await);
        assert_eq!(reason, Reason::SourceInUse);
        drop(guard);
        assert_failed(&here, &mut sink).await;
        let (sent, received) = join(here.send(b"plain"), there.recv()).await;
        assert_eq!((sent, received), (Ok(()), Ok(b"plain".to_vec())));
        drop(used);
        here.all_back().await;
    });
}

/// A message is refused if its source is in use when the message gets a slot.
#[test]
fn a_message_that_is_refused_in_line_ends_the_sink_and_those_behind_it_are_not_sent() {
    each(&[1], async |here, there| {
        let mut sink = here.rdma.send_sink(1);
        // The sink holds as many messages as the WorkQ has slots, so its message waits for the slot
        // of another send.
        let holder = here.rdma.send(here.filled(&message(0))).start().unwrap();
        let used = here.filled(&message(1));
        sink.feed(used.clone()).await.unwrap();
        let mut flush = sink.flush();
        assert_eq!(poll(pin!(&mut flush)), Poll::Pending);
        let guard = used.data_mut().unwrap();
        let sends = async {
            holder.await.unwrap();
            failed(in_time("the flush", flush).await).0
        };
        let (reason, ()) = join(sends, expect(&there, 0..1)).await;
        assert_eq!(reason, Reason::SourceInUse);
        drop(guard);
        assert_failed(&here, &mut sink).await;
        let (sent, ()) = join(here.send(&message(2)), expect(&there, 2..3)).await;
        assert_eq!(sent, Ok(()));
    });
}

#[test]
fn a_dropped_sink_sends_what_was_submitted_and_nothing_else() {
    each(&[4, 32], async |here, there| {
        let depth = here.workq.depth();
        let plain = here.rdma.send(here.filled(&message(0))).start().unwrap();
        let mut sink = here.rdma.send_sink(32);
        feed(&here, &mut sink, 1..5).await.unwrap();
        assert!(sink.flush().now_or_never().is_none());
        if depth > 4 {
            feed(&here, &mut sink, 5..9).await.unwrap();
        }
        drop(sink);
        // With 4 slots the last of the four flushed messages still waits. With 32 slots the four
        // that were fed after the flush are not submitted.
        let submitted = depth.min(5);
        assert_eq!(here.workq.in_flight() as u32, submitted);
        let last = async { here.send(&message(100)).await.unwrap() };
        let received = expect(&there, (0..submitted).chain([100]));
        in_time("all", join3(plain, last, received))
            .await
            .0
            .unwrap();
        here.all_back().await;
    });
}

/// The sink's task may do other work: the slots and Bufs of completed sends become free without it.
#[test]
fn sends_that_are_over_hold_up_nobody_though_nobody_polls_the_sink() {
    each(&[4], async |here, there| {
        let mut sink = here.rdma.send_sink(4);
        feed(&here, &mut sink, 0..4).await.unwrap();
        assert!(sink.flush().now_or_never().is_none());
        expect(&there, 0..4).await;
        // No operation of this WorkQ is polled.
        until("the Slots are free", || here.workq.in_flight() == 0).await;
        // This send needs a slot.
        let holder = here.rdma.send(here.filled(&message(4)));
        let (sent, ()) = join(holder, expect(&there, 4..5)).await;
        sent.unwrap();
        here.all_back().await;
        in_time("the flush", sink.flush()).await.unwrap();
    });
}

#[test]
fn a_shutdown_ends_a_sink() {
    each(&[2, 32], async |here, there| {
        let mut sink = here.rdma.send_sink(32);
        feed(&here, &mut sink, 0..2).await.unwrap();
        let posted = (0..2).map(|_| there.rdma.recv(there.empty()).start().unwrap());
        let posted: Vec<_> = posted.collect();
        in_time("the shutdown", here.workq.shutdown())
            .await
            .unwrap();
        let error = sink.feed(here.filled(b"late")).await;
        assert_eq!(failed(error), (Reason::Shutdown, None));
        // A sink that has sent everything closes without an error.
        here.rdma.send_sink::<Buf>(32).close().await.unwrap();
        assert_failed(&here, &mut sink).await;
        drop(posted);
    });
}

/// A sink whose messages are all sent inline lets other tasks run, whether it is fed or flushed.
#[test]
fn a_sink_that_is_fed_for_ever_starves_nobody() {
    if needs_soft("nothing is sent inline") {
        return;
    }
    for mode in [Mode::EventDriven, Mode::BusyPoll] {
        let setup = Setup {
            receives: 8192,
            ..Setup::new(false, mode)
        };
        run(async {
            let (here, there) = pair(&under_test(false), setup, 32);
            for at in 0..8192 {
                there.rdma.recv(()).post(at).unwrap();
            }
            let turns = turns_of_another();
            let mut sink = here.rdma.send_sink(32);
            for _ in 0..4096 {
                sink.feed(()).await.unwrap();
            }
            sink.flush().await.unwrap();
            let fed = turns();
            assert!((3..100).contains(&fed), "{fed} turns in 4,096 messages");
            for _ in 0..4096 {
                sink.send(()).await.unwrap();
            }
            let flushed = turns() - fed;
            assert!(
                (3..100).contains(&flushed),
                "{flushed} turns in 4,096 flushes"
            );
        });
    }
}
