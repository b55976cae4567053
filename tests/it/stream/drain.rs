//! `RdmaListener::drain`: a server that ends in order.

use std::time::Duration;

use support::device::under_test;
use support::stream::{Net, bytes, small};
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_doca::stream::RdmaStream;
use tokio_doca::{ErrorKind, Mode};

const SHORT: Duration = Duration::from_millis(20);

/// Runs `story` in each mode.
fn each(story: impl AsyncFn(Net)) {
    for mode in modes() {
        run(async {
            let device = under_test(false);
            story(Net::new(&device, mode, small().connections(2)).await).await;
        });
    }
}

/// Answers requests of ten bytes until the listener drains. Returns the number of answers.
async fn serve(mut stream: RdmaStream) -> std::io::Result<usize> {
    let mut draining = Box::pin(stream.draining());
    let mut answered = 0;
    loop {
        let mut request = [0; 10];
        tokio::select! {
            read = stream.read_exact(&mut request) => { read?; }
            () = &mut draining => {
                stream.shutdown().await?;
                return Ok(answered);
            }
        }
        stream.write_all(&request).await?;
        answered += 1;
    }
}

#[test]
fn streams_are_told_and_waited_for() {
    each(async |net| {
        let (mut idle, other) = net.pair().await;
        let first = tokio::spawn(serve(other));
        let (mut asks, other) = net.pair().await;
        let second = tokio::spawn(serve(other));
        let question = bytes(0..10);
        asks.write_all(&question).await.unwrap();
        let mut answer = vec![0; 10];
        asks.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer, question);
        let Net {
            listener,
            connector,
            addr,
            ..
        } = net;
        assert_eq!(in_time("the drain", listener.drain(LIMIT)).await, 0);
        assert_eq!(first.await.unwrap().unwrap(), 0);
        assert_eq!(second.await.unwrap().unwrap(), 1);
        // Both streams have ended in order: their peers read the end.
        assert_eq!(asks.read(&mut answer).await.unwrap(), 0);
        assert_eq!(idle.read(&mut answer).await.unwrap(), 0);
        assert!(connector.connect(addr).await.is_err(), "nobody listens");
    });
}

#[test]
fn streams_that_do_not_end_in_time_are_counted_and_go_on() {
    each(async |net| {
        let (mut here, mut there) = net.pair().await;
        let (ends, other) = net.pair().await;
        // A `draining` future that outlives its stream does not count as a stream.
        let told = other.draining();
        drop(other);
        drop(ends);
        // The stream has ended once another stream has its memory.
        let _second = net.pair_once_there_is_memory().await;
        let listener = net.listener;
        assert_eq!(in_time("the drain", listener.drain(SHORT)).await, 2);
        in_time("it is told", told).await;
        in_time("it is told", there.draining()).await;
        here.write_all(b"question").await.unwrap();
        let mut came = [0; 8];
        there.read_exact(&mut came).await.unwrap();
        assert_eq!(&came, b"question");
        let of_connector = tokio::time::timeout(SHORT, here.draining()).await;
        assert!(of_connector.is_err(), "a connector does not drain");
    });
}

#[test]
fn a_listener_that_is_dropped_does_not_drain() {
    each(async |net| {
        let (_here, there) = net.pair().await;
        let mut told = Box::pin(there.draining());
        poll_pending(told.as_mut());
        drop(net.listener);
        poll_pending(told.as_mut());
    });
}

#[test]
fn a_peer_that_connects_meanwhile_is_refused() {
    each(async |net| {
        let (_here, there) = net.pair().await;
        let mut drain = Box::pin(net.listener.drain(LIMIT));
        poll_pending(drain.as_mut());
        let connected = in_time("the connect", net.connector.connect(net.addr)).await;
        // Fails at once, because nothing listens any more.
        assert_ne!(connected.unwrap_err().kind(), ErrorKind::TimedOut);
        poll_pending(drain.as_mut());
        drop(there);
        assert_eq!(in_time("the drain", drain).await, 0);
    });
}

#[test]
fn a_peer_that_was_not_accepted_yet_is_refused() {
    run(async {
        let net = Net::new(&under_test(false), Mode::EventDriven, small()).await;
        let Net {
            listener,
            connector,
            addr,
            ..
        } = net;
        let connect = tokio::spawn(async move { connector.connect(addr).await.map(drop) });
        let incoming = in_time("the peer", listener.accept()).await.unwrap();
        assert_eq!(listener.drain(LIMIT).await, 0);
        let refused = incoming.accept(b"").await.map(drop).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Shutdown);
        let text = connect.await.unwrap().unwrap_err().to_string();
        assert!(text.contains("drains"), "{text}");
    });
}
