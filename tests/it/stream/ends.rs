//! How streams end: in order, by a drop, and by failures.

use std::cell::RefCell;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::join;
use support::device::{adapter, needs_soft, under_test};
use support::stream::{Net, bytes, each, small};
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_doca::Mode;
use tokio_doca::error::JobError;
use tokio_doca::rdma::RdmaState;
use tokio_doca::stream::{RdmaStream, StreamOptions};

const MIB: usize = 1 << 20;

async fn read_all(stream: &mut RdmaStream) -> Vec<u8> {
    let mut came = Vec::new();
    let read = in_time("the data", stream.read_to_end(&mut came)).await;
    read.unwrap();
    came
}

#[test]
fn a_side_that_has_shut_down_still_reads() {
    each(small(), async |net| {
        let (mut here, mut there) = net.pair().await;
        here.write_all(b"question").await.unwrap();
        here.shutdown().await.unwrap();
        here.shutdown().await.unwrap();
        assert_eq!(read_all(&mut there).await, b"question");
        let late = here.write(b"more").await.unwrap_err();
        assert_eq!(late.kind(), ErrorKind::BrokenPipe);
        let answer = bytes(0..5000);
        let both = join(there.write_all(&answer), async {
            let mut came = vec![0; answer.len()];
            here.read_exact(&mut came).await.unwrap();
            assert_eq!(came, answer);
        });
        in_time("the answer", both).await.0.unwrap();
        there.shutdown().await.unwrap();
        assert_eq!(read_all(&mut here).await, b"");
    });
}

/// hyper's server does this with a client that closes first.
#[test]
fn a_shutdown_succeeds_after_a_peer_that_has_ended_and_gone() {
    each(small(), async |net| {
        let (mut here, mut there) = net.pair().await;
        there.write_all(b"answer").await.unwrap();
        here.read_exact(&mut [0; 6]).await.unwrap();
        here.shutdown().await.unwrap();
        drop(here);
        assert_eq!(read_all(&mut there).await, b"");
        if let Some(rdma) = there.rdma() {
            let gone = || matches!(rdma.state(), RdmaState::Error(_));
            until("the peer has gone", gone).await;
        }
        for _ in 0..2 {
            in_time("the end", there.shutdown()).await.unwrap();
        }
        let late = there.write(b"more").await.unwrap_err();
        assert_eq!(late.kind(), ErrorKind::BrokenPipe);
    });
}

/// hyper does this: written data is still in flight when the shutdown begins.
#[test]
fn a_shutdown_succeeds_if_the_peer_takes_all_data_and_goes() {
    each(small(), async |net| {
        let (mut here, mut there) = net.pair().await;
        here.shutdown().await.unwrap();
        assert_eq!(read_all(&mut there).await, b"");
        there.write_all(b"answer").await.unwrap();
        let mut shutdown = Box::pin(there.shutdown());
        _ = futures::poll!(&mut shutdown);
        here.read_exact(&mut [0; 6]).await.unwrap();
        drop(here);
        in_time("the end", shutdown).await.unwrap();
    });
}

#[test]
fn what_a_dropped_stream_has_written_arrives_with_its_end() {
    for options in [StreamOptions::new().timeout(LIMIT), small()] {
        each(options.linger(LIMIT), async |net| {
            // On an emulated adapter a frame takes a while.
            let len = if adapter().is_some() { 1 << 16 } else { MIB };
            let (mut here, mut there) = net.pair().await;
            let write = async move {
                here.write_all(&bytes(0..len)).await.unwrap();
                drop(here);
            };
            let (came, ()) = join(read_all(&mut there), write).await;
            assert!(came == bytes(0..len));
        });
    }
}

/// The last window is read after the writer has gone, while the reader gives credits.
#[test]
fn a_reader_gets_what_a_dropped_stream_had_sent_before() {
    each(small().linger(LIMIT), async |net| {
        for len in [1, 252, 600] {
            let (mut here, mut there) = net.pair().await;
            here.write_all(&bytes(0..len)).await.unwrap();
            drop(here);
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            assert_eq!(read_all(&mut there).await, bytes(0..len));
            there.shutdown().now_or_never();
        }
    });
}

