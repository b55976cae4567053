//! Small writes that find no credit share a frame, which is sent without another write.

use std::io::ErrorKind;
use std::time::Duration;

use futures::FutureExt;
use futures::future::join;
use support::device::{adapter, under_test};
use support::stream::{Net, byte, bytes, each_by_rdma, small};
use support::*;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio_doca::ErrorKind::BadState;
use tokio_doca::error::JobError;
use tokio_doca::mem::Access;
use tokio_doca::stream::{RdmaMessages, RdmaStream};
use tokio_doca::{BufPool, Mmap, Mode};

/// The payload of a frame in these tests, and how many frames a peer accepts that does not read.
const PAYLOAD: usize = 252;
const WINDOW: usize = 3;

/// Runs `story` with a pair whose `here` has used all its credits for frames of one byte, and then
/// has written `len` single bytes.
fn pairs(len: usize, story: impl AsyncFn(&Net, RdmaStream, RdmaStream)) {
    pairs_that_linger(Duration::from_secs(1), len, story);
}

fn pairs_that_linger(
    linger: Duration,
    len: usize,
    story: impl AsyncFn(&Net, RdmaStream, RdmaStream),
) {
    let options = small().send_window(8).linger(linger);
    each_by_rdma(8, 64, options, async |net| {
        let (mut here, there) = net.pair().await;
        for at in 0..WINDOW + len {
            // The write may wait until a frame in flight has been sent.
            let byte = [byte(at)];
            let write = in_time("a write", here.write(&byte));
            assert_eq!(write.await.unwrap(), 1);
        }
        let stats = here.stats();
        assert_eq!(stats.bytes_sent, (WINDOW + len) as u64);
        assert!(stats.frames_sent <= WINDOW as u64, "{stats:?}");
        story(net, here, there).await;
    });
}

/// Reads the next `len` bytes, which start at offset `at`.
async fn read(stream: &mut RdmaStream, at: usize, len: usize) {
    let mut came = vec![0; len];
    let read = stream.read_exact(&mut came);
    in_time("the bytes", read).await.unwrap();
    assert!(came == bytes(at..at + len));
}

#[test]
fn a_lone_write_leaves_at_once() {
    each_by_rdma(8, 64, small().send_window(8), async |net| {
        let (mut here, mut there) = net.pair().await;
        for round in 0..50 {
            here.write_all(b"ping").await.unwrap();
            assert_eq!(here.stats().frames_sent, round + 1);
            there.read_exact(&mut [0; 4]).await.unwrap();
            there.write_all(b"pong").await.unwrap();
            here.read_exact(&mut [0; 4]).await.unwrap();
        }
    });
}

#[test]
fn what_was_written_without_a_credit_arrives_though_nobody_writes_again() {
    for len in [1, 100, PAYLOAD] {
        pairs(len, async |_, here, mut there| {
            read(&mut there, 0, WINDOW + len).await;
            // The frames of one byte, and one with all the other bytes.
            until("it is counted", || here.stats().frames_sent > WINDOW as u64).await;
            let stats = here.stats();
            assert_eq!((stats.frames_sent, stats.credit_waits), (4, 1));
        });
    }
}

/// The writer is woken when the frame has space again.
#[test]
fn a_frame_that_is_full_is_waited_for() {
    pairs(PAYLOAD, async |_, mut here, mut there| {
        assert!(here.write(b"more").now_or_never().is_none());
        let at = WINDOW + PAYLOAD;
        let writer = async {
            here.write_all(&bytes(at..at + 1000)).await.unwrap();
            here.flush().await.unwrap();
        };
        join(in_time("the rest", writer), read(&mut there, 0, at + 1000)).await;
    });
}

#[test]
fn a_flush_waits_until_the_frame_has_left() {
    pairs(10, async |_, mut here, mut there| {
        assert!(here.flush().now_or_never().is_none());
        let flush = async {
            here.flush().await.unwrap();
            here.stats().frames_sent
        };
        let both = join(flush, read(&mut there, 0, WINDOW + 10));
        assert_eq!(in_time("the flush", both).await.0, 4);
        assert!(here.flush().now_or_never().is_some());
    });
}

