//! Receives: their order, dropped ones, back-pressure, and the stream of receives.

use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::StreamExt;
use support::both_sides::*;
use support::device::{adapter, assert_told, defers, under_test};
use support::loopback::Loopback;
use support::{Count, LIMIT, in_time, poll, until};
use tokio_doca::{
    BufPool, Device, ErrorKind, Mmap, Mode,
    error::Reason,
    mem::BufChain,
    rdma::{RdmaState, RecvOpcode},
};

const MODES: [Mode; 3] = [
    Mode::EventDriven,
    Mode::BusyPoll,
    Mode::Hybrid {
        spin: Duration::from_micros(20),
    },
];

/// Awaits the future, and fails the test if it does not complete in time.
async fn within<F: Future>(future: F) -> F::Output {
    in_time("it", future).await
}

/// Runs `test` on every device, for tests that need not know what the device holds.
async fn on_devices<F: Future<Output = ()>>(test: impl Fn(Side, Side) -> F) {
    for (mode, device) in on_each_device() {
        let (here, there) = pair(&device, mode);
        within(test(here, there)).await;
    }
}

async fn everywhere<F: Future<Output = ()>>(test: impl Fn(Loopback, Side, Side) -> F) {
    for mode in MODES {
        let (loopback, device) = Loopback::device(false);
        let (here, there) = pair(&device, mode);
        within(test(loopback, here, there)).await;
    }
}

/// Returns the loopback device, and either the software devices, one of which finishes jobs inline,
/// or the adapter.
fn devices() -> Vec<Device> {
    let under_test = defers().iter().map(|&defer| under_test(defer));
    std::iter::once(Loopback::device(false).1)
        .chain(under_test)
        .collect()
}

fn on_each_device() -> impl Iterator<Item = (Mode, Device)> {
    let in_each_mode = |device: Device| MODES.map(|mode| (mode, device.clone()));
    devices().into_iter().flat_map(in_each_mode)
}

/// Returns two sides with `receives` entries for receives.
fn small(device: &Device, mode: Mode, receives: u32) -> (Side, Side) {
    let side = || Side::with(device, mode, |builder| builder.recv_queue_size(receives));
    let sides = (side(), side());
    connect(&sides.0.rdma, &sides.1.rdma);
    sides
}

fn message(number: u32) -> [u8; 4] {
    number.to_le_bytes()
}

#[tokio::test]
async fn timeouts_lose_no_message() {
    // On an emulated adapter each message takes milliseconds.
    let messages = if adapter().is_some() { 100 } else { 1000 };
    for (mode, device) in on_each_device() {
        for same in [true, false] {
            let (here, there) = pair(&device, mode);
            let sender = tokio::spawn(async move {
                for number in 0..messages {
                    here.rdma.send(here.filled(&message(number))).await.unwrap();
                    for _ in 0..number % 8 {
                        tokio::task::yield_now().await;
                    }
                }
                here
            });
            let receives = async {
                let (mut number, mut dropped, mut tries) = (0, 0, 0);
                let mut dst = there.empty();
                while number < messages {
                    // Gives up at the first, second or third poll.
                    let mut patience = tries % 3;
                    tries += 1;
                    let received = {
                        let mut receive = pin!(there.rdma.recv(&dst));
                        std::future::poll_fn(|cx| match receive.as_mut().poll(cx) {
                            Poll::Ready(received) => Poll::Ready(Some(received)),
                            Poll::Pending if patience == 0 => Poll::Ready(None),
                            Poll::Pending => {
                                patience -= 1;
                                cx.waker().wake_by_ref();
                                Poll::Pending
                            }
                        })
                        .await
                    };
                    match received {
                        None => {
                            dropped += 1;
                            tokio::task::yield_now().await;
                            if !same {
                                dst = there.empty();
                            }
                        }
                        Some(received) => {
                            assert_eq!(received.unwrap().len, 4);
                            assert_eq!(dst.data().unwrap()[..], message(number));
                            dst.reset_data_len().unwrap();
                            number += 1;
                        }
                    }
                }
                dropped
            };
            let dropped = within(receives).await;
            assert!(
                dropped >= messages,
                "{dropped} were dropped in mode {mode:?}"
            );
            let here = within(sender).await.unwrap();
            assert_eq!(here.workq.in_flight(), 0);
            drop(here);
            let bufs = there.pool.elements();
            let Side { rdma, pool, .. } = there;
            drop(rdma);
            let all: Vec<_> = std::iter::from_fn(|| pool.try_alloc().ok()).collect();
            assert_eq!(all.len(), bufs, "no Buf is lost");
        }
    }
}