/// Data that the peer writes meanwhile is dropped, and does not block the peer.
#[test]
fn a_dropped_stream_that_was_written_to_sends_its_data_all_the_same() {
    each(small().linger(LIMIT), async |net| {
        let (mut here, there) = net.pair().await;
        let (mut reads, mut writes) = tokio::io::split(there);
        let flood = async move {
            // Writes until the stream has gone.
            while writes.write_all(&[7; 100]).await.is_ok() {
                tokio::task::yield_now().await;
            }
        };
        let read = async move {
            let mut came = Vec::new();
            reads.read_to_end(&mut came).await.unwrap();
            assert!(came == bytes(0..20_000));
        };
        let write = async move {
            here.write_all(&bytes(0..20_000)).await.unwrap();
            drop(here);
        };
        in_time("all", join(flood, join(read, write))).await;
    });
}

#[test]
fn without_linger_a_drop_resets() {
    each(small().linger(Duration::ZERO), async |net| {
        let (mut here, mut there) = net.pair().await;
        here.write_all(b"some").await.unwrap();
        drop(here);
        let mut came = Vec::new();
        let read = in_time("the end", there.read_to_end(&mut came)).await;
        let error = read.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
        let source = error.get_ref().and_then(|it| it.downcast_ref::<JobError>());
        assert!(source.expect("the source").is_disconnect());
        let text = error.to_string();
        let words = ["Rdma", "job", "flushed", "reset", "post"];
        assert!(!words.iter().any(|word| text.contains(word)), "{text}");
        assert!(text.ends_with(": connect another stream"), "{text}");
        // The error stays, and a writer gets it as well.
        let again = there.read(&mut [0; 9]).await.unwrap_err();
        assert_eq!(again.kind(), ErrorKind::ConnectionReset);
        let mut accepted = 0;
        let write = async {
            loop {
                match there.write(&[0; 100]).await {
                    Ok(len) => accepted += len,
                    Err(error) => break error.kind(),
                }
            }
        };
        let kind = in_time("the error", write).await;
        assert_eq!(kind, ErrorKind::ConnectionReset);
        let shutdown = in_time("the shutdown", there.shutdown()).await;
        match accepted {
            // The write has reported the error, and no accepted data is lost.
            0 => shutdown.unwrap(),
            _ => assert_eq!(shutdown.unwrap_err().kind(), ErrorKind::ConnectionReset),
        }
    });
}

/// hyper's client does this: the server has ended in order, and the client has not read that.
#[test]
fn a_shutdown_succeeds_though_the_end_of_the_peer_was_not_read() {
    for ends in [false, true] {
        each(small().linger(LIMIT), async |net| {
            let (mut here, mut there) = net.pair().await;
            here.write_all(b"request").await.unwrap();
            there.read_exact(&mut [0; 7]).await.unwrap();
            there.write_all(b"response").await.unwrap();
            here.read_exact(&mut [0; 8]).await.unwrap();
            there.write_all(b"more").await.unwrap();
            if ends {
                there.shutdown().await.unwrap();
            }
            drop(there);
            // Lets other streams of the service notice the end as well.
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            for _ in 0..2 {
                in_time("the end", here.shutdown()).await.unwrap();
                here.flush().await.unwrap();
            }
            // Data that had arrived can still be read.
            assert_eq!(read_all(&mut here).await, b"more");
        });
    }
}

/// The reader has written since the peer left, which fails at once, and then takes its time to
/// read.
#[test]
fn what_a_peer_had_sent_stays_for_a_reader_that_has_written_to_nobody() {
    if needs_soft("a connection ends with the first message that fails") {
        return;
    }
    each(small().linger(LIMIT), async |net| {
        let (mut here, mut there) = net.pair().await;
        there.write_all(&bytes(0..600)).await.unwrap();
        there.shutdown().await.unwrap();
        drop(there);
        here.read_exact(&mut [0; 252]).await.unwrap();
        // A device in defer mode accepts the first such write.
        let write = async { while here.write(&[7; 9]).await.is_ok() {} };
        in_time("a write to nobody", write).await;
        // Longer than a frame waits for a receive.
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(read_all(&mut here).await, bytes(252..600));
    });
}

/// The peer has read the answer, and gives credits after its own end.
#[test]
fn a_shutdown_does_not_wait_for_what_a_peer_that_has_gone_said_behind_its_end() {
    each(small().linger(LIMIT), async |net| {
        let (mut here, mut there) = net.pair().await;
        there.write_all(b"request").await.unwrap();
        there.shutdown().await.unwrap();
        assert_eq!(read_all(&mut here).await, b"request");
        for _ in 0..2 {
            here.write_all(&bytes(0..252)).await.unwrap();
            there.read_exact(&mut [0; 252]).await.unwrap();
        }
        drop(there);
        let begun = Instant::now();
        in_time("the end", here.shutdown()).await.unwrap();
        assert_quick("a shutdown", begun.elapsed(), Duration::from_millis(500));
    });
}

