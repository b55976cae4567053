//! The statistics of streams and listeners.

use std::pin::pin;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{Either, join, select};
use support::device::{needs_soft, under_test};
use support::stream::{Net, bytes, each, each_by_rdma, small};
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_doca::Mode;
use tokio_doca::stream::{Incoming, ListenerStats, RdmaStream, StreamStats};

use super::exchange::Raw;
use super::slots::{DEPTH, Held};

/// Returns the bytes and frames that were sent, and those that were received.
fn moved(stream: &RdmaStream) -> [u64; 4] {
    let stats = stream.stats();
    [
        stats.bytes_sent,
        stats.frames_sent,
        stats.bytes_received,
        stats.frames_received,
    ]
}

#[test]
fn bytes_frames_and_waits_for_credits_are_counted() {
    each_by_rdma(2, 64, small(), async |net| {
        let (mut here, mut there) = net.pair().await;
        for stream in [&here, &there] {
            assert_eq!(moved(stream), [0; 4]);
            assert_eq!(
                (stream.stats().credits, stream.stats().frames_unread),
                (3, 0)
            );
        }
        // Sends as many frames as there are credits.
        here.write_all(b"hello").await.unwrap();
        assert_eq!(here.stats().credits, 2);
        in_time("two frames", here.write_all(&bytes(0..2 * 252)))
            .await
            .unwrap();
        assert_eq!(moved(&here), [509, 3, 0, 0]);
        assert_eq!((here.stats().credits, here.stats().credit_waits), (0, 0));
        // A wait counts once, however often it is polled.
        for _ in 0..3 {
            assert!(here.write(&bytes(0..200)).now_or_never().is_none());
            assert_eq!(here.stats().credit_waits, 1);
        }
        assert_eq!(moved(&there), [0; 4]);
        assert_eq!(in_time("a byte", there.read_u8()).await.unwrap(), b'h');
        assert_eq!(moved(&there), [0, 0, 5, 1]);
        assert_eq!(there.stats().frames_unread, 1);
        let both = join(here.write_all(b"more"), async {
            there.read_exact(&mut [0; 508]).await.unwrap();
            there.read_exact(&mut [0; 4]).await.unwrap();
        });
        in_time("the rest", both).await.0.unwrap();
        assert_eq!(moved(&here), [513, 4, 0, 0]);
        assert_eq!(moved(&there), [0, 0, 513, 4]);
        assert_eq!(there.stats().frames_unread, 0);
        assert_eq!(here.stats().credit_waits, 1);
        // Another frame waits for a credit.
        let waits = async {
            while here.stats().credit_waits < 2 {
                _ = here.write(b"more").now_or_never();
                tokio::task::yield_now().await;
            }
        };
        in_time("a wait for credits", waits).await;
        assert_eq!((here.stats().credits, here.stats().credit_waits), (0, 2));
        // The bytes written since then make one more frame. Neither the end nor credits count as
        // frames with data.
        let [sent, frames, ..] = moved(&here);
        let mut came = Vec::new();
        let both = join(here.shutdown(), there.read_to_end(&mut came));
        in_time("the end", both).await.0.unwrap();
        assert_eq!(moved(&here), [sent, frames + 1, 0, 0]);
        assert_eq!(moved(&there), [0, 0, sent, frames + 1]);
    });
}

#[test]
fn frames_that_are_handed_over_as_bufs_are_counted() {
    each(small(), async |net| {
        let (mut here, there) = net.pair().await;
        here.write_all(b"hello").await.unwrap();
        let mut there = there.into_messages();
        let came = in_time("a frame", there.recv_buf()).await.unwrap().unwrap();
        in_time("its way back", there.send_buf(came)).await.unwrap();
        assert_eq!(moved(there.stream()), [5, 1, 5, 1]);
        here.read_exact(&mut [0; 5]).await.unwrap();
        assert_eq!(moved(&here), [5, 1, 5, 1]);
    });
}

#[test]
fn a_wait_for_a_slot_is_counted_once() {
    if needs_soft("its sends are held by a device that finishes nothing inline") {
        return;
    }
    for mode in modes() {
        run(async {
            let net = Net::deep(DEPTH, &under_test(true), mode, small()).await;
            let (mut here, mut there) = net.pair().await;
            until("all is quiet", || {
                here.rdma().unwrap().workq().in_flight() == 0
            })
            .await;
            let held = Held::of(&here);
            for _ in 0..3 {
                assert!(here.write(b"hello").now_or_never().is_none());
            }
            let waits = |stats: StreamStats| (stats.credit_waits, stats.resource_waits);
            assert_eq!(waits(here.stats()), (0, 1));
            held.release().await;
            in_time("the write", here.write_all(b"hello"))
                .await
                .unwrap();
            in_time("the read", there.read_exact(&mut [0; 5]))
                .await
                .unwrap();
            assert_eq!(waits(here.stats()), (0, 1));
            assert_eq!(moved(&here), [5, 1, 0, 0]);
        });
    }
}