#[tokio::test]
async fn what_landed_for_dropped_ones_goes_to_the_next_in_order() {
    everywhere(|loopback, here, there| async move {
        let dropped: Vec<_> = (0..4).map(|_| there.empty()).collect();
        let posted = |dst| there.rdma.recv(dst).start().unwrap();
        drop(dropped.iter().map(posted).collect::<Vec<_>>());
        assert_eq!(loopback.posted(), 4);
        assert_eq!(dropped[0].data_mut().unwrap_err().kind(), ErrorKind::InUse);
        for number in 0..3 {
            here.rdma.send(here.filled(&message(number))).await.unwrap();
        }
        // Three messages have arrived, and one receive is still posted; adopters post nothing.
        let dst = there.empty();
        for number in 0..3 {
            assert_eq!(there.rdma.recv(&dst).await.unwrap().len, 4);
            assert_eq!(dst.data().unwrap()[number as usize * 4..], message(number));
        }
        for dst in &dropped[..3] {
            assert_eq!(dst.data_len(), 0, "its own Op did not take it");
        }
        let mut fourth = pin!(there.rdma.recv(&dst));
        assert!(poll(fourth.as_mut()).is_pending());
        assert_eq!(loopback.posted(), 1);
        // An adopter that is dropped leaves its receive to the next one.
        drop(there.rdma.recv(there.empty()).start().unwrap());
        assert_eq!(loopback.posted(), 2);
        let (sent, received) = tokio::join!(here.rdma.send(here.filled(&message(3))), fourth);
        assert_eq!((sent, received.unwrap().len), (Ok(4), 4));
        assert_eq!(dst.data().unwrap()[12..], message(3));
        assert_eq!(loopback.posted(), 1);
    })
    .await;
}

#[tokio::test]
async fn adopters_dropped_in_any_order_leave_the_oldest_first() {
    everywhere(|loopback, here, there| async move {
        let mut receives: Vec<_> = (0..3)
            .map(|_| Some(there.rdma.recv(there.empty()).start().unwrap()))
            .collect();
        for at in [1, 2, 0] {
            receives[at] = None;
        }
        for number in 0..3 {
            here.rdma.send(here.filled(&message(number))).await.unwrap();
        }
        assert_eq!(loopback.posted(), 0);
        for number in 0..3 {
            let dst = there.empty();
            there.rdma.recv(&dst).await.unwrap();
            assert_eq!(dst.data().unwrap()[..], message(number));
        }
    })
    .await;
}

#[tokio::test]
async fn a_message_that_does_not_fit_or_cannot_be_had_stays_for_the_next() {
    on_devices(|here, there| async move {
        let recv = |dst| there.rdma.recv(dst);
        drop(there.rdma.recv(there.empty()).start().unwrap());
        here.rdma.send(here.filled(b"hello")).await.unwrap();
        let narrow = there.filled(&[0; ELEMENT - 4]);
        let error = recv(&narrow).await.unwrap_err();
        assert_eq!(error.reason(), Reason::ReceiveTooSmall);
        let error = there.rdma.recv(()).await.unwrap_err();
        assert_eq!(error.reason(), Reason::ReceiveTooSmall);
        let used = there.empty();
        let guard = used.data_mut().unwrap();
        let error = recv(&used).await.unwrap_err();
        assert_eq!(error.reason(), Reason::DestinationInUse);
        drop(guard);
        assert_eq!(there.rdma.state(), RdmaState::Connected);
        // A list receives the message in pieces.
        let chain = BufChain::with_capacity(1);
        chain.push(there.filled(&[0; ELEMENT - 5])).unwrap();
        assert_eq!(there.rdma.recv(&chain).await.unwrap().len, 5);
        assert_eq!(
            (chain.data_len(), narrow.data_len()),
            (ELEMENT, ELEMENT - 4)
        );
        // An immediate needs no memory.
        drop(there.rdma.recv(there.empty()).start().unwrap());
        here.rdma.send_imm((), 9).await.unwrap();
        let received = there.rdma.recv(()).await.unwrap();
        assert_eq!((received.len, received.immediate), (0, Some(9)));
        assert_eq!(received.opcode, RecvOpcode::SendImm);
    })
    .await;
}