/// An accepted write is lost, and no other call has reported that.
#[test]
fn a_shutdown_fails_if_what_was_accepted_did_not_arrive() {
    if needs_soft("an adapter sends by itself") {
        return;
    }
    run(async {
        let options = small().linger(Duration::ZERO);
        let net = Net::new(&under_test(true), Mode::EventDriven, options).await;
        let (mut here, there) = net.pair().await;
        until("all is quiet", || {
            here.rdma().unwrap().workq().in_flight() == 0
        })
        .await;
        // The message is sent only when the WorkQ is polled.
        here.write_all(b"lost").now_or_never().unwrap().unwrap();
        assert_eq!(here.rdma().unwrap().workq().in_flight(), 1);
        drop(there);
        for _ in 0..2 {
            let shutdown = in_time("the end", here.shutdown()).await;
            assert_eq!(shutdown.unwrap_err().kind(), ErrorKind::ConnectionReset);
        }
    });
}

/// The refused write has returned an error. Writes before it may have been accepted and lost.
#[test]
fn a_shutdown_says_nothing_again_of_a_write_that_has_failed() {
    if needs_soft("an adapter notices later that the peer has gone") {
        return;
    }
    run(async {
        for defer in [false, true] {
            let options = small().linger(Duration::ZERO);
            let net = Net::new(&under_test(defer), Mode::EventDriven, options).await;
            let (mut here, mut there) = net.pair().await;
            here.write_all(b"delivered").await.unwrap();
            there.read_exact(&mut [0; 9]).await.unwrap();
            drop(there);
            let mut lost = 0;
            while let Ok(accepted) = in_time("a write", here.write(b"to nobody")).await {
                lost += accepted;
            }
            for _ in 0..2 {
                let shutdown = in_time("the end", here.shutdown()).await;
                assert_eq!(shutdown.is_err(), lost > 0, "{lost} bytes were lost");
            }
        }
    });
}

/// The stream itself is kept, although nothing accepts its data any more.
#[test]
fn a_workq_that_is_shut_down_resets_its_streams() {
    if needs_soft("a peer that has gone is noticed by what is sent alone") {
        return;
    }
    each(small(), async |net| {
        let (here, mut there) = net.pair().await;
        there.write_all(b"sent").await.unwrap();
        let Some(workq) = there.rdma().map(|rdma| rdma.workq().clone()) else {
            return;
        };
        let (mut reads, mut writes) = tokio::io::split(here);
        let write = async { while writes.write_all(&[7; 9]).await.is_ok() {} };
        let mut came = Vec::new();
        let all = async { tokio::join!(workq.shutdown(), write, reads.read_to_end(&mut came)) };
        let (down, (), read) = in_time("both sides' ends", all).await;
        down.unwrap();
        assert_eq!(read.unwrap_err().kind(), ErrorKind::ConnectionReset);
    });
}

/// The stream is dropped by the destructor of a thread-local, after Tokio's thread-locals are
/// destroyed.
#[test]
fn a_stream_may_be_dropped_by_a_thread_that_ends() {
    thread_local!(static HELD: RefCell<Vec<RdmaStream>> = const { RefCell::new(Vec::new()) });
    run(async {
        let net = Net::new(&under_test(true), Mode::EventDriven, small().linger(LIMIT)).await;
        let (mut here, mut there) = net.pair().await;
        here.write_all(b"all").await.unwrap();
        let runtime = tokio::runtime::Handle::current();
        let thread = std::thread::spawn(move || {
            // Initialized before Tokio's thread-locals, so that it is destroyed after them.
            HELD.with(|held| held.borrow_mut().reserve(1));
            let _entered = runtime.enter();
            HELD.with(|held| held.borrow_mut().push(here));
        });
        assert_eq!(read_all(&mut there).await, b"all");
        thread.join().unwrap();
    });
}

/// A dropped stream waits for a peer that does not read no longer than its linger time.
#[test]
fn a_dropped_stream_lingers_as_long_as_it_was_told() {
    let options = small().connections(1).linger(Duration::from_millis(50));
    each(options, async |net| {
        let (mut here, mut there) = net.pair().await;
        // Writes all that the peer accepts. The last frame may wait in the device.
        while here.write(&[7; 252]).now_or_never().is_some() {}
        drop(here);
        // The peer notices the end, and its own writes fail.
        let end = async {
            loop {
                if there.write(&[0; 9]).await.is_err() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        in_time("the end", end).await;
    });
}