/// The end follows the frame, whether by a shutdown or by a drop.
#[test]
fn the_end_is_behind_it() {
    for drops in [false, true] {
        pairs(10, async |_, mut here, mut there| {
            let mut came = Vec::new();
            let ends = async {
                match drops {
                    true => drop(here),
                    false => here.shutdown().await.unwrap(),
                }
            };
            let both = join(ends, there.read_to_end(&mut came));
            in_time("the end", both).await.1.unwrap();
            assert!(came == bytes(0..WINDOW + 10));
        });
    }
}

#[test]
fn messages_are_sent_behind_it_and_share_no_frame() {
    pairs(10, async |net, here, mut there| {
        let device = here.rdma().unwrap().device().clone();
        let memory = Mmap::builder().device(&device).alloc(1 << 12).unwrap();
        let pool = BufPool::builder(&memory).element_size(64).build().unwrap();
        let message = |at: usize| {
            let buf = pool.try_alloc().unwrap();
            buf.set_data(RdmaMessages::HEADROOM, 0).unwrap();
            buf.extend_from_slice(&[byte(at)]).unwrap();
            buf
        };
        let mut here = here.into_messages();
        assert!(here.send_buf(message(13)).now_or_never().is_none());
        let sends = async {
            for at in 13..18 {
                here.send_buf(message(at)).await.unwrap();
            }
        };
        join(in_time("messages", sends), read(&mut there, 0, 18)).await;
        assert_eq!(here.stream().stats().frames_sent, 9);
        // The streams end before the memory of their messages does.
        drop((here, there, net));
    });
}

/// If a peer has permitted one-sided operations, data that was written before such an operation has
/// arrived before it.
#[test]
fn writes_share_no_frame_beside_one_sided_operations() {
    let options = small().send_window(8).permissions(Access::RDMA_WRITE);
    each_by_rdma(8, 64, options, async |net| {
        let (mut here, mut there) = net.pair().await;
        for at in 0..WINDOW {
            in_time("a write", here.write_u8(byte(at))).await.unwrap();
        }
        assert!(here.write(&[byte(3)]).now_or_never().is_none());
        let both = join(here.write_u8(byte(3)), read(&mut there, 0, 4));
        in_time("the write", both).await.0.unwrap();
        assert_eq!(here.stats().frames_sent, 4);
    });
}

#[test]
fn a_peer_that_goes_is_an_error_if_it_has_not_left() {
    pairs_that_linger(Duration::ZERO, 10, async |_, mut here, there| {
        drop(there);
        let flush = in_time("the flush", here.flush()).await;
        assert_eq!(flush.unwrap_err().kind(), ErrorKind::ConnectionReset);
        let write = in_time("a write", here.write(b"more")).await;
        assert_eq!(write.unwrap_err().kind(), ErrorKind::ConnectionReset);
        let shutdown = in_time("the shutdown", here.shutdown()).await;
        assert_eq!(shutdown.unwrap_err().kind(), ErrorKind::ConnectionReset);
    });
}

/// Data that a stream lends stays valid, although the stream's own task sends meanwhile.
#[test]
fn what_is_lent_stays_while_the_frame_leaves() {
    pairs(10, async |_, mut here, mut there| {
        in_time("a frame", there.write_all(b"lent")).await.unwrap();
        let lent = in_time("a frame", here.fill_buf()).await.unwrap();
        read(&mut there, 0, WINDOW + 10).await;
        in_time("another", there.write_all(b"more")).await.unwrap();
        assert_eq!(lent, b"lent");
        here.consume(4);
        let mut more = [0; 4];
        in_time("more", here.read_exact(&mut more)).await.unwrap();
        assert_eq!(&more, b"more");
    });
}