#[tokio::test]
async fn a_message_longer_than_the_receive_fails_both() {
    on_devices(|here, there| async move {
        let narrow = there.filled(&[0; ELEMENT - 4]);
        let (sent, received) = tokio::join!(
            here.rdma.send(here.filled(b"hello")),
            there.rdma.recv(&narrow)
        );
        assert_told(sent.unwrap_err(), Reason::MessageTooLong);
        assert_told(received.unwrap_err(), Reason::ReceiveTooSmall);
        for side in [&here, &there] {
            assert!(matches!(side.rdma.state(), RdmaState::Error(_)));
        }
        assert!(narrow.data_mut().is_ok());
    })
    .await;
}

#[tokio::test]
async fn receives_that_wait_at_once_end_in_order() {
    on_devices(|here, there| async move {
        let receives: futures::stream::FuturesOrdered<_> = (0..8)
            .map(|_| async {
                let dst = there.empty();
                there.rdma.recv(&dst).await.map(|_| dst)
            })
            .collect();
        let sends = async {
            for number in 0..8 {
                here.rdma.send(here.filled(&message(number))).await.unwrap();
            }
        };
        let (received, ()) = tokio::join!(receives.collect::<Vec<_>>(), sends);
        for (number, dst) in received.into_iter().enumerate() {
            assert_eq!(dst.unwrap().data().unwrap()[..], message(number as u32));
        }
    })
    .await;
}

#[tokio::test]
async fn without_a_place_a_receive_waits_its_turn_or_says_so() {
    for mode in MODES {
        let (loopback, device) = Loopback::device(false);
        let (here, there) = small(&device, mode, 2);
        let first = there.rdma.recv(there.empty()).start().unwrap();
        let second = there.rdma.recv(there.empty()).start().unwrap();
        let error = there.rdma.recv(()).start().err().unwrap();
        assert_eq!(
            (error.reason(), error.kind()),
            (Reason::RecvQueueFull, ErrorKind::Again)
        );
        let dsts = [there.empty(), there.empty()];
        let mut third = pin!(there.rdma.recv(&dsts[0]));
        let mut fourth = pin!(there.rdma.recv(&dsts[1]));
        assert!(poll(third.as_mut()).is_pending() && poll(fourth.as_mut()).is_pending());
        assert_eq!(
            dsts[0].data_mut().map(drop),
            Ok(()),
            "it is not leased in line"
        );
        assert_eq!(loopback.posted(), 2);
        // Dropping a receive also allows another one, which adopts it.
        drop(second);
        let sends = async {
            for number in 0..3 {
                here.rdma.send(here.filled(&message(number))).await.unwrap();
            }
        };
        let all = async { tokio::join!(first, third, fourth, sends) };
        let (first, third, fourth, ()) = within(all).await;
        assert_eq!((first.unwrap().len, third.unwrap().len), (4, 4));
        assert_eq!(dsts[0].data().unwrap()[..], message(1), "in order");
        assert_eq!(fourth.unwrap().len, 4);
        assert_eq!(dsts[1].data().unwrap()[..], message(2));
    }
}

#[tokio::test]
async fn a_forgotten_receive_keeps_its_place_and_holds_up_nobody() {
    on_devices(|here, _| async move {
        let device = here.device.clone();
        let (here, there) = small(&device, here.workq.mode(), 2);
        let buf = there.empty();
        std::mem::forget(there.rdma.recv(buf.clone()).start().unwrap());
        let second = there.rdma.recv(there.empty()).start().unwrap();
        // A receive that waits for an entry, is notified, and is never polled again.
        let mut lazy = Box::pin(there.rdma.recv(()));
        assert!(poll(lazy.as_mut()).is_pending());
        std::mem::forget(lazy);
        let next = there.rdma.recv(there.empty());
        let sends = async {
            for number in 0..3 {
                here.rdma.send(here.filled(&message(number))).await.unwrap();
            }
        };
        let (second, next, ()) = tokio::join!(second, next, sends);
        assert_eq!((second.unwrap().len, next.unwrap().len), (4, 4));
        assert_eq!(buf.data_mut().unwrap_err().kind(), ErrorKind::InUse);
    })
    .await;
}

