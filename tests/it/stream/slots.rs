//! Streams on WorkQs with fewer slots than frames: accepted data is sent, although the stream's
//! tasks do not poll again.

use futures::future::join_all;
use futures::{FutureExt, SinkExt};
use support::rdma::{Setup, Side, connect};
use support::stream::{Net, bytes, each_by_rdma, small};
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_doca::WorkQ;
use tokio_doca::stream::{RdmaMessages, RdmaStream};

const STREAMS: usize = 16;
pub(super) const DEPTH: u32 = 2;
/// The number of bytes after which the reading peer gives credits.
const WINDOW: usize = 2 * 252;

/// Runs `story` with pairs that share two slots on either side.
fn pairs(story: impl AsyncFn(Vec<(RdmaStream, RdmaStream)>)) {
    each_by_rdma(2, DEPTH, small().connections(STREAMS), async |net: &Net| {
        let mut pairs = Vec::new();
        for _ in 0..STREAMS {
            pairs.push(net.pair().await);
        }
        story(pairs).await;
    });
}

/// Sends that occupy all slots of a WorkQ until the peer receives them. Their futures are dropped.
pub(super) struct Held {
    peer: Side,
    here: Side,
}

impl Held {
    pub(super) fn of(stream: &RdmaStream) -> Held {
        let (device, workq) = (
            stream.rdma().unwrap().device(),
            stream.rdma().unwrap().workq(),
        );
        let setup = Setup::new(false, workq.mode());
        let other = WorkQ::builder().mode(workq.mode()).build().unwrap();
        let (here, peer) = (
            Side::on(device, &workq, setup),
            Side::on(device, &other, setup),
        );
        connect(&here.rdma, &peer.rdma);
        for _ in 0..DEPTH {
            drop(here.rdma.send(here.filled(b"held")).start().unwrap());
        }
        Held { peer, here }
    }

    pub(super) async fn release(&self) {
        for _ in 0..DEPTH {
            let received = in_time("what holds a slot", self.peer.recv()).await;
            assert_eq!(received.unwrap(), b"held");
        }
    }
}

async fn write(stream: &mut RdmaStream) {
    let data = bytes(0..WINDOW);
    let written = in_time("a write", stream.write_all(&data)).await;
    written.unwrap();
}

async fn read(stream: &mut RdmaStream, len: usize) {
    let mut came = vec![0; len];
    in_time("the data", stream.read_exact(&mut came))
        .await
        .unwrap();
    assert!(came == bytes(0..len));
}

/// Each stream is polled only for its own write or read, one after the other.
#[test]
fn what_was_written_is_sent_though_its_task_does_not_poll_again() {
    pairs(async |mut pairs| {
        for _ in 0..3 {
            for (here, _) in &mut pairs {
                write(here).await;
            }
            for (_, there) in &mut pairs {
                read(there, WINDOW).await;
            }
        }
    });
}

#[test]
fn a_reader_gives_credits_though_its_task_does_not_poll_again() {
    pairs(async |mut pairs| {
        let held = Held::of(&pairs[0].1);
        for (here, there) in &mut pairs {
            write(here).await;
            read(there, WINDOW).await;
        }
        held.release().await;
        for (here, _) in &mut pairs {
            write(here).await;
        }
    });
}

/// The task that sends a late frame of credits is dropped with the reader's runtime.
#[test]
fn credits_are_given_though_the_runtime_of_the_reader_ends() {
    pairs(async |mut pairs| {
        let (mut here, mut there) = pairs.swap_remove(0);
        let held = Held::of(&there);
        write(&mut here).await;
        let reader = tokio::task::spawn_blocking(move || {
            run(read(&mut there, WINDOW));
            there
        });
        let mut there = in_time("the reader", reader).await.unwrap();
        held.release().await;
        for _ in 0..2 {
            futures::future::join(write(&mut here), read(&mut there, WINDOW)).await;
        }
    });
}

/// The task that sends a late frame of credits is on a runtime that exists but is not driven.
#[test]
fn credits_are_given_though_nobody_drives_the_runtime_of_the_reader() {
    pairs(async |mut pairs| {
        let (mut here, mut there) = pairs.swap_remove(0);
        let held = Held::of(&there);
        write(&mut here).await;
        let reader = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = { runtime }.enable_all().build().unwrap();
            runtime.block_on(read(&mut there, WINDOW));
            (there, runtime)
        });
        let (mut there, runtime) = in_time("the reader", reader).await.unwrap();
        held.release().await;
        for _ in 0..2 {
            futures::future::join(write(&mut here), read(&mut there, WINDOW)).await;
        }
        runtime.shutdown_background();
    });
}

/// No operation waits behind credits that the peer needs no more.
#[test]
fn credits_that_a_peer_needs_no_more_stand_in_no_line() {
    pairs(async |mut pairs| {
        let (mut here, mut there) = pairs.swap_remove(0);
        let workq = there.rdma().unwrap().workq();
        write(&mut here).await;
        let held = Held::of(&there);
        read(&mut there, WINDOW).await;
        in_time("the end", here.shutdown()).await.unwrap();
        let end = in_time("the end", there.read(&mut [0])).await;
        assert_eq!(end.unwrap(), 0);
        held.release().await;
        until("nobody waits", || workq.stats().waiting == 0).await;
        drop(there);
    });
}

/// The Buf of the dropped send is unchanged, and the peer receives it once when it is sent again.
#[test]
fn a_buf_whose_send_was_dropped_in_line_is_as_it_was() {
    pairs(async |mut pairs| {
        let (here, mut there) = pairs.swap_remove(0);
        let held = Held::of(&here);
        let buf = held.here.empty();
        buf.set_data(RdmaMessages::HEADROOM, 0).unwrap();
        buf.extend_from_slice(b"message").unwrap();
        let mut here = here.into_messages();
        if here.send_buf(buf.clone()).now_or_never().is_none() {
            assert_eq!((buf.headroom(), buf.data_len()), (4, 7));
            held.release().await;
            in_time("the send", here.send_buf(buf)).await.unwrap();
        }
        let mut came = Vec::new();
        here.close().await.unwrap();
        let read = there.read_to_end(&mut came);
        in_time("the message", read).await.unwrap();
        assert_eq!(came, b"message");
    });
}

/// A write or a shutdown that waits for a slot is dropped.
#[test]
fn a_write_or_a_shutdown_that_was_dropped_holds_up_nobody() {
    for shuts in [false, true] {
        pairs(async |mut pairs| {
            let held = Held::of(&pairs[0].0);
            let mut accepted = Vec::new();
            for (here, _) in &mut pairs[1..] {
                accepted.push(match shuts {
                    true => here.shutdown().now_or_never().is_some(),
                    false => here.write(&bytes(0..100)).now_or_never().is_some(),
                });
            }
            held.release().await;
            let (here, there) = &mut pairs[0];
            for _ in 0..20 {
                write(here).await;
                read(there, WINDOW).await;
            }
            // Data that was not accepted is not sent.
            let mut all = pairs.iter_mut().skip(1).zip(accepted);
            join_all(all.by_ref().filter(|(_, accepted)| *accepted).map(
                async |((_, there), _)| match shuts {
                    true => assert_eq!(there.read(&mut [0]).await.unwrap(), 0),
                    false => read(there, 100).await,
                },
            ))
            .await;
        });
    }
}