/// The runtime on which the frame was begun may be idle, or may have ended.
#[test]
fn it_leaves_by_the_runtime_that_writes() {
    for ends in [false, true] {
        pairs(0, async |_, mut here, mut there| {
            let at = WINDOW;
            let begin = tokio::task::spawn_blocking(move || {
                let runtime = tokio::runtime::Builder::new_current_thread();
                let runtime = { runtime }.enable_all().build().unwrap();
                runtime.block_on(async { here.write_all(&[byte(at)]).await.unwrap() });
                // If `ends` is set, the runtime ends here; otherwise it is returned, and nothing
                // drives it.
                (here, (!ends).then_some(runtime))
            });
            let (mut here, runtime) = begin.await.unwrap();
            in_time("a write", here.write_all(&[byte(at + 1)]))
                .await
                .unwrap();
            read(&mut there, 0, at + 2).await;
            if let Some(runtime) = runtime {
                runtime.shutdown_background();
            }
        });
    }
}

/// The runtime that wrote ends or is idle, and the stream is not called again.
#[test]
fn it_leaves_by_the_runtime_of_the_stream_if_another_one_does_nothing() {
    for ends in [true, false] {
        pairs(0, async |_, mut here, mut there| {
            let begin = tokio::task::spawn_blocking(move || {
                let runtime = runtime();
                runtime.block_on(async { here.write_all(&[byte(WINDOW)]).await.unwrap() });
                (here, (!ends).then_some(runtime))
            });
            let (here, runtime) = begin.await.unwrap();
            read(&mut there, 0, WINDOW + 1).await;
            drop(here);
            if let Some(runtime) = runtime {
                runtime.shutdown_background();
            }
        });
    }
}

/// A poll thread writes while it has entered a runtime that is not driven.
#[test]
fn it_leaves_by_the_runtime_of_the_stream_if_a_poll_thread_writes() {
    pairs(0, async |_, mut here, mut there| {
        let (ends, ended) = tokio::sync::oneshot::channel::<()>();
        let workq = here.rdma().unwrap().workq().clone();
        let thread = workq.poll_thread().spawn(async move || {
            let runtime = runtime();
            let entered = runtime.enter();
            here.write_all(&[byte(WINDOW)]).await.unwrap();
            _ = ended.await;
            drop(entered);
            runtime.shutdown_background();
        });
        read(&mut there, 0, WINDOW + 1).await;
        drop(ends);
        let thread = thread.unwrap();
        let joined = tokio::task::spawn_blocking(move || thread.join());
        joined.await.unwrap().unwrap();
    });
}

/// The stream's own runtime is idle.
#[test]
fn it_leaves_by_the_runtime_that_writes_if_that_of_the_stream_does_nothing() {
    pairs(0, async |_, mut here, mut there| {
        let story = move || {
            runtime().block_on(async {
                here.write_all(&[byte(WINDOW)]).await.unwrap();
                read(&mut there, 0, WINDOW + 1).await;
            });
        };
        // This thread drives the stream's runtime, and blocks here.
        std::thread::spawn(story).join().unwrap();
    });
}

/// Asserts that a call has failed because it cannot wait on the thread that polls it.
fn cannot_wait<T: std::fmt::Debug>(polled: Option<std::io::Result<T>>) {
    let error = polled.expect("it does not wait").unwrap_err();
    let cause = error.get_ref().unwrap().downcast_ref::<JobError>().unwrap();
    assert_eq!(cause.kind(), BadState, "{cause}");
}

/// Without a runtime, and on a fifth runtime, a call that must wait fails, and the stream stays as
/// it was.
#[test]
fn a_call_that_cannot_wait_where_it_is_polled_ends_nothing() {
    for (len, others) in [(0, 0), (PAYLOAD, 0), (0, 3), (PAYLOAD, 3)] {
        pairs(len, async |_, mut here, mut there| {
            if here.rdma().unwrap().workq().mode() == Mode::BusyPoll {
                return;
            }
            // This runtime is the first of four.
            assert!(here.read(&mut [0]).now_or_never().is_none());
            let story = move || {
                let runtimes = vec![(); others].into_iter().map(|()| {
                    let other = runtime();
                    let entered = other.enter();
                    assert!(here.read(&mut [0]).now_or_never().is_none());
                    drop(entered);
                    other
                });
                let runtimes: Vec<_> = runtimes.collect();
                let fifth = (others > 0).then(runtime);
                let entered = fifth.as_ref().map(|fifth| fifth.enter());
                cannot_wait(here.write(b"more").now_or_never());
                cannot_wait(here.read(&mut [0]).now_or_never());
                if len > 0 {
                    cannot_wait(here.flush().now_or_never());
                }
                drop(entered);
                drop((fifth, runtimes));
                here
            };
            let mut here = std::thread::spawn(story).join().unwrap();
            let at = WINDOW + len;
            in_time("a frame", there.write_all(b"back")).await.unwrap();
            in_time("it", here.read_exact(&mut [0; 4])).await.unwrap();
            read(&mut there, 0, at).await;
            in_time("a write", here.write_all(&[byte(at)]))
                .await
                .unwrap();
            let mut came = Vec::new();
            let both = join(here.shutdown(), there.read_to_end(&mut came));
            let (shutdown, read) = in_time("the end", both).await;
            shutdown.and(read).unwrap();
            assert_eq!(came, [byte(at)]);
        });
    }
}