#[tokio::test]
async fn a_stream_of_more_receives_than_can_be_posted_is_refused() {
    on_devices(|_, there| async move {
        for (receives, asked) in [(0, "of 0 receives"), (1000, "of 1000 receives")] {
            let mut stream = there.rdma.recv_stream(&there.pool, receives);
            let error = within(stream.next()).await.unwrap().unwrap_err();
            assert_eq!(error.reason(), Reason::ReceivesOutOfRange);
            let text = error.to_string();
            assert!(
                text.contains(asked) && text.contains("recv_queue_size"),
                "{text}"
            );
            assert!(within(stream.next()).await.is_none());
        }
    })
    .await;
}

#[tokio::test]
async fn a_stream_yields_messages_in_order_and_keeps_receives_posted() {
    for mode in MODES {
        let (loopback, device) = Loopback::device(false);
        let (here, there) = pair(&device, mode);
        let mmap = Mmap::builder().device(&device).alloc(8 * 64).unwrap();
        let pool = BufPool::builder(&mmap).element_size(64).build().unwrap();
        let mut stream = there.rdma.recv_stream(&pool, 4);
        assert!(poll(pin!(stream.next())).is_pending());
        assert_eq!(loopback.posted(), 4);
        let sends = async {
            for number in 0..100 {
                here.rdma.send(here.filled(&message(number))).await.unwrap();
            }
            here.rdma.send(()).await.unwrap();
            here.rdma.write_imm((), (), 5).await.unwrap();
        };
        let receives = async {
            // The messages outnumber the pool's Bufs, so that the pool is sometimes empty.
            let mut kept = std::collections::VecDeque::new();
            for number in 0..100 {
                let buf = stream.next().await.unwrap().unwrap().buf.unwrap();
                assert_eq!(buf.data().unwrap()[..], message(number));
                kept.push_back(buf);
                if kept.len() == 6 {
                    kept.pop_front();
                }
            }
            let empty = stream.next().await.unwrap().unwrap();
            assert!(empty.buf.is_none() && empty.received.opcode == RecvOpcode::Send);
            let written = stream.next().await.unwrap().unwrap();
            assert!(written.buf.is_none() && written.received.immediate == Some(5));
        };
        within(async { tokio::join!(sends, receives) }).await;
        // A message for a stream that was dropped goes to the next receive.
        poll(pin!(stream.next()))
            .is_pending()
            .then_some(())
            .unwrap();
        drop(stream);
        here.rdma.send(here.filled(b"late")).await.unwrap();
        let dst = there.empty();
        assert_eq!(within(there.rdma.recv(&dst)).await.unwrap().len, 4);
        // A stream ends with its first error.
        let mut stream = there.rdma.recv_stream(&pool, 64);
        assert!(poll(pin!(stream.next())).is_pending());
        there.rdma.reset().unwrap();
        let error = within(stream.next()).await.unwrap().unwrap_err();
        assert_eq!(error.cause(), Some(Reason::Reset));
        assert!(within(stream.next()).await.is_none());
    }
}

#[tokio::test]
async fn a_stream_takes_over_a_receive_that_is_older_than_its_own() {
    on_devices(|here, there| async move {
        let mut stream = there.rdma.recv_stream(&there.pool, 2);
        assert!(poll(pin!(stream.next())).is_pending());
        // This receive is the third that is posted; the next one of the stream is the fourth.
        let beside = there.rdma.recv(there.empty()).start().unwrap();
        for number in 0..2 {
            here.rdma.send(here.filled(&message(number))).await.unwrap();
            let next = stream.next().await.unwrap().unwrap();
            assert_eq!(next.buf.unwrap().data().unwrap()[..], message(number));
            if number == 0 {
                assert!(poll(pin!(stream.next())).is_pending());
            }
        }
        drop(beside);
        assert!(poll(pin!(stream.next())).is_pending());
        for number in 2..5 {
            here.rdma.send(here.filled(&message(number))).await.unwrap();
            let next = stream.next().await.unwrap().unwrap();
            assert_eq!(next.buf.unwrap().data().unwrap()[..], message(number));
        }
    })
    .await;
}