/// Waits until the listener's counters have these values.
async fn counts(net: &Net, expected: ListenerStats) {
    let heard = async {
        while net.listener.stats() != expected {
            let came = net.listener.accept().now_or_never();
            assert!(came.is_none(), "it is no peer");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let heard = tokio::time::timeout(LIMIT, heard).await;
    assert!(
        heard.is_ok(),
        "{:?}, not {expected:?}",
        net.listener.stats()
    );
}

/// Returns the request of a peer that is not answered yet, and the peer's connect.
async fn asks(net: &Net) -> (Incoming, impl Future) {
    let mut connect = Box::pin(net.connector.connect(net.addr));
    let accept = pin!(net.listener.accept());
    let both = select(accept, &mut connect);
    let Either::Left((incoming, _)) = in_time("the hello", both).await else {
        panic!("it is connected, and was not accepted");
    };
    (incoming.unwrap(), connect)
}

#[test]
fn what_becomes_of_peers_is_counted() {
    run(async {
        let options = small().connections(1).half_open(1);
        let net = Net::new(&under_test(false), Mode::EventDriven, options).await;
        let mut expected = ListenerStats::default();
        assert_eq!(net.listener.stats(), expected);

        // Two strangers: one uses another protocol, and one sends nothing and hangs up.
        let mut curl = TcpStream::connect(net.addr).await.unwrap();
        curl.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        expected.strangers = 1;
        counts(&net, expected).await;
        let silent = TcpStream::connect(net.addr).await.unwrap();
        expected.half_open = 1;
        counts(&net, expected).await;
        drop(silent);
        (expected.strangers, expected.half_open) = (2, 0);
        counts(&net, expected).await;

        // A silent peer while another one comes.
        let _silent = TcpStream::connect(net.addr).await.unwrap();
        expected.half_open = 1;
        counts(&net, expected).await;
        let (incoming, connect) = asks(&net).await;
        (expected.timed_out, expected.half_open) = (1, 0);
        assert_eq!(net.listener.stats(), expected);

        // Peers that are refused with a text, by a drop, and by a drop of the future of `accept`.
        _ = join(incoming.refuse("not you"), connect).await;
        expected.refused = 1;
        assert_eq!(net.listener.stats(), expected);
        drop(asks(&net).await.0);
        expected.refused = 2;
        assert_eq!(net.listener.stats(), expected);
        let (incoming, connect) = asks(&net).await;
        assert!(incoming.accept(b"").now_or_never().is_none());
        drop(connect);
        expected.refused = 3;
        assert_eq!(net.listener.stats(), expected);

        // A peer that gives up.
        let (incoming, connect) = asks(&net).await;
        drop(connect);
        in_time("the end", incoming.accept(b"")).await.unwrap_err();
        expected.failed = 1;
        assert_eq!(net.listener.stats(), expected);

        // A stream, and a peer for which there is no memory.
        let pair = net.pair().await;
        (expected.accepted, expected.open) = (1, 1);
        assert_eq!(net.listener.stats(), expected);
        let other = Net::new(&under_test(false), Mode::EventDriven, options).await;
        let accept = async { net.listener.accept().await?.accept(b"").await };
        let both = join(other.connector.connect(net.addr), accept);
        in_time("the refusal", both).await.1.unwrap_err();
        expected.full = 1;
        assert_eq!(net.listener.stats(), expected);
        drop(pair);
        expected.open = 0;
        counts(&net, expected).await;
        assert_eq!(other.listener.stats(), ListenerStats::default());
    });
}

#[test]
fn peers_that_run_out_of_time_are_counted() {
    run(async {
        let options = small().timeout(Duration::from_millis(50));
        let net = Net::new(&under_test(false), Mode::EventDriven, options).await;
        let _silent = TcpStream::connect(net.addr).await.unwrap();
        let mut expected = ListenerStats::default();
        expected.timed_out = 1;
        counts(&net, expected).await;
        let mut raw = Raw::new(&net).await;
        raw.say(&raw.hello()).await;
        let incoming = in_time("the hello", net.listener.accept()).await.unwrap();
        // The peer never reports that it is ready.
        in_time("the end", incoming.accept(b"")).await.unwrap_err();
        expected.timed_out = 2;
        assert_eq!(net.listener.stats(), expected);
    });
}