/// A thread without a runtime writes, and must poll; the frame that it has begun is sent by the
/// stream's runtime.
#[test]
fn it_leaves_by_the_runtime_of_the_stream_if_there_is_no_other() {
    pairs(0, async |_, mut here, mut there| {
        if here.rdma().unwrap().workq().mode() != Mode::BusyPoll {
            return;
        }
        let begin = std::thread::spawn(move || {
            let write = here.write(&[byte(WINDOW)]).now_or_never();
            assert_eq!(write.unwrap().unwrap(), 1);
            here
        });
        let here = begin.join().unwrap();
        read(&mut there, 0, WINDOW + 1).await;
        drop(here);
    });
}

/// The halves are on separate threads, and their streams have bytes to send most of the time.
#[test]
fn halves_and_the_task_of_a_stream_take_turns() {
    let len = if adapter().is_some() {
        1 << 14
    } else {
        1 << 18
    };
    let story = async move {
        let options = small().send_window(8);
        let net = Net::new(&under_test(false), Mode::EventDriven, options).await;
        let (here, there) = net.pair().await;
        let mut tasks = Vec::new();
        for stream in [here, there] {
            let (mut reads, mut writes) = tokio::io::split(stream);
            tasks.push(tokio::spawn(async move {
                let (mut at, mut step) = (0, 0);
                while at < len {
                    let end = len.min(at + 1 + step % 40);
                    writes.write_all(&bytes(at..end)).await.unwrap();
                    (at, step) = (end, step + 7);
                    if step % 11 == 0 {
                        tokio::task::yield_now().await;
                    }
                }
                writes.shutdown().await.unwrap();
            }));
            tasks.push(tokio::spawn(async move {
                let (mut at, mut room) = (0, [0; 90]);
                loop {
                    let came = reads.read(&mut room).await.unwrap();
                    if came == 0 {
                        break assert_eq!(at, len);
                    }
                    assert!(room[..came] == bytes(at..at + came));
                    at += came;
                }
            }));
        }
        for task in tasks {
            in_time("a half", task).await.unwrap();
        }
    };
    workers().block_on(async { tokio::spawn(story).await.unwrap() });
}

/// A slow reader, and a writer that does other work after each burst.
#[test]
fn bursts_arrive_whole() {
    const BURSTS: usize = 200;
    pairs(0, async |_, mut here, mut there| {
        let (tells, mut told) = tokio::sync::mpsc::channel(1);
        let writer = async {
            let mut at = WINDOW;
            for burst in 0..BURSTS {
                for len in [1, 7, burst % 120] {
                    here.write_all(&bytes(at..at + len)).await.unwrap();
                    at += len;
                }
                // The writer does not poll the stream until the reader has received everything.
                tells.send(at).await.unwrap();
                tells.reserve().await.unwrap();
            }
            drop(tells);
        };
        let reader = async {
            let mut at = 0;
            while let Some(end) = told.recv().await {
                while at < end {
                    let len = 5.min(end - at);
                    read(&mut there, at, len).await;
                    at += len;
                    tokio::task::yield_now().await;
                }
            }
        };
        in_time("all bursts", join(writer, reader)).await;
    });
}