#[tokio::test]
async fn a_stream_that_has_ended_leaves_its_receives_to_others() {
    on_devices(|here, there| async move {
        let mmap = Mmap::builder().device(&there.device).alloc(4).unwrap();
        let pool = BufPool::builder(&mmap).element_size(2).build().unwrap();
        drop(there.rdma.recv(there.empty()).start().unwrap());
        let mut stream = there.rdma.recv_stream(&pool, 2);
        assert!(poll(pin!(stream.next())).is_pending());
        here.rdma.send(here.filled(b"long")).await.unwrap();
        let error = stream.next().await.unwrap().unwrap_err();
        assert_eq!(error.reason(), Reason::ReceiveTooSmall);
        assert_eq!(there.rdma.recv(there.empty()).await.unwrap().len, 4);
        // This message arrives in the other receive of the stream.
        here.rdma.send(here.filled(b"is")).await.unwrap();
        assert_eq!(there.rdma.recv(there.empty()).await.unwrap().len, 2);
        assert!(stream.next().await.is_none());
    })
    .await;
}

/// Without a runtime the thread itself polls, and so does a caller of `progress`; they must not
/// wait for an event that wakes only the unpolled receive.
#[test]
fn in_block_on_one_in_line_that_nobody_polls_holds_up_nobody() {
    for own_loop in [false, true] {
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let (_, device) = Loopback::device(false);
            let (_here, there) = small(&device, Mode::EventDriven, 1);
            let Side { workq, rdma, .. } = &there;
            workq.event_handle().unwrap();
            let first = rdma.recv(()).start().unwrap();
            let mut lazy = Box::pin(rdma.recv(()));
            assert!(poll(lazy.as_mut()).is_pending());
            let mut second = Box::pin(rdma.recv(there.empty()).owned());
            if own_loop {
                let woken = Count::new();
                let waker = woken.waker();
                let mut cx = Context::from_waker(&waker);
                assert!(second.as_mut().poll(&mut cx).is_pending());
                drop(first);
                assert_eq!(woken.wakes(), 0);
                workq.progress(|_, _| unreachable!());
                assert_eq!(woken.wakes(), 1);
            } else {
                let mut polls = 0;
                let posted = std::future::poll_fn(|cx| {
                    assert!(second.as_mut().poll(cx).is_pending());
                    polls += 1;
                    if polls == 1 {
                        Poll::Pending
                    } else {
                        Poll::Ready(())
                    }
                });
                workq.block_on(async { tokio::join!(posted, async { drop(first) }) });
            }
            tell.send(()).unwrap();
        });
        told.recv_timeout(LIMIT).unwrap();
    }
}

#[tokio::test]
async fn a_receive_that_is_forgotten_asleep_keeps_nobody_arming() {
    let (_, device) = Loopback::device(false);
    let (_here, Side { workq, rdma, .. }) = pair(&device, Mode::EventDriven);
    let mut receive = Box::pin(rdma.recv(()));
    assert!(poll(receive.as_mut()).is_pending());
    std::mem::forget(receive);
    let before = workq.stats();
    // The end of an `Rdma` signals the WorkQ.
    drop(rdma);
    until("it looks", || workq.stats().wake_ups > before.wake_ups).await;
    assert_eq!(workq.stats().arms, before.arms);
}

#[tokio::test]
async fn a_shutdown_ends_those_that_wait_and_gives_their_memory_back() {
    for mode in MODES {
        let (loopback, device) = Loopback::device(false);
        let (_here, there) = small(&device, mode, 1);
        let waits = tokio::spawn(there.rdma.recv(there.empty()).owned());
        until("it is posted", || loopback.posted() == 1).await;
        let in_line = tokio::spawn(there.rdma.recv(()).owned());
        tokio::task::yield_now().await;
        within(there.workq.shutdown()).await.unwrap();
        for receive in [waits, in_line] {
            let error = within(receive).await.unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Shutdown);
        }
        assert_eq!(loopback.posted(), 0);
        assert_eq!(there.free_bufs(), there.pool.elements());
        let error = within(there.rdma.recv(())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Shutdown);
    }
}

#[tokio::test]
async fn an_rdma_that_goes_takes_its_receives_with_it() {
    for mode in MODES {
        let (loopback, device) = Loopback::device(false);
        let (here, there) = pair(&device, mode);
        let dst = there.empty();
        let posted = |_| there.rdma.recv(there.empty()).start().unwrap();
        let receives: Vec<_> = (0..3).map(posted).collect();
        drop((there.rdma.recv(&dst).start().unwrap(), receives));
        // One message has arrived, and is in the device's queue or with an orphan.
        here.rdma.send(here.filled(b"x")).await.unwrap();
        let Side {
            rdma, pool, workq, ..
        } = there;
        rdma.detach().unwrap();
        assert_eq!((loopback.posted(), loopback.endpoints()), (0, 1));
        assert!(dst.data_mut().is_ok());
        drop(dst);
        let all: Vec<_> = std::iter::from_fn(|| pool.try_alloc().ok()).collect();
        assert_eq!(all.len(), pool.elements());
        assert!(matches!(here.rdma.state(), RdmaState::Error(_)));
        drop(all);
        // The next context gets the same number on the WorkQ, but not the messages that were left
        // in the queue.
        let again = tokio_doca::Rdma::builder(&device).attach(&workq).unwrap();
        here.rdma.reset().unwrap();
        connect(&here.rdma, &again);
        let dst = pool.try_alloc().unwrap();
        let (sent, received) =
            within(async { tokio::join!(here.rdma.send(here.filled(b"new")), again.recv(&dst)) })
                .await;
        assert_eq!((sent, received.unwrap().len), (Ok(3), 3));
    }
}

#[tokio::test]
async fn a_reset_drops_messages_that_nobody_took() {
    on_devices(|here, there| async move {
        let bufs = there.free_bufs();
        drop([(); 2].map(|()| there.rdma.recv(there.empty()).start().unwrap()));
        here.rdma.send(here.filled(b"old")).await.unwrap();
        there.rdma.reset().unwrap();
        here.rdma.reset().unwrap();
        assert_eq!(there.free_bufs(), bufs);
        connect(&here.rdma, &there.rdma);
        let dst = there.empty();
        let (sent, received) =
            tokio::join!(here.rdma.send(here.filled(b"fresh")), there.rdma.recv(&dst));
        assert_eq!((sent, received.unwrap().len), (Ok(5), 5));
        assert_eq!(dst.data().unwrap()[..], *b"fresh");
    })
    .await;
}

#[tokio::test]
async fn who_sleeps_is_woken_by_a_change_of_the_mode() {
    let (loopback, device) = Loopback::device(false);
    let (here, there) = pair(&device, Mode::EventDriven);
    let receive = tokio::spawn(there.rdma.recv(there.empty()).owned());
    until("it is posted", || loopback.posted() == 1).await;
    for mode in MODES {
        there.workq.set_mode(mode).unwrap();
        tokio::task::yield_now().await;
    }
    here.rdma.send(here.filled(b"x")).await.unwrap();
    assert_eq!(within(receive).await.unwrap().unwrap().len, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_threads_talk_in_every_mode() {
    for (mode, device) in on_each_device() {
        let (here, there) = pair(&device, mode);
        let answers = tokio::spawn(async move {
            for _ in 0..500 {
                let dst = there.empty();
                let received = there.rdma.recv(&dst).await.unwrap();
                assert_eq!(received.len, 4);
                there.rdma.send(&dst).await.unwrap();
            }
        });
        let asks = tokio::spawn(async move {
            for number in 0..500 {
                let (src, dst) = (here.filled(&message(number)), here.empty());
                let receive = here.rdma.recv(&dst).start().unwrap();
                here.rdma.send(&src).await.unwrap();
                receive.await.unwrap();
                assert_eq!(dst.data().unwrap()[..], message(number));
            }
        });
        within(async { tokio::try_join!(answers, asks) })
            .await
            .unwrap();
    }
}
